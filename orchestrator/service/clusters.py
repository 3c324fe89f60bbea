"""Builds the leader's job for clusters from the settings."""

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.clusters import configuration
from orchestrator.clusters.access import Members
from orchestrator.clusters.execute import ClusterExecutor
from orchestrator.clusters.munge import munge_key
from orchestrator.clusters.probing import Prober, ProbeSettings
from orchestrator.config.settings import Settings
from orchestrator.core.clusters.view import ClusterPolicy
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.leader_jobs.clusters import Clusters
from orchestrator.pods.latest import Latest
from orchestrator.service.adapters import Adapters
from orchestrator.wiring import login_secret_of

BOOTS = 2  # bring-ups in a row for which a new cluster waits: one may fail and be repeated


def clusters_of(settings: Settings, policy: Policy, adapters: Adapters, latest: Latest) -> Clusters:
    """Return the clusters of a leader. It also ends clusters whose pool was removed, so it needs no cluster pool."""
    pools = [pool for pool in policy.pools if pool.kind is PoolKind.CLUSTER]
    secret = login_secret_of(settings)
    managed = " ".join(policy.public_key.split()[:2]) or None

    def key_of(cluster: str) -> bytes:
        return munge_key(secret, cluster)

    rows = ClusterStore(adapters.background_db, settings.fleet_id)
    members = Members(adapters.ssh_pool, latest.workers.now)
    prober = Prober(members, ProbeSettings(key_of, settings.worker_url, settings.worker_python))
    executor = ClusterExecutor(rows, members, key_of, managed, prober.now)
    return Clusters(rows, prober, executor, {pool.name: _policy(pool, policy) for pool in pools})


def _policy(pool: Pool, policy: Policy) -> ClusterPolicy:
    return ClusterPolicy(
        configuration.conf_sha,
        install_slurm=pool.install_slurm,
        idle_s=pool.idle_timeout_s,
        allocate_s=BOOTS * policy.spawning_timeout_s,
        cut_off_s=policy.deadman_s,
        max_nodes=pool.max_active,
    )
