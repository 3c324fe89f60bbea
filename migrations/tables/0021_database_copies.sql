-- pre-deploy
-- Where the fleet is led, so that a copy of this database is recognised.

alter table public.database_identity add column if not exists led_in text;  -- server and database; null: not led yet
