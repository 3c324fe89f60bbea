-- pre-deploy
--
-- A trigger or a constraint of a user can also keep a task from passing a limit.

alter table public.task_refusals drop constraint if exists task_refusals_what_known;
alter table public.task_refusals add constraint task_refusals_what_known
    check (what in ('claim', 'rescue', 'settle', 'complete', 'let_in'));
comment on table public.task_refusals is
    'Tasks that a trigger or a constraint of a user keeps from being claimed, let in, completed, rescued or settled';
