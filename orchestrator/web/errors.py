"""The format of refusals: PostgREST's statuses and its JSON `{code, message, details, hint}`.

Sources: PostgREST's documented error codes (PGRST…) and its table of SQLSTATE to HTTP status; an agent that talks to
Supabase instead of this gateway reads the same answers.
"""

from typing import Any

from starlette.responses import JSONResponse

from orchestrator.ports import PortError, Unavailable
from worker import protocol

NO_STORE = {"Cache-Control": "no-store"}
CLOSES = {"Connection": "close"}
BAD_JWT = "PGRST301"
NO_JWT = "PGRST302"
BAD_BODY = "PGRST102"
NO_DATABASE = "PGRST000"
TOO_FAST = "RATE_LIMITED"  # our own code, like the next one
NO_BUCKET = "OUTPUT_UNKNOWN"  # our own code: PostgREST has no bucket

UNDEFINED_FUNCTION = "42883"
# SQLSTATE (or its class, two characters) -> HTTP status; anything else is 400. An agent repeats a call after 404 and
# 5xx: a lock, a deadlock or a table that is missing says nothing about the result that it reports.
SERVER_CLASSES = ("09", "25", "26", "2D", "38", "39", "3B", "40", "54", "55", "58", "F0", "HV", "XX")
STATUS = {"42501": 403, "42P01": 404, "57014": 500, "08": 503, "53": 503, "57": 503, "23": 409} | dict.fromkeys(
    SERVER_CLASSES, 500
)


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(
        self, status: int, code: str, message: str, details: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details
        self.hint = hint

    def response(self, *, closes: bool = False) -> JSONResponse:
        """Return the answer in PostgREST's format. `closes`: it is the last one of the connection."""
        headers = NO_STORE | (CLOSES if closes else {})
        if self.status == 401:  # noqa: PLR2004
            headers["WWW-Authenticate"] = "Bearer"
        body = {"code": self.code, "message": str(self), "details": self.details, "hint": self.hint}
        return JSONResponse(body, status_code=self.status, headers=headers)


def unknown_function(function: str, detail: str | None = None) -> Refusal:
    """404: there is no such function, or none with these arguments. It names no other function."""
    return Refusal(404, protocol.UNKNOWN_FUNCTION, f"Could not find the function public.{function[:80]}", detail)


def from_port_error(error: PortError, function: str) -> Refusal:
    """Convert the database's refusal to HTTP."""
    cause: Any = error.__cause__
    sqlstate = getattr(cause, "sqlstate", None)
    if sqlstate is None or (isinstance(error, Unavailable) and sqlstate[:2] in {"08", "53"}):
        return Refusal(503, sqlstate or NO_DATABASE, "The database did not answer", hint="try again")
    if sqlstate == UNDEFINED_FUNCTION:
        return unknown_function(function, "the database has no function of this name with these arguments")
    status = STATUS.get(sqlstate) or STATUS.get(sqlstate[:2], 400)
    diagnostics = getattr(cause, "diag", None)
    return Refusal(
        status,
        sqlstate,
        getattr(diagnostics, "message_primary", None) or str(error),
        getattr(diagnostics, "message_detail", None),
        getattr(diagnostics, "message_hint", None),
    )
