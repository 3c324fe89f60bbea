"""What people may do to pools: pause and resume them, limit their workers for a time, and start a worker."""

from typing import Any

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.model import EVERY_POOL, ID_PATTERN
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.errors import BAD_ARGUMENT, NOT_ALLOWED, WRONG_STATE
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.action_effects import (
    ActionEffect,
    Fields,
    number_of,
    per_hour,
    reason_of,
    worker_of_form,
)

MAX_WORKERS = 100_000  # of a limit
MAX_MINUTES = 525_600  # of a pause or a limit
MINUTES = "the number of minutes"


async def pause_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What a pause would do."""
    pool = await _known_pool(api, holder, fields)
    seen = await api.rows.observe()
    live = [one for one in seen["workers"] if pool in (None, one["pool"])]
    ready = sum(one["claimable"] for one in seen["demand"] if pool in (None, one["pool"]))
    effects = (
        f"No new worker starts{_in(pool)} until somebody resumes it, or the time is over.",
        f"Workers that are there ({len(live)}) go on with their tasks, and end when they are idle.",
        f"{counted(ready, 'ready task')} {'waits' if ready == 1 else 'wait'} for the workers that are there.",
        f"{pool or 'The fleet'} costs {per_hour(live)} now; a pause makes it cheaper only as workers end.",
    )
    command = "orchestrator pause" + (f" --pool {pool}" if pool else "") + " --reason '…'"
    return ActionEffect(f"Pause {pool or 'every pool'}?", effects, command, "/pools")


async def pause(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Stop spawning."""
    pool, minutes = await _known_pool(api, holder, fields), number_of(fields, "minutes", MAX_MINUTES, MINUTES)
    for_s = None if minutes is None else minutes * 60.0
    reason = reason_of(fields, "paused on the dashboard")
    await api.rows.pause(holder.name, reason, pool=pool, for_s=for_s)
    return f"{pool or 'Every pool'} is paused" + (f" for {span(for_s)}." if for_s else ".")


async def resume_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What resuming would do."""
    pool = _pool(holder, fields)
    seen = await api.rows.observe()
    held = sum(one["blocked"]["paused"] for one in seen["demand"] if pool in (None, one["pool"]))
    effects = (f"{counted(held, 'task')} of paused pools may start workers again, as far as limits and budgets allow.",)
    command = "orchestrator resume" + (f" --pool {pool}" if pool else "")
    return ActionEffect(f"Resume {pool or 'every pool'}?", effects, command, "/pools")


async def resume(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Spawn again."""
    pool = _pool(holder, fields)
    await api.rows.pause(holder.name, None, pool=pool)
    return f"{pool or 'Every pool'} is resumed."


async def limit_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What a limit would do to the workers that are there."""
    pool = await _known_pool(api, holder, fields)
    seen = await api.rows.observe()
    here = [one for one in seen["workers"] if pool in (None, one["pool"])]
    live = [one for one in here if one["status"] != "terminating"]
    busy = sum(bool(one["tasks_running"]) for one in live)
    where = pool or "the whole fleet"
    now = f"{counted(len(live), 'worker')} now, {busy} of them busy: {per_hour(live)}"
    known = [one for one in (api.policy.pools if api.policy else ()) if pool in (None, one.name)]
    idle_s = max((one.overcapacity_idle_timeout_s for one in known), default=None)
    effects = (
        f"{pool or 'The whole fleet'} has {now}.",
        "No worker starts beyond the limit, and those beyond it that are still starting end at once.",
        "Busy workers finish their tasks. Workers beyond the limit end when they are idle"
        + (f" for {span(idle_s)}." if idle_s is not None else "."),
        "It ends by itself, and only lowers: MAX_ACTIVE_GPUS, budgets and pauses apply too.",
    )
    command = "orchestrator scale limit" + (f" --pool {pool}" if pool else "") + " --max N --for 2h"
    return ActionEffect(f"Limit the workers of {where}?", effects, command, "/pools")


async def limit(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Allow at most so many workers for a time."""
    pool = await _known_pool(api, holder, fields)
    most = number_of(fields, "max", MAX_WORKERS, "the limit")
    minutes = number_of(fields, "minutes", MAX_MINUTES, MINUTES)
    if most is None or minutes is None:
        raise Problem(422, BAD_ARGUMENT, "a limit has a number of workers and ends after some minutes: give both")
    reason = reason_of(fields, "limited on the dashboard")
    await api.rows.limit_workers(holder.name, most, reason, pool=pool, for_s=minutes * 60.0)
    return f"{pool or 'The whole fleet'} may have {counted(most, 'worker')} at most for {span(minutes * 60.0)}."


async def unlimit_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What the end of a limit would do."""
    pool = _pool(holder, fields)
    seen = await api.rows.observe()
    limits = [one for name, one in seen["scale_limits"].items() if pool in (None, name)]
    ready = sum(one["claimable"] for one in seen["demand"] if pool in (None, one["pool"]))
    effects = (
        f"{counted(len(limits), 'limit')} {'ends' if len(limits) == 1 else 'end'} before the time.",
        f"{counted(ready, 'ready task')} may start more workers, as far as MAX_ACTIVE_GPUS and budgets allow.",
    )
    command = "orchestrator scale unlimit" + (f" --pool {pool}" if pool else "")
    return ActionEffect(f"End the limit of {pool}?" if pool else "End every limit?", effects, command, "/pools")


async def unlimit(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """End a limit, or all."""
    pool = _pool(holder, fields)
    await api.rows.limit_workers(holder.name, None, pool=pool)
    return f"The limit of {pool} is over." if pool else "No limit is in force."


async def spawn_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What another worker would cost."""
    pool = await _configured(api, holder, fields)
    seen = await api.rows.observe()
    prices = [float(one["price_usd_per_hour"]) for one in seen["workers"]
              if one["pool"] == pool.name and one["price_usd_per_hour"] is not None]  # fmt: skip
    price = (
        f"about {usd(max(prices))}/h, like its other workers" if prices else "the price of the first offer with stock"
    )
    effects = (
        f"The leader starts one worker more in {pool.name} than the queue needs.",
        f"It costs {price}, from the creation of its pod until it has been idle for the pool's timeout.",
        "Budgets and MAX_ACTIVE_GPUS apply to it too.",
    )
    return ActionEffect(
        f"Start a worker in {pool.name}?", effects, f"orchestrator spawn --pool {pool.name}", "/workers"
    )


async def spawn(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Ask for a worker. A form that is sent again names the same one."""
    pool, policy = await _configured(api, holder, fields), api.policy
    if policy is None:
        raise Problem(409, WRONG_STATE, "this process does not know the pools")
    name = worker_of_form(fields)
    is_new = await api.rows.spawn(holder.name, policy.asked_intent(name, pool))
    return f"{name} is asked for." if is_new else f"{name} was asked for before."


def _pool(holder: TokenHolder, fields: Fields) -> str | None:
    """The pool that is named; None for every pool. Raises Problem."""
    pool = fields.get("pool", "").strip() or EVERY_POOL
    if pool == EVERY_POOL and holder.pools is None:
        return None
    if pool == EVERY_POOL or not holder.sees(pool):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may change its own pools only")
    if not ID_PATTERN.fullmatch(pool):
        raise Problem(422, BAD_ARGUMENT, "this is no name of a pool")
    return pool


async def _known_pool(api: Api, holder: TokenHolder, fields: Fields) -> str | None:
    """The pool that is named, which exists; None for every pool. Raises Problem."""
    pool = _pool(holder, fields)
    await api.require_pool(holder, pool)
    return pool


async def _configured(api: Api, holder: TokenHolder, fields: Fields) -> Any:
    """The pool that is named, as the settings have it. Raises Problem."""
    name = await _known_pool(api, holder, fields)
    known = {one.name: one for one in (api.policy.pools if api.policy else ())}
    if name not in known:
        raise Problem(404, BAD_ARGUMENT, f"the pools of this process are {', '.join(filter(holder.sees, known))}")
    return known[name]


def _in(pool: str | None) -> str:
    return f" in {pool}" if pool else ""
