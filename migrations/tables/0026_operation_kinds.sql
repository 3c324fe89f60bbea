-- pre-deploy
-- Nothing ever asked for a removal: a drained member is removed by itself.
alter table public.member_operations drop constraint member_operations_kind_check;
alter table public.member_operations add constraint member_operations_kind_check
    check (kind in ('add', 'reconcile', 'drain', 'bootstrap_ssh'));
