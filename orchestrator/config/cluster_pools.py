"""What a pool of kind "cluster" may be: one place with a private network, and no worker of its own accord."""

from collections.abc import Iterator

from orchestrator.config.errors import SettingProblem
from orchestrator.core.policy import Pool, PoolKind

CLOUD = "SECURE"


def cluster_problems(pool: Pool, where: str) -> Iterator[SettingProblem]:
    """Yield what is wrong with a cluster pool. `where` names its place in the file."""
    if pool.kind is not PoolKind.CLUSTER:
        if pool.install_slurm:
            why = 'install_slurm is only for a pool with kind = "cluster"'
            yield SettingProblem(f"{where} contradicts itself", why, 'add kind = "cluster", or remove install_slurm')
        return
    what = f"{where} cannot be a cluster"
    if pool.name == "default":
        why = "the default pool takes the tasks that no other pool takes, and these do not run on Slurm"
        yield SettingProblem(what, why, "give the cluster a pool with another name, and its task_types")
    centers = sorted({offer.data_center or "" for offer in pool.offers})
    if len(centers) != 1 or centers == [""]:
        named = ", ".join(centers) if any(centers) else "none"
        why = f"its nodes must be in exactly one data centre, and its data_centers are: {named}"
        yield SettingProblem(what, why, 'set data_centers = ["EU-RO-1"] to one with a global network')
    if any(offer.cloud != CLOUD for offer in pool.offers):
        why = "only pods of the SECURE cloud get a private network"
        yield SettingProblem(what, why, f'set cloud = "{CLOUD}" for this pool')
    for key, value in (("min_active_gpus", pool.min_active), ("machines_to_keep_idle", pool.keep_idle)):
        if value:
            why = f"{key} = {value}, and the number of its workers is the number of nodes of its cluster"
            yield SettingProblem(what, why, f"remove {key}; python -m orchestrator cluster create has --min-nodes")
