"""Every error that the command line shows, under an id that never changes its meaning.

An error is three lines: `error[E010]: what`, `why: …`, `fix: …` (something to paste). The id also fixes the exit code:
1 unhealthy or failed, 2 usage, 3 not found, 4 configuration or authentication.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import ports


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    id: str
    exit_code: int
    what: str
    fix: str  # when nothing better is known


SETTING = Kind("E001", 4, "a setting cannot be used", "compare your environment with .env.example")
MISSING_PART = Kind("E002", 4, "a part of this program is not installed", "./run --help makes .venv the first time")
NO_DATABASE = Kind(
    "E010",
    1,
    "the database does not answer",
    'psql "$DATABASE_URL" -c "select 1"; or: curl -i "$SUPABASE_URL/rest/v1/"',
)
OLD_SCHEMA = Kind("E011", 4, "the database's schema is not this version's", "python -m orchestrator migrate")
DATABASE_AUTH = Kind("E012", 4, "the database refuses us", 'psql "$DATABASE_URL" -c "select current_user"')
CONNECTION_LIMIT = Kind(
    "E013",
    1,
    "the database has no connection left",
    "wait for the old process to end, stop other clients, or raise the pool size (Supabase: Settings, Database)",
)
PROVIDER_AUTH = Kind("E020", 4, "RunPod refuses the API key", "set RUNPOD_API_KEY to a key that may manage pods")
NO_PROVIDER = Kind("E021", 1, "RunPod does not answer", 'curl -i "${RUNPOD_API_BASE_URL:-https://api.runpod.io}"')
NO_BUCKET = Kind("E030", 1, "the log bucket does not answer", "check S3_ENDPOINT_URL, S3_BUCKET and the AWS_… keys")
LOG_OBJECT_GONE = Kind(
    "E031", 1, "a log object is not in the bucket", "check S3_BUCKET, S3_PREFIX and its lifecycle rules"
)
LOG_OBJECT_BAD = Kind("E032", 1, "a log object is not what was shipped", "see who else writes to the bucket")
NO_WORKER = Kind("E040", 3, "no such worker", "python -m orchestrator list --all")
NO_TASK = Kind("E041", 3, "no such task", "python -m orchestrator tasks list")
NO_MEANING = Kind("E042", 3, "no such error id or code", "python -m orchestrator explain NO_CAPACITY")
CONFIRM = Kind("E050", 2, "this needs a yes, and there is no terminal to ask on", "repeat it with --force")
WRONG_STATE = Kind("E051", 1, "this cannot be done in its present state", "python -m orchestrator list")
BAD_ARGUMENT = Kind("E052", 2, "an argument cannot be used", "repeat the command with --help")
ENDED_BADLY = Kind("E060", 1, "it was asked for, and did not come true", "python -m orchestrator status <worker>")
NOT_IN_TIME = Kind("E061", 1, "it was asked for, and has not come true yet", "python -m orchestrator status <worker>")

KINDS = {kind.id: kind for kind in tuple(globals().values()) if isinstance(kind, Kind)}


class Failure(Exception):
    """An error to be shown, not a bug."""

    def __init__(self, kind: Kind, *, why: str, what: str | None = None, fix: str | None = None) -> None:
        self.kind = kind
        self.what = what or kind.what
        self.why = why
        self.fix = fix or kind.fix
        super().__init__(f"{self.what}: {self.why}")

    def lines(self) -> tuple[str, str, str]:
        """The three lines."""
        return f"error[{self.kind.id}]: {self.what}", f"why: {self.why}", f"fix: {self.fix}"

    def as_json(self) -> dict[str, str]:
        """The same for a program."""
        return {"id": self.kind.id, "what": self.what, "why": self.why, "fix": self.fix}


class Failures(Exception):
    """Several at once, at least one: nobody should mend a setting only to hear of the next."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        self.failures = tuple(failures)
        super().__init__("; ".join(str(failure) for failure in self.failures))


_KIND_OF: tuple[tuple[type[ports.PortError], Kind], ...] = (
    (ports.SchemaMismatch, OLD_SCHEMA),
    (ports.ApiAuth, PROVIDER_AUTH),
    (ports.DatabaseAuth, DATABASE_AUTH),
    (ports.BadArgument, BAD_ARGUMENT),
    (ports.NotFound, LOG_OBJECT_GONE),
    (ports.UnknownWorker, NO_WORKER),
    (ports.TooManyConnections, CONNECTION_LIMIT),
    (ports.Unavailable, NO_DATABASE),
)


def from_port_error(error: ports.PortError) -> Failure:
    """The error shown for a port's refusal; whoever calls the provider or the bucket names a better kind himself."""
    text, _, fix = (" ".join(str(error).split()) or type(error).__name__).partition("; fix: ")
    if isinstance(error, ports.Unavailable) and "authentication failed" in text:
        return Failure(DATABASE_AUTH, why=text)
    kind = next((kind for of, kind in _KIND_OF if isinstance(error, of)), WRONG_STATE)
    return Failure(kind, why=text, fix=fix or None)
