-- pre-deploy
--
-- A trigger or a constraint of a user can also keep a task from being completed. `since` is the first of these refusals
-- in a row.

alter table public.task_refusals add column if not exists since timestamptz;
alter table public.task_refusals drop constraint if exists task_refusals_what_known;
alter table public.task_refusals add constraint task_refusals_what_known
    check (what in ('claim', 'rescue', 'settle', 'complete'));
comment on table public.task_refusals is
    'Tasks that a trigger or a constraint of a user keeps from being claimed, completed, rescued or settled';
