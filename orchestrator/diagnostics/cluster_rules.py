"""Rules about clusters: one that has failed, and one that does not work as a whole; clusters.py has explanations."""

from collections.abc import Callable, Iterator

from orchestrator.core.cluster_states import WORKING, ClusterStatus
from orchestrator.core.clusters.diagnoses import Diagnosis
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.diagnostics.clusters import ClusterProblem, problems, standing
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.facts import Facts

SETTLES_S = 120.0  # in which Slurm is set up; meanwhile nothing that is not there yet is a problem
SHOWN = 3  # problems whose evidence is shown
EFFECTS = frozenset({Diagnosis.NODES_MISSING, Diagnosis.NO_APP_CONTROLLER})  # of another problem, if there is one
CLAIMS_NOT = frozenset({Diagnosis.AGENT_API_UNREACHABLE, Diagnosis.AGENT_CRED_EXPIRED, Diagnosis.TOKEN_INVALID})


def _clusters(facts: Facts) -> Iterator[Condition]:
    """Find clusters that have failed, and what is wrong with those that are set up."""
    for row in facts.clusters:
        waits = Impact.WAIT if facts.ready_tasks(row.pool) else Impact.NONE
        detail = {"cluster": row.id, "pool": row.pool, "state": str(row.status)}
        if row.status is ClusterStatus.FAILED:
            ended = standing(row)
            detail |= {"what": ended.what, "fix": ended.fix}
            evidence = ended.code or ""
            kind, since = ConditionKind.CLUSTER_FAILED, row.status_since
            yield Condition(kind, row.id, detail, evidence, waits, since, pools=(row.pool,))
        elif row.status is ClusterStatus.DELETING and waits:
            now = standing(row)
            detail |= {"what": f"it waits for {now.what}, and claims no task", "fix": now.fix}
            kind, since = ConditionKind.CLUSTER_DEGRADED, row.status_since
            yield Condition(kind, row.id, detail, "", waits, since, pools=(row.pool,))
        elif row.status in WORKING or (
            row.status is ClusterStatus.DEPLOYING and facts.ago_s(row.status_since) >= SETTLES_S
        ):
            yield from _problems(facts, row, detail, waits)


def _problems(facts: Facts, row: ClusterRow, detail: dict[str, str], waits: Impact) -> Iterator[Condition]:
    """Find what is wrong with a cluster. Its tasks wait for it, unless its controller runs them."""
    found = sorted(problems(row, facts.now), key=lambda one: one.code in EFFECTS)
    now = standing(row)
    if found:
        detail |= {"what": found[0].cause, "fix": found[0].fix}
    elif row.status is not ClusterStatus.RUNNING:
        detail |= {"what": now.what, "fix": now.fix}
    else:
        return
    evidence = "; ".join(f"{one.code}: {one.evidence}" for one in found[:SHOWN])
    controller = facts.controllers.get(row.id)
    runs = controller is not None and not any(_silences(one, controller) for one in found)
    impact, pools = (Impact.NONE, ()) if runs else (waits, (row.pool,))
    kind, since = ConditionKind.CLUSTER_DEGRADED, row.status_since
    yield Condition(kind, row.id, detail, evidence, impact, since, pools=pools)


def _silences(problem: ClusterProblem, controller: str) -> bool:
    """Whether the controller's agent claims no task because of this."""
    return problem.worker_id == controller and problem.code in CLAIMS_NOT


RULES: tuple[Callable[[Facts], Iterator[Condition]], ...] = (_clusters,)
