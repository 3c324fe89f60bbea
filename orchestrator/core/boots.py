"""How long a pool's workers usually boot, and which boots are cancelled."""

from collections.abc import Iterable, Sequence
from statistics import median

from orchestrator.core.actions import Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import EndedBringUp, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.states import State

BOOTS = 20  # of the last promoted workers: their median is the usual boot


def usual_boot_s(pool: str, ended: Iterable[EndedBringUp], offer: str | None = None) -> float | None:
    """Return the median boot time of a pool's last promoted workers, of one offer if it is named; None without any."""
    boots = [
        bring_up.boot_s
        for bring_up in ended
        if bring_up.pool == pool and bring_up.boot_s is not None and offer in {None, bring_up.offer}
    ]
    return median(boots[-BOOTS:]) if boots else None


def cancelled(
    pool: Pool, snapshot: Snapshot, policy: Policy, spawning: Sequence[Worker], *, surplus: int, target: int, over: int
) -> list[Terminate]:
    """Return the ends of workers that are not ready yet, the newest first: at most `surplus`.

    The pool has `over` workers more than it may have; so many end in any case. Another one ends if its work has gone,
    and its boot costs more than it can still save.
    """
    boot_s = usual_boot_s(pool.name, snapshot.ended) or policy.spawning_grace_s
    out: list[Terminate] = []
    for worker in sorted(spawning, key=lambda w: w.created_at, reverse=True):
        age_s = (snapshot.now - worker.created_at).total_seconds()
        if len(out) >= surplus or worker.id in snapshot.in_flight:
            continue
        if len(out) < over:
            limit = pool.scale_limit
            own = f"scheduled_sizes allows ({pool.most})" if pool.sized_by else f"MAX_ACTIVE_GPUS={pool.most}"
            most = f"an operator's limit ({limit.allowed} in {limit.where})" if limit else own
            why = f"more than {most}, and not ready yet"
            out.append(Terminate(worker.id, State.SPAWNING, ExitCause.SCALE_DOWN, None, why))
        elif age_s >= policy.spawning_grace_s and not worker.metadata.asked_for:
            if _is_worth_finishing(worker, age_s, boot_s):
                continue
            why = f"its work has gone: target {target}, still spawning after {age_s:.0f} s (usual: {boot_s:.0f} s)"
            out.append(Terminate(worker.id, State.SPAWNING, ExitCause.SCALE_DOWN, None, why))
    return out


def _is_worth_finishing(worker: Worker, age_s: float, boot_s: float) -> bool:
    """Whether it is cheaper to finish this boot than to start another worker when new tasks arrive.

    A boot that takes longer than usual is expected to need half of its age more. Without a pod, nothing is paid yet, so
    finishing has no advantage.
    """
    return worker.pod_id is not None and max(boot_s - age_s, age_s / 2) < boot_s
