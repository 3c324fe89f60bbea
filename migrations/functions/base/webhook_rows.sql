-- The messages of webhooks about a task, and their receivers.

-- The host and the port of a URL; null if no message can be sent to the URL.
create or replace function public.internal_webhook_host(p_url text) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when length(internal_webhook_host.p_url) <= 2000
                then substring(lower(internal_webhook_host.p_url)
                    from E'^https?://([a-z0-9._:\\[\\]-]+)(?:[/?][\\x21\\x22\\x24-\\x7e]*)?$') end
$$;

create or replace function public.internal_webhook_rule() returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select 'https://host/path of at most 2000 ASCII characters, without a user and without a #fragment'
$$;

-- The owner of a message: an address of `webhooks`, or the tenant that named a webhook_url. Each owner has a bounded
-- share of the messages that are sent at once.
create or replace function public.internal_message_owner(p_webhook text, p_tenant text) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce('webhook ' || internal_message_owner.p_webhook,
                    'tenant ' || coalesce(internal_message_owner.p_tenant, ''))
$$;

-- What a message says of a task. Its size is bounded: a larger result is left out, and read from the API.
create or replace function public.internal_webhook_body(p_task public.tasks, p_event text, p_now timestamptz)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
        'type', internal_webhook_body.p_event,
        'timestamp', internal_webhook_body.p_now,
        'data', jsonb_build_object(
            'id', internal_webhook_body.p_task.id, 'task_type', internal_webhook_body.p_task.task_type,
            'status', internal_webhook_body.p_task.status, 'pool', internal_webhook_body.p_task.pool,
            'tenant', internal_webhook_body.p_task.tenant, 'labels', internal_webhook_body.p_task.labels,
            'attempts', internal_webhook_body.p_task.attempts,
            'created_at', internal_webhook_body.p_task.created_at,
            'failure_code', internal_webhook_body.p_task.failure_code,
            'error_message', left(internal_webhook_body.p_task.error_message, 2000),
            'output_location', left(internal_webhook_body.p_task.output_location, 2000),
            'progress', case when octet_length(internal_webhook_body.p_task.progress::text) <= 16384
                             then internal_webhook_body.p_task.progress end,
            'result_data', case when octet_length(internal_webhook_body.p_task.result_data::text) <= 16384
                                then internal_webhook_body.p_task.result_data end,
            'result_left_out', coalesce(octet_length(internal_webhook_body.p_task.result_data::text) > 16384, false)))
$$;
