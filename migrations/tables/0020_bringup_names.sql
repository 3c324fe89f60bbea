-- post-deploy
-- The end of a bring-up under the terms of docs/glossary.md. The functions that use the column have just been replaced; a
-- call in between fails, and is repeated.

alter table public.workers rename column climb_ended_at to bringup_ended_at;
alter index public.workers_climbs rename to workers_ended_bringups;
