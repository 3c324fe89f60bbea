-- post-deploy
-- No function uses the sequence any more: see 0005. A database from before the first release has the function that did.
drop function if exists public.internal_raise_floor(int);
drop sequence public.task_attempts_floor;
