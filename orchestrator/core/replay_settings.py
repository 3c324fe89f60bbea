"""The settings of a pool as a replay takes them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from orchestrator.core import scheduled_sizes
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.policy import Policy, Pool, PoolKind


def settings_of(pool: Pool, policy: Policy) -> ScalingSettings:
    """Return the settings of a pool, without its scheduled sizes. An operator's limit for a time is not among them."""
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


def queue_pools(policy: Policy, since: datetime, until: datetime) -> dict[str, ScalingSettings]:
    """Return the settings between two moments of each pool whose size follows its queue."""
    return {
        one.name: replace(settings_of(one, policy), scheduled=tuple(scheduled_sizes.steps(one, since, until)))
        for one in policy.pools
        if one.kind is PoolKind.QUEUE
    }


def with_choices(
    settings: Mapping[str, ScalingSettings], choices: Mapping[str, ScalingPolicy]
) -> dict[str, ScalingSettings]:
    """Return the settings with the rules that operators have chosen: {pool: fixed or learned}; `*` is every pool."""

    def chosen(pool: str, one: ScalingSettings) -> ScalingSettings:
        choice = choices.get(pool) or choices.get(EVERY_POOL)
        return one if choice is None else replace(one, scaling_policy=choice)

    return {pool: chosen(pool, one) for pool, one in settings.items()}
