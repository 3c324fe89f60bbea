"""What the API asks of the database: tokens, the audit log, and the tasks that a token may see.

A user's params pass unchanged: nothing here is redacted, and nothing here is logged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.adapters.economics_store import EconomicsStore
from orchestrator.adapters.task_change_store import TaskChangeStore
from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.plurals import queued
from orchestrator.ports import ApiCalls

Row = Mapping[str, Any]
MATCHES = 50  # tasks whose ids begin alike


class ApiRows:
    """The rows of one fleet. Raises PortError."""

    def __init__(self, db: ApiCalls, fleet_id: str) -> None:
        self._db, self._fleet = db, fleet_id

    @property
    def fleet(self) -> str:
        """The id of the fleet."""
        return self._fleet

    @property
    def clusters(self) -> ClusterStore:
        """The clusters of the fleet."""
        return ClusterStore(self._db, self._fleet)

    @property
    def task_changes(self) -> TaskChangeStore:
        """Actions on all tasks that fit a filter."""
        return TaskChangeStore(self._db, self._fleet)

    async def create_token(self, token: Row, actor: str) -> None:
        """Store a token: {name, hash, scopes, pools, tenant, expires_at}. BadArgument if its name is used."""
        await self._db.call("fleet_token_create", p_fleet=self._fleet, p_token=token, p_actor=actor)

    async def use_token(self, token_hash: str) -> Row:
        """The valid token with this SHA-256, and whether there is any: {token, any, now}."""
        return dict(await self._db.call("fleet_token_use", p_fleet=self._fleet, p_hash=token_hash))

    async def tokens(self) -> Sequence[Row]:
        """All tokens without their hashes, newest first."""
        return list((await self._db.call("fleet_tokens", p_fleet=self._fleet))["tokens"])

    async def revoke_token(self, name: str, actor: str) -> Row:
        """End a token: {outcome: revoked, already or not_found}."""
        return dict(await self._db.call("fleet_token_revoke", p_fleet=self._fleet, p_name=name, p_actor=actor))

    async def open_session(self, session: Row, actor: str) -> None:
        """Store a session of the dashboard, or a one-time link: {hash, token_hash, is_link, expires_at}."""
        await self._db.call("fleet_session_open", p_fleet=self._fleet, p_session=session, p_actor=actor)

    async def session(self, session_hash: str) -> Row | None:
        """The session with this SHA-256: {token_hash, expires_at}; None if there is none."""
        found: Row | None = (await self._db.call("fleet_session", p_fleet=self._fleet, p_hash=session_hash))["session"]
        return found

    async def follow_link(self, link_hash: str, session_hash: str, expires_at: str) -> bool:
        """Turn a one-time link into a session. False if the link is unknown, used or too old."""
        args = {"p_link": link_hash, "p_hash": session_hash, "p_expires_at": expires_at}
        return bool((await self._db.call("fleet_session_follow", p_fleet=self._fleet, **args))["opened"])

    async def end_session(self, session_hash: str) -> None:
        """Sign out."""
        await self._db.call("fleet_session_end", p_fleet=self._fleet, p_hash=session_hash)

    async def observe(self) -> Row:
        """Workers, queue, offers, budgets and pauses, as a tick sees them. Counts of tasks know their bound."""
        seen = dict(await self._db.call("fleet_observe", p_fleet=self._fleet))
        demand = [one | {"claimable": queued(one["claimable"]), "blocked": _queued(one["blocked"])}
                  for one in seen["demand"]]  # fmt: skip
        return seen | {"demand": demand}

    async def history(self, since: str, step_s: int | None = None, pool: str | None = None) -> Row:
        """Minutes of pools, in steps: {now, since, step_s, pools: {pool: [{at, ready, …}]}}."""
        args = {"p_since": since, "p_step_s": step_s, "p_pool": pool}
        return dict(await self._db.call("fleet_history", p_fleet=self._fleet, **args))

    async def failures(self, holder: TokenHolder, limit: int) -> Row:
        """The newest attempts of a day that failed, one of each task: {failures: [{task_id, at, …}], is_all, …}."""
        pools = None if holder.pools is None else sorted(holder.pools)
        return dict(await self._db.call("fleet_failures", p_fleet=self._fleet, p_pools=pools, p_limit=limit))

    async def worker_minutes(self, worker_id: str) -> Row:
        """Minutes of one worker: {now, points: [{at, status, running, gpu_percent, …}]}."""
        return dict(await self._db.call("fleet_worker_history", p_fleet=self._fleet, p_worker_id=worker_id))

    async def audit(self, *, before: int | None = None, limit: int = 100, subject: str | None = None) -> Sequence[Row]:
        """The newest entries of the audit log, of everything or of one task, worker or pool, before an entry."""
        args = {"p_before": before, "p_limit": limit, "p_subject": subject}
        answer = await self._db.call("fleet_audit", p_fleet=self._fleet, **args)
        return list(answer["entries"])

    async def submit(self, holder: TokenHolder, tasks: Sequence[Row], *, key: str | None, sha256: str) -> Row:
        """Submit tasks, once for a key within 24 hours: {outcome: ok, repeated or key_reused, tasks}."""
        args = {"p_actor": holder.name, "p_scope": holder.restriction(), "p_key": key, "p_sha256": sha256}
        return dict(await self._db.call("task_submit_for", p_fleet=self._fleet, p_tasks=list(tasks), **args))

    async def task(self, holder: TokenHolder, task_id: str) -> Row:
        """{task, params, result_data, attempts}; the task is None if there is none for this holder.

        params and result_data are JSON texts, or None.
        """
        return dict(await self._db.call("task_get_for", p_scope=holder.restriction(), p_id=task_id))

    async def act(self, holder: TokenHolder, task_id: str, action: str, version: str | None) -> Row:
        """Cancel or retry a task, if it still has this version (None: any). {outcome, task, params, result_data}."""
        args = {"p_actor": holder.name, "p_scope": holder.restriction(), "p_action": action, "p_version": version}
        return dict(await self._db.call("task_act_for", p_fleet=self._fleet, p_id=task_id, **args))

    async def task_states(self, task_ids: Sequence[str]) -> Sequence[Row]:
        """{id, pool, tenant, status, progress, progress_at, attempt, version} of those that exist."""
        return list((await self._db.call("task_states", p_ids=list(task_ids)))["tasks"])

    async def tasks(self, holder: TokenHolder, wanted: Row, after: Sequence[str] | None, limit: int) -> Row:
        """A page, newest first, and where the next one begins: {tasks, next}."""
        args = {"p_scope": holder.restriction(), "p_filter": wanted, "p_cursor": after, "p_limit": limit}
        return dict(await self._db.call("task_page", **args))

    async def match_tasks(self, holder: TokenHolder, prefix: str) -> Sequence[Row]:
        """The tasks that a holder sees whose id begins with these digits, newest first, at most MATCHES of them."""
        found = list((await self._db.call("task_match", p_prefix=prefix, p_limit=MATCHES))["tasks"])
        states = {row["id"]: row for row in await self.task_states([row["id"] for row in found])} if found else {}
        rows = [row | states[row["id"]] for row in found if row["id"] in states]
        return [row for row in rows if holder.sees(row["pool"], row["tenant"])]

    async def workers(
        self,
        holder: TokenHolder,
        *,
        ended: bool | None,
        after: Sequence[str] | None,
        limit: int,
        pool: str | None = None,
    ) -> Sequence[Row]:
        """A page of the workers that a holder sees, of every pool or of one, newest first.

        `ended`: also those that have ended; None: those alone. `after`: the time and id of the last one seen.
        """
        args = {"p_pools": holder.pools_of(pool), "p_ended": ended, "p_cursor": after, "p_limit": limit}
        return list((await self._db.call("fleet_workers_page", p_fleet=self._fleet, **args))["workers"])

    async def worker(self, worker_id: str) -> Row | None:
        """One worker, or None."""
        answer = await self._db.call("fleet_worker", p_fleet=self._fleet, p_worker_id=worker_id)
        row: Row | None = answer["worker"]
        return row

    async def worker_history(self, worker_id: str) -> Row:
        """One worker with its events, attempts and tasks, as `timeline` has it. "worker" is None if it is unknown."""
        return dict(await self._db.call("fleet_worker", p_fleet=self._fleet, p_worker_id=worker_id))

    async def _act(self, actor: str, action: str, subject: str, args: Row) -> Row:
        """Do an action and note it in the audit log, in one transaction."""
        named = {"p_actor": actor, "p_action": action, "p_subject": subject, "p_args": args}
        return dict(await self._db.call("fleet_act", p_fleet=self._fleet, **named))

    async def spawn(self, actor: str, worker: Row) -> bool:
        """Ask for a worker, as `Policy.asked_intent` describes it. False if its id is used."""
        return bool((await self._act(actor, "worker.spawn", worker["id"], worker))["created"])

    async def terminate(self, actor: str, worker_id: str, reason: str, *, at_once: bool) -> Row:
        """Ask for a worker's end: {outcome: requested, already or not_found}."""
        return await self._act(actor, "worker.terminate", worker_id, {"reason": reason, "at_once": at_once})

    async def decisions(
        self, holder: TokenHolder, *, before: int | None, limit: int, pool: str | None = None
    ) -> Sequence[Row]:
        """A page of the decisions that a holder sees, of every pool or of one, newest first, before this one."""
        args = {"p_pools": holder.pools_of(pool), "p_before": before, "p_limit": limit}
        return list((await self._db.call("fleet_decisions_page", p_fleet=self._fleet, **args))["decisions"])

    async def decisions_between(
        self, holder: TokenHolder, since: str, until: str, *, limit: int, pool: str | None = None
    ) -> Row:
        """{now, decisions, more}: those between two moments, and those in force at the first, newest first."""
        args = {"p_pools": holder.pools_of(pool), "p_since": since, "p_until": until, "p_limit": limit}
        return dict(await self._db.call("fleet_decisions_between", p_fleet=self._fleet, **args))

    async def events(self, holder: TokenHolder, *, after: int | None, limit: int) -> Row:
        """What happened to the workers that a holder sees after an event; None: the newest. {events, next, more}."""
        args = {"p_pools": holder.restriction()["pools"], "p_after": after, "p_limit": limit}
        return dict(await self._db.call("fleet_events", p_fleet=self._fleet, **args))

    async def scaling(self) -> Row:
        """The last decision of each pool, the offers, pauses and workers that wait."""
        return dict(await self._db.call("fleet_scaling_explain", p_fleet=self._fleet))

    async def standing(self) -> Row:
        """Who leads, and what the leader finds wrong: {leader, last, now, conditions}."""
        return dict(await self._db.call("fleet_leadership", p_fleet=self._fleet))

    async def pauses(self) -> Row:
        """The pauses in force: {pool: {reason, until}}; `*` is every pool."""
        return dict((await self._db.call("fleet_pauses", p_fleet=self._fleet))["paused"])

    async def pause(self, actor: str, reason: str | None, *, pool: str | None, for_s: float | None = None) -> Row:
        """Stop spawning for a reason (None: resume). Return the pauses in force."""
        args = {} if reason is None else {"reason": reason, "for_s": for_s}
        answer = await self._act(actor, "pool.pause" if args else "pool.resume", pool or EVERY_POOL, args)
        return dict(answer["paused"])

    async def scale_limits(self) -> Row:
        """The limits of workers in force: {pool: {most, reason, until}}; `*` is the whole fleet."""
        return dict((await self._db.call("fleet_scale_limits", p_fleet=self._fleet))["limits"])

    async def limit_workers(
        self, actor: str, most: int | None, reason: str = "", *, pool: str | None, for_s: float = 0
    ) -> Row:
        """Allow at most so many workers for a time (None: end the limit). Return the limits in force."""
        args = {} if most is None else {"most": most, "reason": reason, "for_s": for_s}
        answer = await self._act(actor, "pool.limit" if args else "pool.unlimit", pool or EVERY_POOL, args)
        return dict(answer["limits"])

    async def cost(self, since: str, until: str | None) -> Row:
        """Dollars between two moments, by worker, kind of state, task type and task."""
        return dict(await self._db.call("fleet_cost", p_fleet=self._fleet, p_since=since, p_until=until))

    async def bill(self) -> Row | None:
        """The last comparison with RunPod's bill: {since, until, ours_usd, theirs_usd, …}; None: there is none.

        If the bill could not be read since: also {error, failed_at, failing_since}, perhaps alone.
        """
        found: Row | None = (await self._db.call("fleet_bill", p_fleet=self._fleet))["bill"]
        return found

    async def usage(self, dimension: str, span: str, since: str, until: str | None) -> Row:
        """What was done and spent in each hour or day, from the roll-ups: {until, points: [{at, name, usd, …}]}."""
        args = {"p_dimension": dimension, "p_span": span, "p_since": since, "p_until": until}
        return dict(await self._db.call("fleet_usage", p_fleet=self._fleet, **args))

    async def reviews(self) -> Row:
        """What other rules of scaling would have cost in each pool: {now, first_at, reviews: [{pool, at, review}]}."""
        return await EconomicsStore(self._db, self._fleet).reviews()

    async def efficiency(self, since: str, until: str | None) -> Row:
        """Throughput, utilisation, queue depth and dollars per task between two moments."""
        return dict(await self._db.call("fleet_efficiency", p_fleet=self._fleet, p_since=since, p_until=until))

    async def hosts(self, *, avoided: bool) -> Sequence[Row]:
        """Machines and places that failed, or those that are avoided now, with evidence; the newest failure first."""
        return list((await self._db.call("fleet_hosts", p_fleet=self._fleet, p_avoided=avoided))["hosts"])

    async def schedules(self) -> Row:
        """All schedules, each with its last run: {now, schedules}."""
        return dict(await self._db.call("task_schedules"))

    async def webhooks(self, *, state: str | None, limit: int) -> Row:
        """The addresses, and the newest messages with their answers: {now, webhooks, troubles, messages}."""
        args = {"p_state": state, "p_task_id": None, "p_limit": limit}
        return dict(await self._db.call("fleet_webhooks", p_fleet=self._fleet, **args))

    async def resend(self, actor: str, message_id: str | None) -> int:
        """Make one unsent message, or all that were given up, due for another day. Return how many."""
        args = {"p_actor": actor, "p_id": message_id}
        return int((await self._db.call("fleet_webhook_retry", p_fleet=self._fleet, **args))["due"])

    async def limits(self) -> Sequence[Row]:
        """Limits and keys in use: {scope, name, most, is_set, running, ready, waiting}."""
        return list((await self._db.call("task_limits"))["limits"])

    async def tenants(self) -> Sequence[Row]:
        """Tenants with a weight or live tasks: {tenant, weight, ready, waiting, running}."""
        return list((await self._db.call("task_tenants"))["tenants"])

    async def task_explained(self, task_id: str) -> Row:
        """All facts that explain one task. "task" is None if it is unknown."""
        return dict(await self._db.call("fleet_task_explain", p_fleet=self._fleet, p_task_id=task_id))

    async def worker_explained(self, worker_id: str) -> Row:
        """All facts that explain one worker. "worker" is None if it is unknown."""
        return dict(await self._db.call("fleet_explain", p_fleet=self._fleet, p_worker_id=worker_id))

    async def log_pieces(self, worker_id: str) -> Sequence[Row]:
        """The ledger of one worker's logs, in the order of boot, stream and seq."""
        answer = await self._db.call("fleet_log_pieces", p_fleet=self._fleet, p_worker_id=worker_id)
        return list(answer["pieces"])


def _queued(blocked: Mapping[str, int]) -> Mapping[str, int]:
    return {kind: queued(count) for kind, count in blocked.items()}
