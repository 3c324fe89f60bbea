"""What the attempts at a stage of bring-up show: the failure that holds it up, and how many attempts are possible."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.stages import PAUSES_S, STAGE_SPECS
from orchestrator.core.states import Stage, State

Row = Mapping[str, Any]
# Stages with one attempt until the deadline. All other stages are tried again after each of PAUSES_S.
TRIED_ONCE = frozenset({Stage.INTENT, Stage.POD_RUNNING, Stage.SSH_DETAILS, Stage.TCP})
WITHOUT_END = frozenset({Stage.POD_CREATED, Stage.DELETING})  # stages without a limit of tries


def current_failure(row: Row, attempts: Sequence[Row]) -> tuple[str | None, str | None, str | None]:
    """Return (code, sub-cause, since when) of the failure that holds up the bring-up now."""
    if row["failure_code"]:
        first = next((a for a in attempts if a["failure_code"] == row["failure_code"]), None)
        code = row["failure_code"]
        return code, subcause_of(code, attempts), (first["ended_at"] if first else None) or row["stage_since"]
    here = {row["stage"], Stage.POD_CREATED.value if row["stage"] == Stage.INTENT else row["stage"]}
    since = None
    code = None
    for attempt in reversed(attempts):  # the newest failures in a row; an open attempt does not end the row
        if attempt["outcome"] == "ok" or (code and attempt["failure_code"] not in {code, None}):
            break
        if attempt["failure_code"] and attempt["stage"] in here:
            code, since = attempt["failure_code"], attempt["ended_at"] or attempt["started_at"]
    return code, subcause_of(code, attempts), since


def subcause_of(code: str | None, attempts: Sequence[Row]) -> str | None:
    """Return the sub-cause that the newest attempt with this code recorded."""
    for attempt in reversed(attempts):
        if code and attempt["failure_code"] == code:
            cause = (attempt["evidence"] or {}).get("cause")
            return str(cause).upper() if cause else None
    return None


def possible_attempts(row: Row, made: int, now: datetime) -> int | None:
    """Return how many attempts at the stage are possible until its deadline, including those already made."""
    stage = Stage(row["stage"]) if row["stage"] else None
    if stage not in STAGE_SPECS or stage in WITHOUT_END or row["status"] != State.SPAWNING:
        return None
    possible = max(made, 1)
    if stage in TRIED_ONCE:
        return possible
    left_s = (moments.moment(row["deadline_at"]) - now).total_seconds()
    while True:
        left_s -= PAUSES_S[min(possible, len(PAUSES_S)) - 1]
        if left_s <= 0:
            return possible
        possible += 1
