-- post-deploy
-- No function uses it any more: see 0005.
drop sequence public.task_attempts_floor;
