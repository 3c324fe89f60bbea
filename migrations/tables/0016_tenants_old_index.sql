-- post-deploy
-- No function reads it any more: tasks_claim_order has replaced it.
drop index if exists public.tasks_claim;
