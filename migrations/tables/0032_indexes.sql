-- post-deploy
-- no transaction
-- Indexes of the tables that may have a user's rows, which are built while others write (`migrate` removes an invalid index
-- that an interrupted build has left, and builds it again), and constraints of `workers`, whose validation blocks no writer.
create index concurrently if not exists tasks_recent on public.tasks (created_at desc);

create index concurrently if not exists workers_live on public.workers (fleet, id) where status <> 'terminated';
create index concurrently if not exists workers_recent on public.workers (fleet, pool, created_at desc);
create index concurrently if not exists workers_ended_bringups on public.workers (fleet, bringup_ended_at)
    where bringup_ended_at is not null;
-- The machine faults of the last hour, which each tick reads.
create index concurrently if not exists workers_faults on public.workers (fleet, ending_since)
    where exit_cause in ('gpu_fault', 'host_fault');
-- The workers that a cluster reserves or has had.
create index concurrently if not exists workers_cluster on public.workers (cluster, id) where cluster is not null;

alter table public.workers validate constraint workers_fleet_named;
alter table public.workers validate constraint workers_pool_named;
alter table public.workers validate constraint workers_reserved;
alter table public.workers validate constraint workers_status_known;
alter table public.workers validate constraint workers_stage_known;
alter table public.workers validate constraint workers_waiting_on_known;
alter table public.workers validate constraint workers_exit_cause_known;
alter table public.workers validate constraint workers_live_waits;
alter table public.workers validate constraint workers_exit_has_cause;

-- A comment blocks no writer.
comment on column public.workers.last_heartbeat is 'Of the current launch; never defaulted to now';
comment on column public.workers.state_since is 'When status last changed; the idle clock';
comment on column public.workers.drain_requested_at is 'An operator or the planner wants it gone, its tasks finished';
comment on column public.workers.stop_requested_at is 'It is wanted gone now, its tasks given up';
comment on column public.workers.reserved_usd is 'What ending it in good order may still cost: part of the committed budget';
comment on column public.workers.billing_since is 'When its pod got a machine, as far as it was seen: costs count from here';
comment on column public.workers.nonce is 'The current launch of its agent; any other is fenced';
comment on column public.workers.token_jti is 'The one token that is accepted; null revokes it';
comment on column public.workers.claim_no is 'The number from which the current launch may claim; a claim that took tasks has its number in task_attempts';
comment on column public.workers.agent is 'What the agent said of itself when it registered';
comment on column public.workers.log_bytes is '{launch: {stream: bytes}} as heartbeats last told';
comment on column public.workers.release is 'image@code that it runs';
comment on column public.workers.reserved_usd_per_hour is 'Its price, before the provider has told it';
comment on column public.workers.bringup_ended_at is 'When it left spawning, promoted or not';
comment on column public.workers.billing_until is 'When its pod was last known to be there: nothing later is booked';
comment on column public.workers.ending_since is 'When it began to end, whatever it was before';
comment on column public.workers.held_back is 'Why it claims no more: {since, first, failures, types, codes}';
comment on column public.tasks.attempts is 'How often it was claimed: the fencing token of the claim that holds it';
comment on column public.tasks.pool is 'NULL in a write: by task type';
comment on column public.tasks.priority is 'Higher first, then age';
comment on column public.tasks.max_attempts is 'NULL in a write: by task type';
comment on column public.tasks.dedupe_key is 'Unique while the task is Queued or In Progress';
comment on column public.tasks.failed_at_point is 'Claiming, Processing or Completion';
comment on column public.tasks.tenant is 'On whose behalf it runs; NULL for nobody in particular';
comment on column public.tasks.labels is
    'An object of at most 16 keys (1 to 63 characters) with texts of at most 200 characters; NULL for none';
comment on column public.tasks.webhook_url is 'It gets a signed message when the task ends; NULL for none';
comment on column public.tasks.webhook_progress is 'Whether webhook_url also gets the progress, a message in 10 s at most';
comment on column public.tasks.traceparent is 'The trace that it is a part of, 00-<trace>-<span>-<flags>; NULL for none';
comment on column public.tasks.concurrency_key is 'Tasks with the same key run at once at most as often as its limit allows; NULL for none';
comment on column public.workers.cluster is 'The cluster that reserves it since its intent; NULL: it takes tasks of its pool';
