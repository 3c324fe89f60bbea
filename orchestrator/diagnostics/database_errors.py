"""The meaning of an error of the database for an operator: text and fix of the condition `database_down`."""

import re

UNREACHABLE = "is unreachable"
READ_ONLY = "25006"  # its SQLSTATE
LOCKS = "see who holds locks: select pid, xact_start, query from pg_stat_activity order by xact_start"
# What the error contains -> what the database does, and the fix. The first that fits counts; codes are SQLSTATEs.
MEANINGS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), what, fix)
    for pattern, what, fix in (
        (r"no database is given", "is not named in the settings",
         "python -m orchestrator init; or set DATABASE_URL=postgresql://…"),
        (r"row-level security", "hides rows from the functions of the orchestrator",
         "python -m orchestrator doctor database"),
        (r"^DatabaseAuth|\b28(000|P01)\b", "refuses the login",
         "correct the user, the password or the key in the settings: python -m orchestrator doctor database"),
        (rf"\b{READ_ONLY}\b|read-only transaction", "allows no writes",
         "connect to the primary server, or end the read-only mode of the server or of the role"),
        (r"\b(53300|53400)\b|too many|connection slots|max client", "has no free connection",
         "close other clients, or raise its limit: max_connections, or that of the pooler"),
        (r"\b(55P03|57014|40P01)\b|: no answer within", "answers too late", LOCKS),
        (r"\b(21|22|23|42|P0|XX)[0-9A-Z]{3}: ", "fails in a function",
         "python -m orchestrator migrate; if that does not help, a trigger or a policy of yours may be the cause"),
    )
)  # fmt: skip


def meaning(error: str, reach: str) -> tuple[str, str]:
    """Return what the database does, and the fix.

    `error`: the type and text of a PortError. `reach`: the fix if it cannot be reached.
    """
    return next(((what, fix) for pattern, what, fix in MEANINGS if pattern.search(error)), (UNREACHABLE, reach))
