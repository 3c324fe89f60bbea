"""Every error that the command line shows, under an id that never changes its meaning.

An error is three lines: `error[E010]: what`, `why: …`, `fix: …` (something to paste). The id also fixes the exit code:
1 unhealthy or failed, 2 usage, 3 not found, 4 configuration or authentication.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import ports


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table."""

    id: str
    exit_code: int
    what: str
    fix: str  # the default


SETTING = ErrorKind("E001", 4, "a setting cannot be used", "compare your environment with .env.example")
MISSING_PART = ErrorKind(
    "E002", 4, "a part of this program is not installed", "./run --help makes .venv the first time"
)
REACHED = {  # how to see for oneself whether the database answers, by the way that the settings choose
    "DATABASE_URL": 'psql "$DATABASE_URL" -c "select 1"',
    "SUPABASE_URL": 'curl -i "$SUPABASE_URL/rest/v1/" -H "apikey: $SUPABASE_SERVICE_ROLE_KEY"; is the project paused?',
}
MIGRATE = {  # how to create or update the tables, by the same; Supabase's API cannot do it
    "DATABASE_URL": "python -m orchestrator migrate",
    "SUPABASE_URL": "DATABASE_URL=<session pooler: Supabase, Connect, port 5432> python -m orchestrator migrate; or "
    "apply what `python -m orchestrator migrate --sql` prints (`supabase db push`, or the SQL editor)",
}
NO_DATABASE = ErrorKind("E010", 1, "the database does not answer", "; or: ".join(REACHED.values()))
OLD_SCHEMA = ErrorKind("E011", 4, "the database's schema is not this version's", MIGRATE["DATABASE_URL"])
DATABASE_AUTH = ErrorKind(
    "E012", 4, "the database refuses the connection", 'psql "$DATABASE_URL" -c "select current_user"'
)
CONNECTION_LIMIT = ErrorKind(
    "E013",
    1,
    "the database has no connection left",
    "wait for the old process to end, stop other clients, or raise the pool size (Supabase: Settings, Database)",
)
MISSING_RIGHT = ErrorKind(
    "E014", 4, "the database login lacks a right", "an administrator of the database runs the SQL of the message"
)
PROVIDER_AUTH = ErrorKind("E020", 4, "RunPod refuses the API key", "set RUNPOD_API_KEY to a key that may manage pods")
NO_PROVIDER = ErrorKind("E021", 1, "RunPod does not answer", 'curl -i "${RUNPOD_API_BASE_URL:-https://api.runpod.io}"')
NO_BUCKET = ErrorKind(
    "E030", 1, "the log bucket does not answer", "check S3_ENDPOINT_URL, S3_BUCKET and the AWS_… keys"
)
LOG_OBJECT_GONE = ErrorKind(
    "E031", 1, "a log object is not in the bucket", "check S3_BUCKET, S3_PREFIX and its lifecycle rules"
)
LOG_OBJECT_BAD = ErrorKind("E032", 1, "a log object is not what was shipped", "see who else writes to the bucket")
NO_SSH = ErrorKind("E034", 1, "the pod cannot be used over SSH", "python -m orchestrator verify <worker> --now")
BAD_OUTPUT = ErrorKind("E033", 1, "an output cannot be fetched", "python -m orchestrator tasks show <task>")
NO_WORKER = ErrorKind("E040", 3, "no such worker", "python -m orchestrator list --all")
NO_TASK = ErrorKind("E041", 3, "no such task", "python -m orchestrator tasks list")
NO_SCHEDULE = ErrorKind("E043", 3, "no such schedule", "python -m orchestrator schedules list")
NO_CLUSTER = ErrorKind("E045", 3, "no such cluster", "python -m orchestrator cluster list")
NO_CHANGE = ErrorKind("E046", 3, "no such change of tasks", "python -m orchestrator tasks changes")
NO_MEANING = ErrorKind("E042", 3, "no such error id or code", "python -m orchestrator explain --help")
CONFIRM = ErrorKind("E050", 2, "this needs a confirmation, and there is no terminal", "repeat it with --force or --yes")
WRONG_STATE = ErrorKind("E051", 1, "this cannot be done in its present state", "python -m orchestrator list")
BAD_ARGUMENT = ErrorKind("E052", 2, "an argument cannot be used", "repeat the command with --help")
ENDED_BADLY = ErrorKind("E060", 1, "the request failed", "python -m orchestrator status <worker>")
NOT_STARTED = ErrorKind(
    "E062", 1, "the agent did not start on this machine", "check WORKER_CODE_DIR, and that the disk has room"
)
NOT_IN_TIME = ErrorKind("E061", 1, "the request is not done yet", "python -m orchestrator status <worker>")
NO_WEBHOOK = ErrorKind("E044", 3, "no such webhook or message", "python -m orchestrator webhooks list")
NOT_TAKEN = ErrorKind("E066", 1, "the receiver did not accept the message", "correct the receiver; docs/webhooks.md")
NOT_SENT = ErrorKind("E063", 1, "the message was not accepted", "correct ALERT_WEBHOOK_URL; docs/alerts.md")
SOME_FAILED = ErrorKind("E064", 1, "a part of it was not done", "correct what is named, and repeat the command")
NO_TOKEN = ErrorKind("E065", 3, "no such token", "python -m orchestrator tokens list")
API_OFF = ErrorKind("E070", 4, "the API is off", "python -m orchestrator tokens create NAME; or set ADMIN_TOKEN")
NOT_SIGNED_IN = ErrorKind("E071", 4, "the token is missing or not valid", "send Authorization: Bearer <token>")
NOT_ALLOWED = ErrorKind("E072", 4, "the token may not do this", "use a token with this scope: docs/api.md")
TOO_FAST = ErrorKind("E073", 1, "too many requests", "wait as long as Retry-After says, and try again")
BAD_REQUEST = ErrorKind("E074", 2, "the request cannot be read", "compare it with /api/v1/openapi.json")
CHANGED = ErrorKind("E075", 1, "the task has changed", "read it again, and decide again")
KEY_REUSED = ErrorKind("E076", 2, "the Idempotency-Key was used for another request", "use a new key")
NO_OUTPUT = ErrorKind("E077", 3, "the task has no output here", "read the task: only a Complete task has an output")
NO_ROUTE = ErrorKind("E078", 3, "the API has no such address", "compare it with /api/v1/openapi.json")
NO_LOG = ErrorKind("E080", 3, "the task has no such log", "read the task: each attempt has a log")
INTERNAL = ErrorKind("E079", 1, "an error within the orchestrator", "see its log; report it")

KINDS = {kind.id: kind for kind in tuple(globals().values()) if isinstance(kind, ErrorKind)}


class Failure(Exception):
    """An error to show to the user, not a bug."""

    def __init__(self, kind: ErrorKind, *, why: str, what: str | None = None, fix: str | None = None) -> None:
        self.kind = kind
        self.what = what or kind.what
        self.why = why
        self.fix = fix or kind.fix
        super().__init__(f"{self.what}: {self.why}")

    def lines(self) -> tuple[str, str, str]:
        """Return the three lines."""
        return f"error[{self.kind.id}]: {self.what}", f"why: {self.why}", f"fix: {self.fix}"

    def as_json(self) -> dict[str, str]:
        """Return the error as JSON."""
        return {"id": self.kind.id, "what": self.what, "why": self.why, "fix": self.fix}


class Failures(Exception):
    """Several errors, at least one, so that the user can correct all settings at once."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        self.failures = tuple(failures)
        super().__init__("; ".join(str(failure) for failure in self.failures))


_KIND_OF: tuple[tuple[type[ports.PortError], ErrorKind], ...] = (
    (ports.SchemaMismatch, OLD_SCHEMA),
    (ports.MissingRight, MISSING_RIGHT),
    (ports.ApiAuth, PROVIDER_AUTH),
    (ports.DatabaseAuth, DATABASE_AUTH),
    (ports.BadArgument, BAD_ARGUMENT),
    (ports.NotFound, LOG_OBJECT_GONE),
    (ports.UnknownWorker, NO_WORKER),
    (ports.TooManyConnections, CONNECTION_LIMIT),
    (ports.Unavailable, NO_DATABASE),
)


def from_port_error(error: ports.PortError) -> Failure:
    """Return the error for a port's error. Callers of the provider or the bucket choose a more precise kind."""
    text, _, fix = (" ".join(str(error).split()) or type(error).__name__).partition("; fix: ")
    if isinstance(error, ports.Unavailable) and "authentication failed" in text:
        return Failure(DATABASE_AUTH, why=text)
    kind = next((kind for of, kind in _KIND_OF if isinstance(error, of)), WRONG_STATE)
    return Failure(kind, why=text, fix=fix or None)
