"""The invariants I1 to I8, as far as the simulation can show them, checked at each commit and each provider call."""

import gzip
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.runpod_replies import DATABASE_VARIABLE
from orchestrator.core.budget import PRICE_SEEN_S, TOO_DEAR_S
from orchestrator.core.exit_causes import ABRUPT
from orchestrator.core.images import cuda_of
from orchestrator.pods import agent_commands
from tests.proofs.simulator.clock import EPOCH
from tests.proofs.simulator.machine_laws import LATE_S, OVERDUE_S, RACE_S, MachineLaws, completed_by
from tests.proofs.simulator.provider import FLEET, WINDOWS, SimPod
from tests.proofs.simulator.sql.tables import DATABASE
from worker.protocol import STREAMS

if TYPE_CHECKING:
    from tests.proofs.simulator.agents import Agent
    from tests.proofs.simulator.environment import World

LEAK_S = 120.0  # I1, without any other fault meanwhile, and under one leader: the next one counts from its start
STALE_LIST_S = 10.0  # a pod that became visible so recently may be missing from two lists
FORGIVEN_S = 3600.0  # after a refusal an offer is probed for so long
CALM_S = 20.0  # over the flush's own deadline
UNLED_S = 3.5
PRICE_LATE_S = 300.0  # a create call may come so long after its decision
OVERSPENT_S = 60.0  # a list has to show the price, and a tick to end a worker
RETAIN_S, RETAIN_LATE_S = 3600.0, 300.0  # a leader asks every minute whether retention is due
OVER_S = 15.0  # more workers than allowed, without any other fault meanwhile
DELETES_PER_MINUTE = 18  # of one pod: each of six calls may be made three times, after a broken connection
CALLS_PER_MINUTE = 90  # of one process; the account allows 60 in each window, and two windows share our minute
SECRET = "SECRET"
BACK_S = 20.0  # until every agent has called again after it was cut off
STAGES = {
    "active": ("promoted",),
    "idle": ("promoted",),
    "terminating": ("draining", "flushing", "deleting"),
    "terminated": ("gone",),
}
PLANNED = ("idle_timeout", "scale_down")
STANDS = ("stuck", "hung")  # kinds of tasks without a sign of life; an agent can end the first


class Laws:
    """Checks the laws, and records violations."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._machines = MachineLaws(world)
        self.claims: dict[tuple[str, int], tuple[Agent, float]] = {}
        self.completed: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}  # task -> the number of its last attempt
        self._was: dict[str, str] = {}  # worker -> its status before its last change
        self._made: Counter[str] = Counter()
        self._deletes: defaultdict[str, list[float]] = defaultdict(list)  # pod -> when its delete was asked for
        self._calls: defaultdict[str, list[float]] = defaultdict(list)  # process -> when it called the provider
        self._led_s = 0.0  # when there was last a leader, or a reason for none
        self._term, self._term_s = 0, 0.0  # the leader's term, and when it began
        self._within_s = 0.0  # when there were last no more workers than allowed
        self._ceilings: dict[tuple[str, str], int] = {}  # pool and end of an operator's limit -> workers at most
        self._limited_s = 0.0  # when there were last no more workers than operators allow
        self._affordable_s = 0.0  # when an hour last cost no more than it may
        self.addressed_s: dict[str, float] = {}  # worker -> when its row's SSH address last changed

    def broken(self, law: str, what: str) -> None:
        """Record a violation."""
        self._world.violations.append(f"{law}: {what} (at {self._world.kernel.now:.3f} s)")

    # --- the provider's limits

    def called(self, process: str) -> None:
        """Check a call to the provider: it is within the account's limits, with room for another process."""
        now, calls = self._world.kernel.now, self._calls[process]
        calls.append(now)
        for quota, length_s in WINDOWS.values():
            most = quota * 2  # a window may start in the middle of ours
            if len(calls) > most and calls[-most - 1] > now - length_s:
                self.broken("calls", f"{process} makes more than {most} calls in {length_s} s")
        lately = sum(at > now - 60 for at in islice(reversed(calls), CALLS_PER_MINUTE + 1))
        if lately > CALLS_PER_MINUTE:
            self.broken("calls", f"{process} makes more than {CALLS_PER_MINUTE} calls in a minute")

    def delete_asked(self, pod_id: str) -> None:
        """Check a delete: a refused one must not be repeated without end."""
        now, deletes = self._world.kernel.now, self._deletes[pod_id]
        deletes.append(now)
        lately = sum(at > now - 60 for at in deletes)
        if lately > DELETES_PER_MINUTE:
            self.broken("calls", f"the delete of {pod_id} is asked for {lately} times in a minute")

    # --- the database

    def changed(self, table: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """Check a row that was written."""
        if table == "workers":
            self._worker(old, new)
        elif table == "worker_events":
            if not new["reason"] or new["reason"] == "changed by hand" or not new["actor"]:
                self.broken("I7", f"{new['worker_id']} went {new['from_stage']} > {new['to_stage']} without a reason")
        elif table == "tasks" and old is not None:
            self._task(old, new)

    def _worker(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        if new["status"] != "terminated":
            for name in ("waiting_on", "deadline_at", "next_attempt_at"):
                if new[name] is None:
                    self.broken("I7", f"{new['id']} is {new['status']} with no {name}")
        if (new["status"], new["stage"]) == ("spawning", "intent"):
            bringup_s = (new["deadline_at"] - new["created_at"]).total_seconds()
            if bringup_s > self._world.policy.spawning_timeout_s + LATE_S:
                self.broken("I7", f"{new['id']} is told {bringup_s:.0f} s for its bring-up")
        if new["stage"] not in STAGES.get(new["status"], (new["stage"],)):
            self.broken("I7", f"{new['id']} is {new['status']} and at {new['stage']}")
        if old is None:
            self._intended(new)
            self._machines.asked(new)
            return
        self._changed(old, new)

    def _changed(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._was[new["id"]] = old["status"]
        if new["last_heartbeat"] != old["last_heartbeat"]:
            self._machines.heard(new)
        if (new["ssh_host"], new["ssh_port"]) != (old["ssh_host"], old["ssh_port"]):
            self.addressed_s[new["id"]] = self._world.kernel.now
        if new["pod_id"] is not None and new["pod_id"] != old["pod_id"]:
            self._given(new)
        if new["stage"] == "pod_created" and old["stage"] != "pod_created":
            self._probe(new)
        if new["stage"] == "flushing" and old["stage"] != "flushing":
            self._flushed_early(new)
        if new["status"] != old["status"]:
            self._moved(old, new)

    def _intended(self, new: Mapping[str, Any]) -> None:
        pool = self._world.pool(new["pool"])
        if pool is None:
            self.broken("pool", f"{new['id']} is of {new['pool']}, which no policy names")
        elif new["metadata"].get("offer") not in {offer.key for offer in pool.offers}:
            self.broken("pool", f"{new['id']} of {pool.name} is to come from {new['metadata'].get('offer')}")

    def _given(self, new: Mapping[str, Any]) -> None:
        pod = self._world.provider.pods.get(new["pod_id"])
        if pod is None or not pod.ours or pod.worker_id != new["id"]:
            self.broken("I1", f"{new['id']} was given {new['pod_id']}, which is not its pod")

    def _moved(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        now, pod = self._world.kernel.now, self._world.provider.pods.get(new["pod_id"] or "")
        if new["status"] == "active" and old["status"] == "spawning":
            agent = pod.agents.get(new["nonce"]) if pod else None
            if agent is None or new["last_heartbeat"] is None or not agent.spoke:
                self.broken("I8", f"{new['id']} was promoted without a heartbeat of its launch")
        elif new["status"] == "terminated":
            for one in self._world.provider.own():
                if one.worker_id == new["id"] and one.visible_s < now - STALE_LIST_S:
                    self.broken("I1", f"{new['id']} is terminated and its pod {one.id} is there")
        elif new["status"] == "terminating":
            self._ended(old, new, pod)
            self._machines.ended_with_tasks(new)
            self._machines.ended_unclaiming(new, pod)
            self._machines.ended_by_finding(old, new, pod)

    def _ended(self, old: Mapping[str, Any], new: Mapping[str, Any], pod: SimPod | None) -> None:
        now, code = self._world.kernel.now, new["failure_code"]
        if code == "POD_MISSING" and pod is not None and pod.exists():
            self.broken("I8", f"{new['id']} was ended as POD_MISSING and {pod.id} is there")
        if code == "POD_EXITED" and pod is not None and pod.exists() and pod.dead_s is None:
            self.broken("I8", f"{new['id']} was ended as POD_EXITED and {pod.id} runs")
        if new["exit_cause"] == "heartbeat_lost":
            agent = pod.agents.get(new["nonce"]) if pod and pod.exists() else None
            heard = agent.beaten_s if agent is not None and agent.lives else None
            patient_s = self._world.policy.heartbeat_timeout_s - 1
            if agent is not None and self._is_cut_off(agent):
                self.broken("path", f"{new['id']} was ended as silent; its agent calls, and no call reaches a gateway")
            if heard is not None and self._world.listened_s(heard) < patient_s:
                self.broken("I8", f"{new['id']} was ended as silent; it was answered {now - heard:.1f} s ago")
        if new["exit_cause"] == "task_stuck":
            held = [self._world.db.tasks[task_id] for task_id in self._world.db.running.get(new["id"], {})]
            hung = any(task["params"]["kind"] == "hung" for task in held)
            if not hung and (now - self._world.faults.over_s > OVERDUE_S or not any(map(_stands, held))):
                self.broken("alive", f"{new['id']} was ended as stuck; its agent ends such a task, or it has none")
        if new["exit_cause"] in PLANNED and self._world.db.running.get(new["id"]):
            self.broken("I2", f"{new['id']} was ended by {new['exit_cause']} with a task running")

    def _is_cut_off(self, agent: "Agent") -> bool:
        """Whether a healthy agent is silent only because no agent reaches a gateway now, or until a moment ago."""
        since_s, until_s = self._world.path_cut
        well = agent.lives and not agent.loop.frozen and agent.cut_until_s < since_s
        heard_at = self._world.db.workers[agent.worker_id]["last_heartbeat"]  # its agent may not know of this call
        heard_s = (heard_at - EPOCH).total_seconds() if heard_at else 0.0
        heard = heard_s > since_s - self._world.policy.heartbeat_s - BACK_S
        return well and heard and since_s <= self._world.kernel.now <= until_s + BACK_S

    def _flushed_early(self, new: Mapping[str, Any]) -> None:
        failed = new["exit_cause"] in ABRUPT or new["stop_requested_at"] is not None
        here_s = (self._world.kernel.moment() - new["state_since"]).total_seconds()
        if not failed and self._world.db.running.get(new["id"]) and here_s < self._world.policy.drain_grace_s - 1:
            self.broken("I2", f"{new['id']} was stopped {here_s:.1f} s into its drain, with a task running")

    def _probe(self, new: Mapping[str, Any]) -> None:
        key = str(new["metadata"].get("offer"))
        offer = self._world.db.offers.get((FLEET, key))
        moment = self._world.kernel.moment()
        asking = [
            w
            for w in self._world.db.workers.values()
            if w["status"] == "spawning" and w["stage"] == "pod_created" and w["metadata"].get("offer") == key
        ]
        if offer is None or offer["last_refusal"] is None or self._world.belated:  # no create call follows that write
            return
        if not timedelta(seconds=RACE_S) <= moment - offer["last_refusal"] < timedelta(seconds=FORGIVEN_S):
            return
        if offer["cooldown_until"] is not None and offer["cooldown_until"] > moment:
            self.broken("market", f"{new['id']} asks for {key}, which cools down")
        since = offer["last_refusal"] + timedelta(seconds=RACE_S)
        probing = sum(w["stage_since"] >= since for w in asking)
        if probing > offer["probe_budget"]:
            self.broken("market", f"{probing} ask for {key} at once, its probe budget is {offer['probe_budget']}")

    def _task(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        if new["status"] == "In Progress" and (old["status"], old["attempts"]) != (new["status"], new["attempts"]):
            self._begun(old, new)
        if new["status"] == old["status"]:
            return
        if old["status"] == "Complete":
            self.broken("I3", f"task {new['id']} was Complete and is {new['status']}")
        if new["status"] == "Complete":
            self.completed[new["id"]] += 1
            if self.completed[new["id"]] > 1 or old["status"] != "In Progress":
                self.broken("I3", f"task {new['id']} was completed {self.completed[new['id']]} times")
        if new["failure_code"] in ("NO_HANDLER", "EARLIER_RELEASE") and new["status"] == "Failed":
            self.broken("I2", f"task {new['id']} ({new['task_type']}) failed, and the release that leads has a handler")
        if new["failure_code"] == "TASK_STUCK" and not _stands(new):
            self.broken(
                "alive", f"task {new['id']} ({new['params']['kind']}) failed as stuck, and it showed signs of life"
            )
        if new["failure_code"] == "MACHINE_FAULT" and self._machines.faults_count(new["id"]):
            self.broken("guard", f"task {new['id']} was on a machine that failed, and its attempt counts")
        if new["failure_code"] == "LEASE_EXPIRED" and old["status"] == "In Progress":
            agent, since = self.claims.get((new["id"], new["attempts"]), (None, 0.0))
            now = self._world.kernel.now
            held = agent is not None and agent.lives and new["id"] in agent.held and now - since > 20
            if agent is not None and held and self._is_cut_off(agent):
                self.broken("path", f"task {new['id']} was taken from an agent whose calls reach no gateway")
            if agent is not None and held and agent.beaten_s is not None and now - agent.beaten_s < 10:
                self.broken("I8", f"task {new['id']} was taken from an agent that was answered lately")

    def _begun(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Check a task that a worker has claimed."""
        if old["status"] == "In Progress":
            self.broken("I3", f"attempt {new['attempts']} of task {new['id']} begins while {old['attempts']} runs")
        if new["attempts"] <= self._numbers.get(new["id"], 0):
            self.broken("I3", f"attempt {new['attempts']} of task {new['id']} has the number of an earlier one")
        self._numbers[new["id"]] = new["attempts"]
        for needed in new["depends_on"]:
            if self._world.db.tasks[needed]["status"] != "Complete":
                self.broken("I3", f"task {new['id']} runs, and {needed}, which it needs, is not Complete")

    def committed(self, function: str, args: Mapping[str, Any], answer: Any) -> None:
        """Check a committed transaction."""
        term, leads = args.get("p_term"), self._world.db.leases.get(FLEET, {}).get("term")
        if term is not None and function != "fleet_resign" and term != leads:
            self.broken("fence", f"{function} was carried out for term {term}, and {leads} leads")
        for task_id, attempt in completed_by(function, args, answer).items():
            self._accepted[task_id] += 1
            if self._accepted[task_id] > 1:
                self.broken("I3", f"a second completion of task {task_id} was accepted")
            if attempt != self._numbers[task_id]:
                self.broken("I3", f"attempt {attempt} of task {task_id} completed while {self._numbers[task_id]} ran")
        if function == "fleet_move" and self._was[args["p_worker_id"]] not in map(str, args["p_from"]):
            was, named = self._was[args["p_worker_id"]], " or ".join(map(str, args["p_from"]))
            self.broken("I7", f"{args['p_worker_id']} was moved as {named}, and it was {was}")
        self._machines.committed(function, args, answer)
        if function == "fleet_log_lost":
            self._given_up(self._world.db.workers[args["p_worker_id"]])
        if function == "fleet_log_begin":
            pieces = self._world.db.log_objects[args["p_worker_id"], args["p_boot_id"], args["p_stream"]]
            for one, following in itertools.pairwise(pieces):
                if one["last_byte"] != following["first_byte"]:
                    self.broken("I5", f"a gap in the ledger of {args['p_worker_id']}")

    def _given_up(self, row: Mapping[str, Any]) -> None:
        now, pod = self._world.kernel.now, self._world.provider.pods.get(row["pod_id"] or "")
        calm_s = now - self._world.faults.over_s
        if pod is not None and pod.runs(now) and calm_s > self._world.policy.flush_deadline_s + CALM_S:
            self.broken("I5", f"logs of {row['id']} are declared lost and {pod.id} runs, without a fault meanwhile")

    # --- the provider, S3, and what is said to them

    def asked(self, name: str, offer: str) -> None:
        """Check a create call."""
        row = self._world.db.workers.get(name)
        if row is None:
            self.broken("I1", f"a pod is asked for {name}, of which there is no row")
            return
        policy, spent = self._world.policy, None
        self._world.db.now = self._world.kernel.moment()
        if row["status"] == "spawning" and policy.hourly_budget_usd is not None and not self._learned_since(row):
            spent = self._world.db.spent(FLEET, None)
            over = spent["hourly_usd"] > policy.hourly_budget_usd + 1e-6
            daily = policy.daily_budget_usd
            over |= daily is not None and spent["today_usd"] + spent["committed_usd"] > daily + 0.01
            if over:
                self.broken("I4", f"{name} is asked for with {spent} against {policy.hourly_budget_usd}/h, {daily}/day")
        if policy.hourly_budget_usd is not None:
            self._priced_as_seen(row)

    def _priced_as_seen(self, row: Mapping[str, Any]) -> None:
        """Check that a pod reserves what the offer's newest pod cost.

        So no two pods of an offer end for the budget in a row, unless the second one was tried after a long pause.
        """
        others = [
            one
            for one in self._world.db.workers.values()
            if _offer(one) == _offer(row) and one is not row and one["price_usd_per_hour"] is not None
        ]
        newest = max(others, key=lambda one: (one["created_at"], one["price_usd_per_hour"]), default=None)
        if newest is None or row["metadata"].get("asked_for"):
            return
        usd = newest["price_usd_per_hour"] / newest["gpu_count"] * row["gpu_count"]
        ended_at = newest["bringup_ended_at"] if newest["promoted_at"] is None else newest["ending_since"]
        held_s = TOO_DEAR_S if newest["exit_cause"] == "budget" else PRICE_SEEN_S
        ago_s = (row["stage_since"] - (ended_at or newest["stage_since"])).total_seconds()
        counts = ago_s > RACE_S and (ended_at is None or ago_s < held_s - PRICE_LATE_S)
        if counts and row["reserved_usd_per_hour"] < usd - 1e-6:
            self.broken("I4", f"{row['id']} reserves {row['reserved_usd_per_hour']}/h, {newest['id']} cost {usd}/h")

    def _learned_since(self, row: Mapping[str, Any]) -> bool:
        """Whether a pod proved more expensive after this create was allowed and before it arrived."""
        return any(
            other["status"] != "terminated"
            and other["price_usd_per_hour"] is not None
            and other["stage_since"] > row["stage_since"]
            for other in self._world.db.workers.values()
        )

    def created(self, pod: SimPod) -> None:
        """Check a new pod."""
        if pod.env.get(DATABASE_VARIABLE) != DATABASE:
            self.broken("I1", f"{pod.id} of {pod.name} does not say whose it is")
        self._made[pod.name] += 1
        if self._made[pod.name] > 1:
            self.broken("I1", f"{self._made[pod.name]} pods were made for {pod.name}")

    def ordered(self, body: Mapping[str, Any]) -> None:
        """Check the content of a create call: it has no values of another pool."""
        row = self._world.db.workers.get(body["name"])
        pool = None if row is None else self._world.pool(row["pool"])
        if row is None or pool is None:
            return  # I1, or "pool", has it
        gpu = body["gpu"]
        asked = (
            body["image"], gpu["count"], body["disk"], gpu["minRamPerGpu"], gpu["minVcpuCountPerGpu"],
            gpu.get("minCudaVersion"),
        )  # fmt: skip
        cuda = "{}.{}".format(*cuda_of(pool.image) or ("no", "version"))
        wanted = (pool.image, pool.gpu_count, pool.disk_gb, pool.min_memory_gb, pool.min_vcpu, cuda)
        offers = {(offer.gpu_type, offer.data_center, offer.cloud) for offer in pool.offers}
        place = (body["gpu"]["id"], (body.get("dataCenterIds") or [None])[0], body["cloud"])
        if asked != wanted or place not in offers:
            self.broken("pool", f"{body['name']} of {pool.name} is asked for as {asked} at {place}, not {wanted}")

    def launched(self, pod: SimPod, config: Mapping[str, Any]) -> None:
        """Check the configuration of a new agent."""
        row = self._world.db.workers.get(pod.worker_id or "")
        pool = None if row is None else self._world.pool(row["pool"])
        if pool is not None and config["batch"] != pool.batch:
            self.broken("pool", f"{pod.worker_id} of {pool.name} claims {config['batch']} tasks, not {pool.batch}")

    def deleting(self, pod: SimPod) -> None:
        """Check a delete call for an existing pod."""
        if not pod.ours:
            self.broken("I1", f"{pod.id} ({pod.name}) is not ours and is deleted")
            return
        row = self._world.db.workers.get(pod.worker_id or "")
        if row is not None and row["status"] in ("spawning", "active", "idle") and row["pod_id"] in (None, pod.id):
            self.broken("I8", f"{pod.id} is deleted and its worker {row['id']} is {row['status']}")
        for nonce, agent in pod.agents.items():
            if pod.runs(self._world.kernel.now):
                self._logs_safe(agent, nonce)

    def _logs_safe(self, agent: "Agent", nonce: str) -> None:
        for stream in STREAMS:
            content = agent.pod.files.get(f"{agent_commands.run_dir(nonce)}/logs/{stream}.log", b"")
            pieces = self._world.db.log_objects.get((agent.worker_id, nonce, stream), [])
            shipped = max((p["last_byte"] for p in pieces if p["shipped_at"]), default=0)
            declared = any(p["declared_lost"] and p["last_byte"] is None for p in pieces)
            if shipped < len(content) and not declared:
                left = len(content) - shipped
                self.broken("I5", f"{left} bytes of {stream}.log of {agent.worker_id} go with {agent.pod.id}")

    def stored(self, key: str, content: bytes) -> None:
        """Check an object that was stored in S3."""
        if self._world.bucket.get(key, content) != content:
            self.broken("I5", f"{key} is overwritten with other bytes")

    def clean(self, value: Any, where: str) -> None:
        """Check that a text for outside contains no secret."""
        if SECRET in str(value):
            self.broken("I6", f"a token is in {where}")

    # --- time

    def look(self) -> None:
        """Check the laws about time, once a second."""
        now, quiet, moment = self._world.kernel.now, self._world.faults.over_s, self._world.kernel.moment()
        workers = self._world.db.workers
        term = self._world.db.leases.get(FLEET, {}).get("term", 0)
        if term != self._term:
            self._term, self._term_s = term, now
        for pod in self._world.provider.own():
            row = workers.get(pod.worker_id or "")
            since = max(pod.visible_s, quiet, self._term_s)
            if row is not None and row["status"] == "terminated":
                since = max(since, (row["terminated_at"] - moment).total_seconds() + now)
            live = row is not None and row["status"] != "terminated"
            if not live and now - since > LEAK_S:
                self.broken("I1", f"{pod.id} of {pod.name} leaks for {now - since:.0f} s")
        self._lead(now, quiet)
        self._limit(now, quiet)
        self._limited(now, quiet)
        self._machines.look(quiet)
        self._published(now, quiet)
        self._cost(now, quiet)
        self._retention(now, quiet)
        for replica in self._world.replicas:
            replica.laws.look(up=replica.up)
        for row in workers.values():
            if row["status"] not in ("spawning", "terminating"):
                continue
            late_s = (moment - row["deadline_at"]).total_seconds()
            if min(late_s, now - quiet) > OVERDUE_S:
                self.broken("I7", f"{row['id']} is {row['stage']} {late_s:.0f} s after its deadline")

    def _lead(self, now: float, quiet: float) -> None:
        """Check that a process leads if the database answers and a process could lead."""
        lease = self._world.db.leases.get(FLEET)
        led = lease is not None and lease["expires_at"] > self._world.kernel.moment()
        if led or self._world.db_down or now < quiet or not any(replica.up for replica in self._world.replicas):
            self._led_s = now
        elif now - self._led_s > UNLED_S:
            self.broken("lead", f"nobody leads for {now - self._led_s:.0f} s, and the database is there")

    def _limit(self, now: float, quiet: float) -> None:
        """A tick writes its ends and its spawns side by side, so that it is more than the limit for a moment."""
        live = Counter(
            w["pool"] for w in self._world.db.workers.values() if w["status"] in ("spawning", "active", "idle")
        )
        over = [pool for pool in self._world.policy.pools if live[pool.name] > pool.max_active]
        if not over:
            self._within_s = now
        elif now - max(self._within_s, quiet) > OVER_S:
            self.broken("I4", f"{live} workers live, MAX_ACTIVE_GPUS={over[0].max_active} of {over[0].name}")

    def _limited(self, now: float, quiet: float) -> None:
        """Under an operator's limit, the number of workers does not rise above it: those that were there may finish."""
        db = self._world.db
        live = Counter(w["pool"] for w in db.workers.values() if w["status"] in ("spawning", "active", "idle"))
        ceilings, over = {}, ""
        for pool, limit in db.scale_limits(FLEET).items():
            count, key = live.total() if pool == "*" else live[pool], (pool, limit["until"])
            ceilings[key] = max(limit["most"], min(count, self._ceilings.get(key, count)))
            if count > ceilings[key]:
                over = f"{live} workers live, {ceilings[key]} may under a limit of {limit['most']} in {pool}"
        self._ceilings = ceilings
        if not over:
            self._limited_s = now
        elif now - max(self._limited_s, quiet) > OVER_S:
            self.broken("limit", over)

    def _cost(self, now: float, quiet: float) -> None:
        """Check the cost by the true bill: a price above the catalogue counts too."""
        limit = self._world.policy.hourly_budget_usd
        rows = self._world.db.workers
        usd = sum(
            pod.rate
            for pod in self._world.provider.own()
            if (row := rows.get(pod.worker_id or "")) and row["status"] in ("spawning", "active", "idle")
        )
        if limit is None or usd <= limit + 1e-6:
            self._affordable_s = now
        elif now - max(self._affordable_s, quiet) > OVERSPENT_S:
            self.broken("I4", f"pods cost ${usd:.2f}/h, and MAX_HOURLY_COST_USD={limit}")

    def _published(self, now: float, quiet: float) -> None:
        """Check that no end waits for long to be published while a process leads."""
        if self._led_s < now or now - max(quiet, self._term_s) < LATE_S:
            return
        for task_id, (_, at) in self._world.db.publications.items():
            late_s = (self._world.kernel.moment() - at).total_seconds()
            if late_s > LATE_S:
                self.broken("shown", f"the end of task {task_id} waits to be published for {late_s:.0f} s")

    def _retention(self, now: float, quiet: float) -> None:
        lease, moment = self._world.db.leases.get(FLEET), self._world.kernel.moment()
        if lease is None or lease["expires_at"] < moment or now < quiet:
            return
        led_s = (moment - lease["since"]).total_seconds()
        done_at = self._world.db.retained_at.get(FLEET)
        late = done_at is None or (moment - done_at).total_seconds() > RETAIN_S + RETAIN_LATE_S
        if late and led_s > RETAIN_LATE_S:
            self.broken("retention", f"term {lease['term']} leads for {led_s:.0f} s, and it was last done at {done_at}")

    def at_the_end(self) -> None:
        """Check the end of the seed, long after the last fault."""
        world = self._world
        for task in world.db.tasks.values():
            last = world.db.last(task["id"])
            tried = 0 if last is None else last["attempt"] - last["uncounted"]
            if tried > task["max_attempts"]:
                self.broken("sick", f"task {task['id']} was tried {tried} times")
            if task["status"] not in ("Complete", "Failed", "Cancelled"):
                self.broken("I2", f"task {task['id']} ({task['params']}) is still {task['status']}")
        for row in world.db.workers.values():
            if row["status"] != "terminated":
                why = f"{row['stage']}, waits for {row['waiting_on']}: {row['waiting_for']}"
                self.broken("I2", f"{row['id']} is still {row['status']}, {why}")
        for pod in world.provider.own():
            self.broken("I1", f"{pod.id} of {pod.name} is still there")
        for error in world.kernel.errors:
            self.broken("crash", error)
        self._ledger()

    def _ledger(self) -> None:
        bucket = self._world.bucket
        for pod in self._world.provider.pods.values():
            for nonce, agent in pod.agents.items():
                for stream in STREAMS:
                    content = bytes(pod.files.get(f"{agent_commands.run_dir(nonce)}/logs/{stream}.log", b""))
                    pieces = self._world.db.log_objects.get((agent.worker_id, nonce, stream), [])
                    known: int | None = 0
                    for piece in pieces:
                        if piece["first_byte"] != known:
                            self.broken("I5", f"a gap at {known} in {stream}.log of {agent.worker_id}")
                        known = piece["last_byte"]
                        if piece["shipped_at"] is None:
                            if not piece["declared_lost"]:
                                self.broken("I5", f"piece {piece['seq']} of {agent.worker_id} was left begun")
                        elif gzip.decompress(bucket[piece["key"]]) != content[piece["first_byte"] : known]:
                            self.broken("I5", f"{piece['key']} is not what was written")
                    if known is not None and known < len(content):
                        self.broken("I5", f"{len(content) - known} bytes of {stream}.log of {agent.worker_id} are lost")


def _stands(task: Mapping[str, Any]) -> bool:
    return task["params"]["kind"] in STANDS


def _offer(row: Mapping[str, Any]) -> Any:
    return row["metadata"].get("offer")
