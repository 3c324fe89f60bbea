"""The settings of a pool as a replay takes them."""

from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.policy import Policy, Pool


def settings_of(pool: Pool, policy: Policy) -> ScalingSettings:
    """Return the settings in force of a pool. An operator's limit for a time is not among them."""
    return ScalingSettings(
        max_active=pool.max_active,
        scaling_policy=pool.scaling_policy,
        wait_price=pool.wait_price,
        max_wait_s=pool.max_wait_s,
        tasks_per_gpu=pool.tasks_per_gpu,
        min_active=pool.min_active,
        keep_idle=pool.keep_idle,
        idle_timeout_s=pool.idle_timeout_s,
        overcapacity_idle_timeout_s=pool.overcapacity_idle_timeout_s,
        grace_s=policy.scale_down_grace_s,
    )
