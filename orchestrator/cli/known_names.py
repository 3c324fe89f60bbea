"""Refuses a filter by a pool or a task type that does not exist: its empty list would look like an answer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.cli.program import suggestion
from orchestrator.cli.session import settings_for
from orchestrator.errors import BAD_ARGUMENT, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

NAMED = 8  # names that the error shows


async def require_known(store: "SqlStore", *, pool: str | None = None, task_type: str | None = None) -> None:
    """Raise Failure for a name that neither the settings here nor the database have."""
    settings = settings_for("database")
    pools = {one.name for one in settings.policy().pools}
    types = {name for name, _ in settings.worker_handlers}
    if (pool is None or pool in pools) and (task_type is None or task_type in types):
        return
    names = await store.find.names()
    _refuse_unknown("pool", pool, pools.union(names["pools"]))
    _refuse_unknown("task type", task_type, types.union(names["types"]))


def _refuse_unknown(kind: str, name: str | None, known: Iterable[str]) -> None:
    ordered = sorted(known)
    if name is None or name in ordered:
        return
    some = ", ".join(ordered[:NAMED]) + (", …" if len(ordered) > NAMED else "")
    why = f"the {kind}s are {some}.{suggestion(name, ordered)}" if ordered else f"there is no {kind} yet"
    raise Failure(BAD_ARGUMENT, what=f"there is no {kind} {name!r}", why=why)
