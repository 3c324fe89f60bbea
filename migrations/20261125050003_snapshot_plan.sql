-- The planner's observation is planned once for each connection: that took a third of it. By indexes only, so that a plan
-- made while the queue was short cannot stay on when it is long.
alter function public.fleet_snapshot(text, timestamptz)
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off;
