-- A database as the last development version made it, before the first release (migrations 20261121000000 to
-- 20261202020300, which are no longer in the repository): tables, constraints, indexes, triggers and the signatures of the
-- functions, whose bodies are stubs. Made once, with pg_dump 18 --schema-only --no-owner --schema=public, of a server with
-- Supabase's roles and default privileges. The adoption test applies it.
set check_function_bodies = off;

CREATE FUNCTION public.fleet_answer(p_fleet text, p_term bigint, p_answers jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_asks(p_fleet text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.fleet_attempt_close(p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text, p_exception_type text, p_evidence jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_attempt_note(p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_attempt_open(p_fleet text, p_term bigint, p_worker_id text, p_stage text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_changes(p_digest text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_cost(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_decisions(p_fleet text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_declare_programs(p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_declare_release(p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_describe() RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_efficiency(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_heartbeats(p_beats jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_leadership(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_log_begin(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.fleet_log_lost(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_first bigint, p_last bigint, p_reason text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.fleet_log_shipped(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_metrics(p_fleet text, p_since timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_move(p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_pause(p_fleet text, p_pool text, p_reason text, p_for_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_record_decision(p_fleet text, p_term bigint, p_decision jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_report(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_request_termination(p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_rescue(p_fleet text, p_term bigint, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_rescue_overdue(p_fleet text, p_term bigint, p_over_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_resign(p_fleet text, p_holder text, p_term bigint, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_retain(p_fleet text, p_term bigint, p_every_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_retention(p_fleet text, p_term bigint, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_scaling_explain(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_store_away(p_fleet text, p_term bigint, p_reason text, p_since timestamp with time zone, p_for_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_strike(p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb, p_avoid_s numeric, p_after integer, p_memory_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.fleet_workers(p_fleet text, p_all boolean, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_ask(p_worker_id text, p_method text, p_subject text, p_terms jsonb, p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_attempts_removed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_because(p_actor text, p_term bigint, p_reason text) RETURNS void LANGUAGE sql AS $$select 'a stub'$$;
CREATE TABLE public.workers (
    id text NOT NULL,
    instance_type text DEFAULT 'unknown'::text NOT NULL,
    status text DEFAULT 'spawning'::text NOT NULL,
    last_heartbeat timestamp with time zone,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    fleet text DEFAULT 'default'::text NOT NULL,
    pool text DEFAULT 'default'::text NOT NULL,
    state_since timestamp with time zone DEFAULT now() NOT NULL,
    state_reason text,
    stage text,
    stage_since timestamp with time zone DEFAULT now() NOT NULL,
    waiting_on text,
    waiting_for text,
    deadline_at timestamp with time zone,
    next_attempt_at timestamp with time zone,
    exit_cause text,
    failure_code text,
    drain_requested_at timestamp with time zone,
    stop_requested_at timestamp with time zone,
    terminated_at timestamp with time zone,
    pod_id text,
    ssh_host text,
    ssh_port integer,
    host_key text,
    gpu_type text,
    gpu_count integer DEFAULT 1 NOT NULL,
    data_center text,
    machine_id text,
    price_usd_per_hour numeric,
    reserved_usd numeric DEFAULT 0 NOT NULL,
    billing_since timestamp with time zone,
    nonce text,
    code_sha text,
    token_jti text,
    claim_no bigint DEFAULT 0 NOT NULL,
    own_program boolean DEFAULT false NOT NULL,
    heartbeat_s numeric DEFAULT 20 NOT NULL,
    lease_s numeric DEFAULT 60 NOT NULL,
    agent jsonb,
    health jsonb,
    log_bytes jsonb DEFAULT '{}'::jsonb NOT NULL,
    release text,
    reserved_usd_per_hour numeric DEFAULT 0 NOT NULL,
    climb_ended_at timestamp with time zone,
    promoted_at timestamp with time zone,
    billing_until timestamp with time zone,
    ending_since timestamp with time zone,
    held_back jsonb,
    CONSTRAINT workers_exit_cause_known CHECK ((exit_cause = ANY (ARRAY['idle_timeout'::text, 'scale_down'::text, 'manual'::text, 'shutdown'::text, 'max_lifetime'::text, 'budget'::text, 'superseded'::text, 'spawn_failed'::text, 'heartbeat_lost'::text, 'task_stuck'::text, 'gpu_fault'::text, 'host_fault'::text, 'pod_lost'::text, 'stale_code'::text, 'agent_crashed'::text, 'worker_sick'::text, 'release_bad'::text]))),
    CONSTRAINT workers_exit_has_cause CHECK (((status <> ALL (ARRAY['terminating'::text, 'terminated'::text])) OR (exit_cause IS NOT NULL))),
    CONSTRAINT workers_fleet_named CHECK (((fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(fleet) <= 63))),
    CONSTRAINT workers_live_waits CHECK (((status = 'terminated'::text) OR ((stage IS NOT NULL) AND (waiting_on IS NOT NULL) AND (deadline_at IS NOT NULL) AND (next_attempt_at IS NOT NULL)))),
    CONSTRAINT workers_pool_named CHECK (((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(pool) <= 63))),
    CONSTRAINT workers_reserved CHECK (((reserved_usd >= (0)::numeric) AND (reserved_usd_per_hour >= (0)::numeric))),
    CONSTRAINT workers_stage_known CHECK ((stage = ANY (ARRAY['intent'::text, 'pod_created'::text, 'pod_running'::text, 'ssh_details'::text, 'tcp'::text, 'ssh_auth'::text, 'exec'::text, 'identity'::text, 'platform'::text, 'gpu_inventory'::text, 'gpu_health'::text, 'gpu_fabric'::text, 'deploy'::text, 'process'::text, 'heartbeat'::text, 'promoted'::text, 'draining'::text, 'flushing'::text, 'deleting'::text, 'gone'::text]))),
    CONSTRAINT workers_status_known CHECK ((status = ANY (ARRAY['spawning'::text, 'active'::text, 'idle'::text, 'terminating'::text, 'terminated'::text]))),
    CONSTRAINT workers_waiting_on_known CHECK ((waiting_on = ANY (ARRAY['orchestrator'::text, 'provider'::text, 'worker'::text, 'operator'::text, 'capacity'::text, 'budget'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
COMMENT ON COLUMN public.workers.last_heartbeat IS 'Of the current launch; never defaulted to now';
COMMENT ON COLUMN public.workers.state_since IS 'When status last changed; the idle clock';
COMMENT ON COLUMN public.workers.drain_requested_at IS 'An operator or the planner wants it gone, its tasks finished';
COMMENT ON COLUMN public.workers.stop_requested_at IS 'It is wanted gone now, its tasks given up';
COMMENT ON COLUMN public.workers.reserved_usd IS 'What ending it in good order may still cost: part of the committed budget';
COMMENT ON COLUMN public.workers.billing_since IS 'When its pod got a machine, as far as it was seen: costs count from here';
COMMENT ON COLUMN public.workers.nonce IS 'The current launch of its agent; any other is fenced';
COMMENT ON COLUMN public.workers.token_jti IS 'The one token that is accepted; null revokes it';
COMMENT ON COLUMN public.workers.claim_no IS 'The number from which the current launch may claim; a claim that took tasks has its number in task_attempts';
COMMENT ON COLUMN public.workers.agent IS 'What the agent said of itself when it registered';
COMMENT ON COLUMN public.workers.log_bytes IS '{launch: {stream: bytes}} as heartbeats last told';
COMMENT ON COLUMN public.workers.release IS 'image@code that it runs';
COMMENT ON COLUMN public.workers.reserved_usd_per_hour IS 'Its price, before the provider has told it';
COMMENT ON COLUMN public.workers.climb_ended_at IS 'When it left spawning, promoted or not';
COMMENT ON COLUMN public.workers.billing_until IS 'When its pod was last known to be there: nothing later is booked';
COMMENT ON COLUMN public.workers.ending_since IS 'When it began to end, whatever it was before';
COMMENT ON COLUMN public.workers.held_back IS 'Why it claims no more: {since, first, failures, types, codes}';
CREATE FUNCTION public.internal_caller(p_worker_id text, p_lock boolean) RETURNS public.workers LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_budget(p_fleet text, p_worker_id text, p_usd numeric, p_usd_per_hour numeric, p_budget jsonb, p_now timestamp with time zone) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_id(p_id text, p_what text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_keys(p_object jsonb, p_allowed text[], p_what text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_size(p_value jsonb, p_limit_bytes integer, p_what text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_task(p_task jsonb, p_index integer) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_check_term(p_fleet text, p_term bigint, p_what text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_clock(p_now timestamp with time zone) RETURNS timestamp with time zone LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_close_attempts(p_ids uuid[], p_gone boolean) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_code_checked() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_cost_booking() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_dependants(p_ids uuid[]) RETURNS uuid[] LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_done_elsewhere(p_worker public.workers) RETURNS timestamp with time zone LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_end_cycle(p_ids uuid[]) RETURNS void LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamp with time zone) RETURNS boolean LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_events_are_final() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_fail_behind(p_ended uuid[], p_most integer) RETURNS uuid[] LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_failed_behind(p_id uuid) RETURNS uuid[] LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_fire_deferred() RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamp with time zone) RETURNS text LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone, INOUT p_passed uuid[], OUT tasks jsonb) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_hold(p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt integer, p_outcomes text[]) RETURNS text LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_hold_back(p_worker public.workers, p_now timestamp with time zone) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE TABLE public.tasks (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    task_type text NOT NULL,
    params jsonb DEFAULT '{}'::jsonb NOT NULL,
    status text DEFAULT 'Queued'::text NOT NULL,
    worker_id text,
    attempts integer DEFAULT 0 NOT NULL,
    output_location text,
    result_data jsonb,
    error_message text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    generation_started_at timestamp with time zone,
    generation_processed_at timestamp with time zone,
    pool text,
    priority integer DEFAULT 0 NOT NULL,
    max_attempts integer,
    uncounted integer DEFAULT 0 NOT NULL,
    timeout_s numeric,
    run_after timestamp with time zone,
    depends_on uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    blocked boolean DEFAULT false NOT NULL,
    dedupe_key text,
    lease_expires_at timestamp with time zone,
    progress jsonb,
    progress_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    failure_code text,
    failed_at_point text,
    pool_by_type boolean DEFAULT false NOT NULL,
    output_object jsonb,
    CONSTRAINT tasks_attempts_counted CHECK (((attempts >= 0) AND ((uncounted >= 0) AND (uncounted <= attempts)) AND (max_attempts > 0))),
    CONSTRAINT tasks_filled CHECK (((pool IS NOT NULL) AND (max_attempts IS NOT NULL))),
    CONSTRAINT tasks_pool_named CHECK (((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(pool) <= 63))),
    CONSTRAINT tasks_status_known CHECK ((status = ANY (ARRAY['Queued'::text, 'In Progress'::text, 'Complete'::text, 'Failed'::text, 'Cancelled'::text])))
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
COMMENT ON COLUMN public.tasks.attempts IS 'How often it was claimed: the fencing token of the claim that holds it';
COMMENT ON COLUMN public.tasks.pool IS 'NULL in a write: by task type';
COMMENT ON COLUMN public.tasks.priority IS 'Higher first, then age';
COMMENT ON COLUMN public.tasks.max_attempts IS 'NULL in a write: by task type';
COMMENT ON COLUMN public.tasks.uncounted IS 'Attempts that do not count against max_attempts: given back unstarted, or before a retry';
COMMENT ON COLUMN public.tasks.blocked IS 'Queued, but a task in depends_on is not Complete; kept by triggers';
COMMENT ON COLUMN public.tasks.dedupe_key IS 'Unique while the task is Queued or In Progress';
COMMENT ON COLUMN public.tasks.lease_expires_at IS 'Renewed by heartbeats; past it the task is rescued';
COMMENT ON COLUMN public.tasks.progress_at IS 'When progress last changed; the stuck clock';
COMMENT ON COLUMN public.tasks.failed_at_point IS 'Claiming, Processing or Completion';
COMMENT ON COLUMN public.tasks.pool_by_type IS 'Its pool was not named by whoever submitted it, but filled in';
CREATE FUNCTION public.internal_holder(p_task public.tasks, p_now timestamp with time zone, OUT held_by text, OUT rescue_at timestamp with time zone) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_inputs(p_task_id uuid, p_limit_bytes integer, OUT bytes bigint, OUT code text, OUT message text) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_is_anothers(p_fleet text, p_worker_id text, p_now timestamp with time zone) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_here(p_fleet text, p_pool text, p_release text) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_lost(p_task public.tasks, p_now timestamp with time zone, p_over_s numeric) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamp with time zone) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_over_postgrest() RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_passing(p_sqlstate text) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_pod() RETURNS boolean LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_is_store_away(p_fleet text, p_now timestamp with time zone) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_is_unreadable(p_value jsonb) RETURNS boolean LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_is_unrescuable(p_task_id uuid, p_now timestamp with time zone) RETURNS boolean LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_leader(p_fleet text, p_now timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_lock_briefly(p_ids uuid[], p_share boolean) RETURNS boolean LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_lock_queued(p_ids uuid[], INOUT p_waits integer, OUT locked uuid[], OUT missed uuid[]) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_mark(p_pool text, p_now timestamp with time zone, OUT place integer, OUT created_at timestamp with time zone, OUT id uuid, OUT lowered integer) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_needing(p_ids uuid[]) RETURNS uuid[] LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_now() RETURNS timestamp with time zone LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_open_interval(p_worker public.workers, p_now timestamp with time zone) RETURNS TABLE(kind text, from_at timestamp with time zone, to_at timestamp with time zone, usd numeric) LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_output_prefix(p_task_id uuid, p_attempt integer, p_nonce text) RETURNS text LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_paused(p_fleet text, p_now timestamp with time zone) RETURNS text LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_pauses(p_fleet text, p_now timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_pool_decision(p_fleet text, p_pool text) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_raise_floor(p_attempt integer) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_raise_mark(p_pool text, p_now timestamp with time zone, p_anew boolean) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_reference(p_reference text, p_ids uuid[], p_index integer) RETURNS uuid LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_refuse(p_code text, p_what text, p_why text DEFAULT ''::text, p_fix text DEFAULT ''::text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_refused(p_ids uuid[], p_what text, p_reason text) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_refused_ready(p_now timestamp with time zone) RETURNS TABLE(pool text, n bigint) LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamp with time zone) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric DEFAULT 0, p_fleet text DEFAULT NULL::text) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_rescue_one(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_now timestamp with time zone) RETURNS text LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_results(p_ids uuid[]) RETURNS TABLE(id uuid, task_type text, output_location text, result_data jsonb, output_object jsonb) LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_roll_up(p_anew boolean) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle(p_ids uuid[], p_gone uuid[]) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_again(p_nos bigint[], p_waits boolean) RETURNS integer LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_all(p_now timestamp with time zone) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_settle_cycles(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_each(p_is_cycle boolean, p_ids uuid[], p_gone uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_late() RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_settle_new(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_shares(p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone, p_task_id uuid DEFAULT NULL::uuid) RETURNS TABLE(fleet text, task_id uuid, attempt integer, outcome text, seconds numeric, usd numeric) LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_sift(p_rows tid[], p_limit_bytes integer, p_now timestamp with time zone, INOUT p_passed uuid[], OUT fit tid[]) RETURNS record LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_spent(p_fleet text, p_without text, p_now timestamp with time zone) RETURNS TABLE(today_usd numeric, committed_usd numeric, hourly_usd numeric) LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_stuck(p_ids uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_submit(p_tasks jsonb, p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_succeeding(p_worker public.workers, p_task_type text, p_now timestamp with time zone) RETURNS text LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_task_bounded() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_task_changing() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_task_routed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_tasks_added() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_tasks_changed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_tasks_counted() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_tasks_removed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_try_refused(p_task_id uuid) RETURNS void LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_turns(p_since timestamp with time zone, p_now timestamp with time zone, p_task_id uuid DEFAULT NULL::uuid) RETURNS TABLE(worker_id text, task_id uuid, attempt integer, outcome text, from_at timestamp with time zone, to_at timestamp with time zone, of bigint) LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_unsettled(p_ids uuid[]) RETURNS void LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_upload_terms(p_item jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_waiting_behind(p_ended uuid[], p_most integer) RETURNS uuid[] LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_wanted(p_worker public.workers) RETURNS text LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.internal_worker_billing() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_worker_changed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_worker_changing() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_worker_climbed() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.internal_worker_costs(p_worker public.workers, p_now timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_worker_json(p_worker public.workers) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_worker_report(p_worker public.workers, p_now timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.internal_worker_sick() RETURNS trigger LANGUAGE plpgsql AS $$begin return new; end$$;
CREATE FUNCTION public.task_cancel(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.task_get(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.task_list(p_status text, p_task_type text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE sql AS $$select 'a stub'$$;
CREATE FUNCTION public.task_retry(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.task_submit(p_tasks jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_reason text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE FUNCTION public.worker_renew(p_worker_id text, p_nonce text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb LANGUAGE plpgsql AS $$begin raise 'a stub'; end$$;
CREATE VIEW public.active_workers_health WITH (security_invoker='true') AS
 SELECT w.id,
    w.fleet,
    w.pool,
    w.instance_type,
    w.gpu_type,
    w.status,
    w.stage,
    w.pod_id,
    w.created_at,
    w.last_heartbeat,
    EXTRACT(epoch FROM (now() - w.last_heartbeat)) AS heartbeat_age_seconds,
    EXTRACT(epoch FROM (now() - w.state_since)) AS state_age_seconds,
    w.waiting_on,
    w.waiting_for,
    w.deadline_at,
    g.total AS vram_total_mb,
    g.used AS vram_used_mb,
        CASE
            WHEN (g.total > (0)::numeric) THEN round(((g.used * (100)::numeric) / g.total), 1)
            ELSE NULL::numeric
        END AS vram_usage_percent,
    t.id AS current_task_id,
    t.status AS current_task_status,
    t.task_type AS current_task_type,
    EXTRACT(epoch FROM (now() - t.generation_started_at)) AS task_runtime_seconds,
        CASE
            WHEN ((w.status = 'spawning'::text) AND (w.state_since < (now() - '00:05:00'::interval))) THEN 'SPAWNING_TOO_LONG'::text
            WHEN ((w.status = ANY (ARRAY['active'::text, 'idle'::text])) AND (COALESCE(w.last_heartbeat, w.state_since) < (now() - '00:10:00'::interval))) THEN 'NO_HEARTBEAT'::text
            WHEN ((w.status = 'terminating'::text) AND (w.state_since < (now() - '00:10:00'::interval))) THEN 'TERMINATING_TOO_LONG'::text
            ELSE 'OK'::text
        END AS health_status
   FROM ((public.workers w
     LEFT JOIN LATERAL ( SELECT
                CASE
                    WHEN (v.total ~ '^\d{1,9}$'::text) THEN (v.total)::numeric
                    ELSE NULL::numeric
                END AS total,
                CASE
                    WHEN (v.used ~ '^\d{1,9}$'::text) THEN (v.used)::numeric
                    ELSE NULL::numeric
                END AS used
           FROM ( SELECT COALESCE((w.health ->> 'vram_total_mb'::text), (w.metadata ->> 'vram_total_mb'::text)) AS total,
                    COALESCE((w.health ->> 'vram_used_mb'::text), (w.metadata ->> 'vram_used_mb'::text)) AS used) v) g ON (true))
     LEFT JOIN LATERAL ( SELECT t_1.id,
            t_1.status,
            t_1.task_type,
            t_1.generation_started_at
           FROM public.tasks t_1
          WHERE ((t_1.worker_id = w.id) AND (t_1.status = 'In Progress'::text))
          ORDER BY t_1.generation_started_at
         LIMIT 1) t ON (true))
  WHERE (w.status <> 'terminated'::text);
CREATE TABLE public.costs (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    fleet text NOT NULL,
    kind text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    usd numeric NOT NULL,
    CONSTRAINT costs_check CHECK ((to_at >= from_at)),
    CONSTRAINT costs_kind_check CHECK ((kind = ANY (ARRAY['booting'::text, 'busy'::text, 'idle'::text, 'draining'::text])))
);
ALTER TABLE public.costs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.costs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.database_identity (
    is_this boolean DEFAULT true NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT database_identity_is_this_check CHECK (is_this)
);
CREATE TABLE public.decisions (
    id bigint NOT NULL,
    fleet text NOT NULL,
    pool text NOT NULL,
    term bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    rule text NOT NULL,
    target integer NOT NULL,
    inputs jsonb NOT NULL,
    actions jsonb NOT NULL,
    blocked jsonb NOT NULL
);
ALTER TABLE public.decisions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.decisions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.fleet_chores (
    fleet text NOT NULL,
    name text NOT NULL,
    done_at timestamp with time zone NOT NULL,
    CONSTRAINT fleet_chores_name_check CHECK ((name <> ''::text))
);
CREATE TABLE public.fleet_lease (
    fleet text NOT NULL,
    holder text NOT NULL,
    term bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    since timestamp with time zone NOT NULL,
    unled_from timestamp with time zone
);
COMMENT ON COLUMN public.fleet_lease.unled_from IS 'When the lease before this term ended: from then until `since` no leader was there, or it could not reach the database.';
CREATE TABLE public.fleet_settings (
    fleet text NOT NULL,
    name text NOT NULL,
    value jsonb NOT NULL,
    reason text NOT NULL,
    set_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone
);
CREATE TABLE public.hosts (
    fleet text NOT NULL,
    key text NOT NULL,
    strikes integer NOT NULL,
    evidence jsonb NOT NULL,
    last_failure timestamp with time zone NOT NULL,
    avoid_until timestamp with time zone,
    CONSTRAINT hosts_key_check CHECK ((key ~ '^(machine|place):.'::text)),
    CONSTRAINT hosts_strikes_check CHECK ((strikes > 0))
);
CREATE TABLE public.log_objects (
    worker_id text NOT NULL,
    boot_id text NOT NULL,
    stream text NOT NULL,
    seq integer NOT NULL,
    first_byte bigint NOT NULL,
    last_byte bigint,
    sha256 text,
    key text,
    begun_at timestamp with time zone NOT NULL,
    shipped_at timestamp with time zone,
    declared_lost boolean DEFAULT false NOT NULL,
    reason text,
    CONSTRAINT log_objects_check CHECK (((first_byte >= 0) AND ((last_byte IS NULL) OR (last_byte > first_byte)))),
    CONSTRAINT log_objects_check1 CHECK ((declared_lost OR ((last_byte IS NOT NULL) AND (sha256 IS NOT NULL) AND (key IS NOT NULL)))),
    CONSTRAINT log_objects_check2 CHECK ((NOT (declared_lost AND (shipped_at IS NOT NULL)))),
    CONSTRAINT log_objects_check3 CHECK (((NOT declared_lost) OR (reason IS NOT NULL)))
);
CREATE TABLE public.offers (
    fleet text NOT NULL,
    key text NOT NULL,
    cooldown_until timestamp with time zone,
    refusals integer DEFAULT 0 NOT NULL,
    last_refusal timestamp with time zone,
    last_code text,
    last_success timestamp with time zone,
    probe_budget integer,
    CONSTRAINT offers_probe_budget_check CHECK ((probe_budget > 0))
);
COMMENT ON COLUMN public.offers.probe_budget IS 'Create calls that may be under way at once: 1 after a refusal, doubled by a success';
CREATE VIEW public.orchestrator_status WITH (security_invoker='true') AS
 SELECT t.queued_tasks,
    t.claimable_tasks,
    t.blocked_tasks,
    t.in_progress_tasks,
    t.completed_tasks,
    t.failed_tasks,
    t.cancelled_tasks,
    w.spawning_workers,
    w.active_workers,
    w.idle_workers,
    w.terminating_workers,
    w.total_workers,
    w.stale_workers,
    t.stuck_tasks,
    w.usd_per_hour,
    ( SELECT string_agg(((l.fleet || ': '::text) || l.holder), ', '::text ORDER BY l.fleet) AS string_agg
           FROM public.fleet_lease l
          WHERE (l.expires_at > now())) AS leader,
    now() AS snapshot_time
   FROM ( SELECT count(*) FILTER (WHERE (t_1.status = 'Queued'::text)) AS queued_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'Queued'::text) AND (NOT t_1.blocked) AND COALESCE((t_1.run_after <= now()), true))) AS claimable_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'Queued'::text) AND t_1.blocked)) AS blocked_tasks,
            count(*) FILTER (WHERE (t_1.status = 'In Progress'::text)) AS in_progress_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Complete'::text)) AS completed_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Failed'::text)) AS failed_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Cancelled'::text)) AS cancelled_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'In Progress'::text) AND (t_1.lease_expires_at < now()))) AS stuck_tasks
           FROM public.tasks t_1) t,
    ( SELECT count(*) FILTER (WHERE (w_1.status = 'spawning'::text)) AS spawning_workers,
            count(*) FILTER (WHERE (w_1.status = 'active'::text)) AS active_workers,
            count(*) FILTER (WHERE (w_1.status = 'idle'::text)) AS idle_workers,
            count(*) FILTER (WHERE (w_1.status = 'terminating'::text)) AS terminating_workers,
            count(*) AS total_workers,
            count(*) FILTER (WHERE ((w_1.status = ANY (ARRAY['active'::text, 'idle'::text])) AND (COALESCE(w_1.last_heartbeat, w_1.state_since) < (now() - '00:10:00'::interval)))) AS stale_workers,
            COALESCE(sum(w_1.price_usd_per_hour) FILTER (WHERE (w_1.pod_id IS NOT NULL)), (0)::numeric) AS usd_per_hour
           FROM public.workers w_1
          WHERE (w_1.status <> 'terminated'::text)) w;
CREATE TABLE public.task_attempts (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_id text NOT NULL,
    nonce text NOT NULL,
    claim_no bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    outcome text,
    failure_code text,
    exit_class text,
    failed_at_point text,
    message text,
    detail jsonb,
    log_first bigint,
    log_last bigint,
    given_back boolean,
    permanent boolean,
    CONSTRAINT task_attempts_check CHECK (((ended_at IS NULL) = (outcome IS NULL)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
COMMENT ON COLUMN public.task_attempts.given_back IS 'It does not count, because its worker was sick; at most one of a task';
COMMENT ON COLUMN public.task_attempts.permanent IS 'The handler said that another attempt would fail as well';
CREATE TABLE public.worker_attempts (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    term bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    outcome text,
    failure_code text,
    exception_type text,
    evidence jsonb,
    CONSTRAINT worker_attempts_check CHECK (((ended_at IS NULL) = (outcome IS NULL))),
    CONSTRAINT worker_attempts_outcome_check CHECK ((outcome = ANY (ARRAY['ok'::text, 'failed'::text, 'timeout'::text, 'cancelled'::text, 'lost'::text])))
);
CREATE TABLE public.worker_events (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    fleet text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    from_stage text,
    to_stage text,
    reason text NOT NULL,
    term bigint,
    actor text NOT NULL,
    at timestamp with time zone NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL
);
CREATE VIEW public.recent_errors WITH (security_invoker='true') AS
 SELECT a.ended_at AS at,
    'bring-up'::text AS source,
    a.worker_id,
    NULL::uuid AS task_id,
    a.failure_code AS code,
    (((a.stage || ' '::text) || a.outcome) || COALESCE((': '::text || (a.evidence ->> 'error'::text)), ''::text)) AS message
   FROM public.worker_attempts a
  WHERE ((a.outcome = ANY (ARRAY['failed'::text, 'timeout'::text, 'lost'::text])) AND (a.ended_at > (now() - '24:00:00'::interval)))
UNION ALL
 SELECT e.at,
    'worker'::text AS source,
    e.worker_id,
    NULL::uuid AS task_id,
    COALESCE((e.detail ->> 'failure_code'::text), (e.detail ->> 'exit_cause'::text)) AS code,
    e.reason AS message
   FROM public.worker_events e
  WHERE ((e.to_state = 'terminating'::text) AND (e.from_state <> 'terminating'::text) AND (e.at > (now() - '24:00:00'::interval)) AND ((e.detail ->> 'exit_cause'::text) = ANY (ARRAY['spawn_failed'::text, 'heartbeat_lost'::text, 'task_stuck'::text, 'gpu_fault'::text, 'host_fault'::text, 'pod_lost'::text, 'stale_code'::text, 'agent_crashed'::text])))
UNION ALL
 SELECT a.ended_at AS at,
    'task'::text AS source,
    a.worker_id,
    a.task_id,
    COALESCE(a.failure_code, a.exit_class, a.outcome) AS code,
    a.message
   FROM public.task_attempts a
  WHERE ((a.outcome = ANY (ARRAY['failed'::text, 'lost'::text])) AND (a.ended_at > (now() - '24:00:00'::interval)));
CREATE VIEW public.recent_task_activity WITH (security_invoker='true') AS
 SELECT id,
    task_type,
    pool,
    status,
    worker_id,
    attempts,
    created_at,
    updated_at,
    generation_started_at,
    generation_processed_at,
    EXTRACT(epoch FROM (generation_started_at - created_at)) AS queue_seconds,
    EXTRACT(epoch FROM (COALESCE(generation_processed_at, now()) - generation_started_at)) AS processing_seconds,
    output_location,
    failure_code,
    error_message
   FROM public.tasks t
  WHERE (updated_at > (now() - '24:00:00'::interval));
CREATE TABLE public.releases (
    fleet text NOT NULL,
    release text NOT NULL,
    promoted_at timestamp with time zone NOT NULL
);
CREATE TABLE public.schema_migrations (
    version text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE SEQUENCE public.task_attempts_floor
    AS integer
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;
CREATE TABLE public.task_counts (
    pool text NOT NULL,
    kind text NOT NULL,
    n bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY public.task_counts REPLICA IDENTITY FULL;
COMMENT ON TABLE public.task_counts IS 'Differences; the sum for a pool and kind is the number of its queued tasks';
CREATE TABLE public.task_marks (
    no bigint NOT NULL,
    pool text NOT NULL,
    seen pg_snapshot,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    place integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');
COMMENT ON TABLE public.task_marks IS 'Where claims begin to look in each pool; see the migration claim_marks';
ALTER TABLE public.task_marks ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.task_marks_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW public.task_queue_analysis WITH (security_invoker='true') AS
 SELECT pool,
    task_type,
    status,
    count(*) AS tasks,
    count(*) FILTER (WHERE ((status = 'Queued'::text) AND blocked)) AS blocked_by_dependencies,
    count(*) FILTER (WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after > now()))) AS scheduled,
    EXTRACT(epoch FROM (now() - min(created_at))) AS oldest_seconds,
    round(avg(EXTRACT(epoch FROM (generation_started_at - created_at))), 1) AS mean_wait_seconds,
    round(avg(EXTRACT(epoch FROM (generation_processed_at - generation_started_at))) FILTER (WHERE (status = 'Complete'::text)), 1) AS mean_processing_seconds
   FROM public.tasks t
  GROUP BY pool, task_type, status;
CREATE TABLE public.task_refusals (
    task_id uuid NOT NULL,
    what text NOT NULL,
    reason text NOT NULL,
    times integer DEFAULT 1 NOT NULL,
    refused_at timestamp with time zone NOT NULL,
    retry_at timestamp with time zone NOT NULL,
    CONSTRAINT task_refusals_what_known CHECK ((what = ANY (ARRAY['claim'::text, 'rescue'::text, 'settle'::text])))
);
COMMENT ON TABLE public.task_refusals IS 'Tasks that a trigger or a constraint of a user keeps from being claimed, rescued or settled';
CREATE TABLE public.task_results (
    id uuid NOT NULL,
    task_type text NOT NULL,
    output_location text,
    result_data jsonb,
    deleted_at timestamp with time zone NOT NULL,
    output_object jsonb
);
COMMENT ON TABLE public.task_results IS 'Of Complete tasks that were deleted while another task needed them';
CREATE TABLE public.task_types (
    task_type text NOT NULL,
    fleet text NOT NULL,
    pool text,
    timeout_s numeric,
    max_attempts integer,
    declared_at timestamp with time zone NOT NULL,
    CONSTRAINT task_types_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT task_types_pool_check CHECK ((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'::text)),
    CONSTRAINT task_types_timeout_s_check CHECK ((timeout_s > (0)::numeric))
);
CREATE TABLE public.tasks_unsettled (
    no bigint NOT NULL,
    task_ids uuid[] NOT NULL,
    noted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tried_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
);
COMMENT ON TABLE public.tasks_unsettled IS 'Queued tasks whose dependencies, or which themselves, another transaction may be changing';
ALTER TABLE public.tasks_unsettled ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.tasks_unsettled_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.worker_asks (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    method text NOT NULL,
    subject text NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    answer jsonb,
    terms jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT worker_asks_method_check CHECK ((method = ANY (ARRAY['GET'::text, 'PUT'::text, 'HEAD'::text, 'RENEW'::text]))),
    CONSTRAINT worker_asks_subject_check CHECK ((octet_length(subject) <= 4096))
);
COMMENT ON COLUMN public.worker_asks.method IS 'GET and PUT: sign a URL; HEAD: is the object there?; RENEW: the next token';
COMMENT ON COLUMN public.worker_asks.subject IS 'A granted key; with HEAD a location; with RENEW the jti of the token';
COMMENT ON COLUMN public.worker_asks.answer IS '{url, location}, {found}, {sealed: [text]} or {refused: true}';
ALTER TABLE public.worker_asks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_asks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE public.worker_attempts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE public.worker_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW public.worker_performance WITH (security_invoker='true') AS
 SELECT w.id,
    w.fleet,
    w.pool,
    w.gpu_type,
    w.status,
    w.created_at,
    w.terminated_at,
    w.exit_cause,
    w.failure_code,
    a.done AS tasks_done,
    a.failed AS tasks_failed,
        CASE
            WHEN ((a.done + a.failed) > 0) THEN round((((a.done)::numeric * 100.0) / ((a.done + a.failed))::numeric), 1)
            ELSE NULL::numeric
        END AS success_percent,
    round(a.mean_seconds, 1) AS mean_task_seconds,
    EXTRACT(epoch FROM (COALESCE(w.terminated_at, now()) - w.created_at)) AS uptime_seconds,
    c.usd AS cost_usd,
        CASE
            WHEN (c.seconds > (0)::numeric) THEN round(((c.busy_seconds / c.seconds) * (100)::numeric), 1)
            ELSE NULL::numeric
        END AS busy_percent,
        CASE
            WHEN (a.done > 0) THEN round((c.usd / (a.done)::numeric), 6)
            ELSE NULL::numeric
        END AS usd_per_task
   FROM ((public.workers w
     CROSS JOIN LATERAL ( SELECT count(*) FILTER (WHERE (a_1.outcome = 'complete'::text)) AS done,
            count(*) FILTER (WHERE (a_1.outcome = ANY (ARRAY['failed'::text, 'lost'::text]))) AS failed,
            avg(EXTRACT(epoch FROM (a_1.ended_at - a_1.started_at))) FILTER (WHERE (a_1.outcome = 'complete'::text)) AS mean_seconds
           FROM public.task_attempts a_1
          WHERE (a_1.worker_id = w.id)) a)
     CROSS JOIN LATERAL ( SELECT COALESCE(sum(c_1.usd), (0)::numeric) AS usd,
            COALESCE(sum(EXTRACT(epoch FROM (c_1.to_at - c_1.from_at))), (0)::numeric) AS seconds,
            COALESCE(sum(EXTRACT(epoch FROM (c_1.to_at - c_1.from_at))) FILTER (WHERE (c_1.kind = 'busy'::text)), (0)::numeric) AS busy_seconds
           FROM public.costs c_1
          WHERE (c_1.worker_id = w.id)) c)
  WHERE (COALESCE(w.terminated_at, now()) > (now() - '30 days'::interval));
CREATE TABLE public.worker_transitions (
    from_state text NOT NULL,
    to_state text NOT NULL
);
ALTER TABLE ONLY public.costs
    ADD CONSTRAINT costs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.database_identity
    ADD CONSTRAINT database_identity_pkey PRIMARY KEY (is_this);
ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT decisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.fleet_chores
    ADD CONSTRAINT fleet_chores_pkey PRIMARY KEY (fleet, name);
ALTER TABLE ONLY public.fleet_lease
    ADD CONSTRAINT fleet_lease_pkey PRIMARY KEY (fleet);
ALTER TABLE ONLY public.fleet_settings
    ADD CONSTRAINT fleet_settings_pkey PRIMARY KEY (fleet, name);
ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT hosts_pkey PRIMARY KEY (fleet, key);
ALTER TABLE ONLY public.log_objects
    ADD CONSTRAINT log_objects_pkey PRIMARY KEY (worker_id, boot_id, stream, seq);
ALTER TABLE ONLY public.offers
    ADD CONSTRAINT offers_pkey PRIMARY KEY (fleet, key);
ALTER TABLE ONLY public.releases
    ADD CONSTRAINT releases_pkey PRIMARY KEY (fleet, release);
ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.task_attempts
    ADD CONSTRAINT task_attempts_pkey PRIMARY KEY (task_id, attempt);
ALTER TABLE ONLY public.task_marks
    ADD CONSTRAINT task_marks_pkey PRIMARY KEY (no);
ALTER TABLE ONLY public.task_refusals
    ADD CONSTRAINT task_refusals_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY public.task_results
    ADD CONSTRAINT task_results_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.task_types
    ADD CONSTRAINT task_types_pkey PRIMARY KEY (task_type);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.tasks_unsettled
    ADD CONSTRAINT tasks_unsettled_pkey PRIMARY KEY (no);
ALTER TABLE ONLY public.worker_asks
    ADD CONSTRAINT worker_asks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.worker_attempts
    ADD CONSTRAINT worker_attempts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.worker_events
    ADD CONSTRAINT worker_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.worker_transitions
    ADD CONSTRAINT worker_transitions_pkey PRIMARY KEY (from_state, to_state);
ALTER TABLE public.workers
    ADD CONSTRAINT workers_id_safe CHECK ((id ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'::text)) NOT VALID;
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
CREATE INDEX costs_spent ON public.costs USING btree (fleet, to_at) INCLUDE (from_at, usd);
CREATE INDEX costs_worker ON public.costs USING btree (worker_id);
CREATE INDEX decisions_age ON public.decisions USING btree (at);
CREATE INDEX decisions_pool ON public.decisions USING btree (fleet, pool, id DESC);
CREATE INDEX task_attempts_claim ON public.task_attempts USING btree (worker_id, nonce, claim_no);
CREATE INDEX task_attempts_ended ON public.task_attempts USING brin (ended_at) WITH (pages_per_range='8');
CREATE INDEX task_attempts_started ON public.task_attempts USING brin (started_at) WITH (pages_per_range='8');
CREATE INDEX task_attempts_worker ON public.task_attempts USING btree (worker_id, started_at DESC);
CREATE INDEX task_marks_lowered ON public.task_marks USING btree (pool, xid) WHERE (seen IS NULL);
CREATE INDEX task_marks_raised ON public.task_marks USING btree (pool, no DESC) WHERE (seen IS NOT NULL);
CREATE INDEX task_refusals_due ON public.task_refusals USING btree (retry_at);
CREATE INDEX tasks_claim ON public.tasks USING btree (pool, ((~ priority)), created_at, id) INCLUDE (run_after) WHERE ((status = 'Queued'::text) AND (NOT blocked));
CREATE UNIQUE INDEX tasks_dedupe ON public.tasks USING btree (dedupe_key) WHERE ((dedupe_key IS NOT NULL) AND (status = ANY (ARRAY['Queued'::text, 'In Progress'::text])));
CREATE INDEX tasks_dependants ON public.tasks USING gin (depends_on) WITH (fastupdate=off) WHERE blocked;
CREATE INDEX tasks_needing ON public.tasks USING gin (depends_on) WITH (fastupdate=off) WHERE ((status <> 'Complete'::text) AND (depends_on <> '{}'::uuid[]));
CREATE INDEX tasks_oldest ON public.tasks USING btree (pool, created_at) WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after IS NULL));
CREATE INDEX tasks_recent ON public.tasks USING btree (created_at DESC);
CREATE INDEX tasks_running ON public.tasks USING btree (worker_id) WHERE (status = 'In Progress'::text);
CREATE INDEX tasks_timed ON public.tasks USING btree (pool, run_after) INCLUDE (created_at) WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after IS NOT NULL));
CREATE INDEX tasks_unsettled_next ON public.tasks_unsettled USING btree (tried_at, no);
CREATE INDEX tasks_unsettled_noted ON public.tasks_unsettled USING btree (noted_at);
CREATE UNIQUE INDEX worker_asks_once ON public.worker_asks USING btree (worker_id, method, md5(subject));
CREATE INDEX worker_asks_open ON public.worker_asks USING btree (worker_id) WHERE (answered_at IS NULL);
CREATE INDEX worker_attempts_worker ON public.worker_attempts USING btree (worker_id, id);
CREATE INDEX worker_events_age ON public.worker_events USING brin (at);
CREATE INDEX worker_events_worker ON public.worker_events USING btree (worker_id, id);
CREATE INDEX workers_climbs ON public.workers USING btree (fleet, climb_ended_at) WHERE (climb_ended_at IS NOT NULL);
CREATE INDEX workers_live ON public.workers USING btree (fleet, id) WHERE (status <> 'terminated'::text);
CREATE INDEX workers_recent ON public.workers USING btree (fleet, pool, created_at DESC);
CREATE TRIGGER costs_booking BEFORE INSERT ON public.costs FOR EACH ROW EXECUTE FUNCTION public.internal_cost_booking();
CREATE TRIGGER failure_code_checked BEFORE INSERT OR UPDATE OF failure_code ON public.task_attempts FOR EACH ROW WHEN ((new.failure_code !~ '^[A-Z0-9_]{1,64}$'::text)) EXECUTE FUNCTION public.internal_code_checked();
CREATE TRIGGER failure_code_checked BEFORE INSERT OR UPDATE OF failure_code ON public.tasks FOR EACH ROW WHEN ((new.failure_code !~ '^[A-Z0-9_]{1,64}$'::text)) EXECUTE FUNCTION public.internal_code_checked();
CREATE TRIGGER task_attempts_removed AFTER DELETE ON public.task_attempts REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_attempts_removed();
CREATE TRIGGER task_attempts_renumbered AFTER UPDATE OF task_id, attempt, worker_id, nonce ON public.task_attempts FOR EACH ROW WHEN (((((old.task_id IS DISTINCT FROM new.task_id) OR (old.attempt IS DISTINCT FROM new.attempt)) OR (old.worker_id IS DISTINCT FROM new.worker_id)) OR (old.nonce IS DISTINCT FROM new.nonce))) EXECUTE FUNCTION public.internal_attempts_removed();
CREATE TRIGGER task_attempts_truncated BEFORE TRUNCATE ON public.task_attempts FOR EACH STATEMENT EXECUTE FUNCTION public.internal_attempts_removed();
CREATE TRIGGER tasks_added AFTER INSERT ON public.tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_added();
CREATE TRIGGER tasks_bounded BEFORE INSERT OR UPDATE OF params, depends_on, task_type ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_bounded();
CREATE TRIGGER tasks_changed AFTER UPDATE ON public.tasks REFERENCING OLD TABLE AS was NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_changed();
CREATE TRIGGER tasks_changing BEFORE UPDATE ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_changing();
CREATE TRIGGER tasks_counted_added AFTER INSERT ON public.tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();
CREATE TRIGGER tasks_counted_removed AFTER DELETE ON public.tasks REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();
CREATE TRIGGER tasks_counted_truncated AFTER TRUNCATE ON public.tasks FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();
CREATE TRIGGER tasks_removed AFTER DELETE ON public.tasks REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_removed();
CREATE TRIGGER tasks_removed_all AFTER TRUNCATE ON public.tasks FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_removed();
CREATE TRIGGER tasks_routed BEFORE INSERT ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_routed();
CREATE CONSTRAINT TRIGGER tasks_unsettled_at_commit AFTER INSERT ON public.tasks_unsettled DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.internal_settle_at_commit();
CREATE TRIGGER worker_events_final BEFORE UPDATE ON public.worker_events FOR EACH STATEMENT EXECUTE FUNCTION public.internal_events_are_final();
CREATE TRIGGER workers_added AFTER INSERT ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_changed();
CREATE TRIGGER workers_billing BEFORE UPDATE OF status ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_billing();
CREATE TRIGGER workers_changed AFTER UPDATE ON public.workers FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.stage IS DISTINCT FROM new.stage) OR (old.drain_requested_at IS DISTINCT FROM new.drain_requested_at) OR (old.stop_requested_at IS DISTINCT FROM new.stop_requested_at) OR (old.ssh_host IS DISTINCT FROM new.ssh_host) OR (old.ssh_port IS DISTINCT FROM new.ssh_port))) EXECUTE FUNCTION public.internal_worker_changed();
CREATE TRIGGER workers_changing BEFORE INSERT OR UPDATE ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_changing();
CREATE TRIGGER workers_climbed BEFORE UPDATE ON public.workers FOR EACH ROW WHEN (((old.status = 'spawning'::text) AND (new.status <> 'spawning'::text))) EXECUTE FUNCTION public.internal_worker_climbed();
CREATE TRIGGER workers_sick AFTER UPDATE OF exit_cause ON public.workers FOR EACH ROW WHEN (((new.exit_cause = 'worker_sick'::text) AND (old.exit_cause IS DISTINCT FROM new.exit_cause))) EXECUTE FUNCTION public.internal_worker_sick();
ALTER TABLE ONLY public.worker_asks
    ADD CONSTRAINT worker_asks_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES public.workers(id) ON DELETE CASCADE;
ALTER TABLE public.costs ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.database_identity ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.decisions ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.fleet_chores ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.fleet_lease ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.fleet_settings ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.hosts ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.log_objects ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.offers ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.releases ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.schema_migrations ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_attempts ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_marks ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_refusals ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_results ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.task_types ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.tasks ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.tasks_unsettled ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.worker_asks ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.worker_attempts ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.worker_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.worker_transitions ENABLE ROW LEVEL SECURITY;
ALTER TABLE public.workers ENABLE ROW LEVEL SECURITY;
GRANT ALL ON TABLE public.workers TO service_role;
GRANT ALL ON TABLE public.tasks TO service_role;
GRANT SELECT ON TABLE public.active_workers_health TO service_role;
GRANT ALL ON TABLE public.costs TO service_role;
GRANT ALL ON SEQUENCE public.costs_id_seq TO service_role;
GRANT ALL ON TABLE public.database_identity TO service_role;
GRANT ALL ON TABLE public.decisions TO service_role;
GRANT ALL ON SEQUENCE public.decisions_id_seq TO service_role;
GRANT ALL ON TABLE public.fleet_chores TO service_role;
GRANT ALL ON TABLE public.fleet_lease TO service_role;
GRANT ALL ON TABLE public.fleet_settings TO service_role;
GRANT ALL ON TABLE public.hosts TO service_role;
GRANT ALL ON TABLE public.log_objects TO service_role;
GRANT ALL ON TABLE public.offers TO service_role;
GRANT SELECT ON TABLE public.orchestrator_status TO service_role;
GRANT ALL ON TABLE public.task_attempts TO service_role;
GRANT ALL ON TABLE public.worker_attempts TO service_role;
GRANT ALL ON TABLE public.worker_events TO service_role;
GRANT SELECT ON TABLE public.recent_errors TO service_role;
GRANT SELECT ON TABLE public.recent_task_activity TO service_role;
GRANT ALL ON TABLE public.releases TO service_role;
GRANT ALL ON TABLE public.schema_migrations TO service_role;
GRANT ALL ON TABLE public.task_counts TO service_role;
GRANT ALL ON TABLE public.task_marks TO service_role;
GRANT ALL ON SEQUENCE public.task_marks_no_seq TO service_role;
GRANT SELECT ON TABLE public.task_queue_analysis TO service_role;
GRANT ALL ON TABLE public.task_refusals TO service_role;
GRANT ALL ON TABLE public.task_results TO service_role;
GRANT ALL ON TABLE public.task_types TO service_role;
GRANT ALL ON TABLE public.tasks_unsettled TO service_role;
GRANT ALL ON SEQUENCE public.tasks_unsettled_no_seq TO service_role;
GRANT ALL ON TABLE public.worker_asks TO service_role;
GRANT ALL ON SEQUENCE public.worker_asks_id_seq TO service_role;
GRANT ALL ON SEQUENCE public.worker_attempts_id_seq TO service_role;
GRANT ALL ON SEQUENCE public.worker_events_id_seq TO service_role;
GRANT SELECT ON TABLE public.worker_performance TO service_role;
GRANT ALL ON TABLE public.worker_transitions TO service_role;

INSERT INTO public.schema_migrations (version, name, checksum)
SELECT v, 'development', md5(v) FROM unnest('{
    20261121000000, 20261121000001, 20261121000002, 20261121000003, 20261121000004, 20261121000005, 20261121000006,
    20261121000007, 20261121000008, 20261121000009, 20261121000010, 20261121000011, 20261121000012, 20261122000101,
    20261122000102, 20261122000103, 20261122000104, 20261122000105, 20261122000201, 20261122000301, 20261122000302,
    20261122000303, 20261122000401, 20261123000101, 20261123000102, 20261123000201, 20261123000202, 20261123000401,
    20261123000501, 20261123000502, 20261123000601, 20261123000602, 20261123000801, 20261123000901, 20261123000902,
    20261123001101, 20261124000801, 20261124000802, 20261125020001, 20261125020002, 20261125030001, 20261125030002,
    20261125030003, 20261125050001, 20261125050002, 20261125050003, 20261126010001, 20261126010002, 20261126020001,
    20261126020002, 20261126030001, 20261126030002, 20261126030004, 20261126030005, 20261126030006, 20261126030007,
    20261127010001, 20261127020001, 20261127030001, 20261127040001, 20261127040002, 20261128010001, 20261129010001,
    20261129020001, 20261130010001, 20261130010002, 20261130020001, 20261201010001, 20261202010001, 20261202020001,
    20261202020002, 20261202020050, 20261202020060, 20261202020070, 20261202020071, 20261202020072, 20261202020073,
    20261202020074, 20261202020075, 20261202020080, 20261202020090, 20261202020110, 20261202020120, 20261202020130,
    20261202020140, 20261202020190, 20261202020200, 20261202020210, 20261202020300}'::text[]) v;
INSERT INTO public.database_identity DEFAULT VALUES;
INSERT INTO public.worker_transitions (from_state, to_state) VALUES
    ('spawning', 'active'), ('spawning', 'terminating'), ('active', 'idle'), ('active', 'terminating'),
    ('idle', 'active'), ('idle', 'terminating'), ('terminating', 'terminated');
REVOKE ALL ON public.tasks, public.workers FROM anon, authenticated;
