"""The filter of tasks in an address: what it selects, and the same on the command line."""

import shlex
from collections.abc import Mapping, Sequence
from typing import get_args

from pydantic import ValidationError

from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.models import STATUSES, TaskQuery
from orchestrator.web.api.problems import Problem

OPTIONS = {
    "status": "--status",
    "task_type": "--type",
    "tenant": "--tenant",
    "pool": "--pool",
    "label": "--label",
}  # names in an address, and options of the command line
FILTERS = tuple(OPTIONS)
FORMS = {
    "status": f"a status is one of {', '.join(get_args(STATUSES))}",
    "label": "a label is key=value",
}  # what a filter must be
MAX_SHOWN = 80  # characters of one that is wrong


def given_in(query: Mapping[str, str]) -> dict[str, str]:
    """The filters that an address or a form names."""
    return {name: query[name] for name in FILTERS if query.get(name)}


def query_of(given: Mapping[str, str]) -> TaskQuery:
    """The filters as the API has them. Raises Problem."""
    try:
        return TaskQuery.model_validate({**given, **({"label": [given["label"]]} if "label" in given else {})})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = str(first["loc"][0])
        why = f"`{name}` selects no tasks: {given.get(name, '')[:MAX_SHOWN]!r}"
        raise Problem(400, BAD_ARGUMENT, why, fix=FORMS.get(name, f"correct the {name}")) from None


def options_of(given: Mapping[str, str]) -> str:
    """`--status 'In Progress' --type t`: the same filters on the command line."""
    return " ".join(f"{OPTIONS[name]} {shlex.quote(given[name])}" for name in FILTERS if name in given)


def may_change(status: str | None) -> Sequence[str]:
    """The actions that change tasks of a status; without one, both."""
    kinds = {"Queued": ("cancel",), "In Progress": ("cancel",), "Failed": ("retry",), "Cancelled": ("retry",)}
    return ("cancel", "retry") if status is None else kinds.get(status, ())
