"""Refusals of the API: `application/problem+json` (RFC 9457) with the stable ids of orchestrator/errors.py."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from orchestrator.errors import (
    API_OFF,
    BAD_ARGUMENT,
    BAD_REQUEST,
    CHANGED,
    INTERNAL,
    KEY_REUSED,
    NO_BUCKET,
    NO_CHANGE,
    NO_CLUSTER,
    NO_LOG,
    NO_OUTPUT,
    NO_ROUTE,
    NO_TASK,
    NO_WORKER,
    NOT_ALLOWED,
    NOT_SIGNED_IN,
    TOO_FAST,
    WRONG_STATE,
    ErrorKind,
    from_port_error,
)
from orchestrator.ports import BadArgument, BlobRefused, LostRace, NotFound, PortError, Unavailable, UnknownWorker
from orchestrator.web.errors import NO_STORE, Refusal

MEDIA_TYPE = "application/problem+json"
RETRY_S = "2"
MAX_DETAIL_CHARS = 1_000
UNAVAILABLE = 503  # HTTP status
ASK_OPERATOR = "try again later; if it lasts, tell the operator of the orchestrator"
# What a caller can do, who has neither the command line nor the settings. None: as the error's own text says.
FIXES: Mapping[ErrorKind, str | None] = {
    API_OFF: "ask the operator of the orchestrator for a token",
    BAD_ARGUMENT: "correct what `detail` names",
    INTERNAL: ASK_OPERATOR,
    NO_CHANGE: "compare its id with GET /api/v1/task-changes",
    NO_CLUSTER: "compare its name with GET /api/v1/projects/default/app-instances",
    NO_TASK: "compare its id with GET /api/v1/tasks",
    NO_WORKER: "compare its id with GET /api/v1/workers",
    WRONG_STATE: "read it again: its state does not allow this",
} | dict.fromkeys((BAD_REQUEST, CHANGED, KEY_REUSED, NO_LOG, NO_OUTPUT, NO_ROUTE, NOT_ALLOWED, NOT_SIGNED_IN, TOO_FAST))


class Problem(Exception):
    """An answer that is a refusal."""

    def __init__(
        self,
        status: int,
        kind: ErrorKind,
        detail: str,
        *,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.fix = fix or FIXES.get(kind, ASK_OPERATOR) or kind.fix
        self.status, self.kind, self.headers = status, kind, headers or {}

    def document(self) -> dict[str, object]:
        """The body."""
        return {
            "type": f"urn:gpu-orchestrator:error:{self.kind.id}",
            "title": self.kind.what,
            "status": self.status,
            "detail": str(self)[:MAX_DETAIL_CHARS],
            "id": self.kind.id,
            "fix": self.fix,
        }

    def response(self) -> JSONResponse:
        """The answer."""
        headers = NO_STORE | dict(self.headers)
        if self.status == 401:  # noqa: PLR2004
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.document(), status_code=self.status, headers=headers, media_type=MEDIA_TYPE)


def too_fast(detail: str, retry_s: str = RETRY_S) -> Problem:
    """429."""
    return Problem(429, TOO_FAST, detail, headers={"Retry-After": retry_s})


def of_refusal(refusal: Refusal) -> Problem:
    """The same refusal of a body, in this form."""
    return Problem(refusal.status, BAD_REQUEST, str(refusal))


def of_port_error(error: PortError) -> Problem:
    """Convert the refusal of the database or the bucket. What only an operator can use is left out."""
    failure = from_port_error(error)
    own_fix = failure.fix if failure.fix != failure.kind.fix else None
    if isinstance(error, BadArgument):
        return Problem(422, BAD_ARGUMENT, _without_function(failure.why), fix=own_fix)
    if isinstance(error, UnknownWorker | NotFound):
        return Problem(404, failure.kind, _without_function(failure.why))
    if isinstance(error, LostRace):
        return Problem(409, failure.kind, _without_function(failure.why))
    if isinstance(error, BlobRefused):
        return Problem(502, NO_BUCKET, "the bucket refuses the orchestrator")
    if isinstance(error, Unavailable):
        headers = {"Retry-After": RETRY_S}
        return Problem(UNAVAILABLE, failure.kind, "the database or the bucket gave no clear answer", headers=headers)
    return Problem(UNAVAILABLE, failure.kind, failure.kind.what)


def _without_function(text: str) -> str:
    """The text without the name of the SQL function in front of it."""
    name, _, rest = text.partition(": ")
    return rest if rest and name.startswith(("task_", "fleet_")) else text
