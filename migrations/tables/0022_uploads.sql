-- pre-deploy
-- When an attempt uploaded its outputs, by its agent: from the first request for a signed URL to the end of the last file.
-- NULL if it uploaded nothing, or its agent does not say. See functions/completing.sql.

alter table public.task_attempts
    add column if not exists upload_started_at timestamptz,
    add column if not exists upload_ended_at timestamptz;
comment on column public.task_attempts.upload_started_at is
    'When its agent began to upload its first output; NULL for none, or unknown';
comment on column public.task_attempts.upload_ended_at is
    'When its last output was stored; NULL for none, or unknown';
