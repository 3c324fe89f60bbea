"""One connection to a database, to learn why there is none."""

import psycopg

from orchestrator.ports import DatabaseAuth, PortError, TooManyConnections, Unavailable

CONNECT_TIMEOUT_S = 10
# the refusal does not concern the credentials
PASSING = ("starting up", "shutting down", "recovery mode", "unable to check out")
# The errors of PostgreSQL, Supavisor (both modes, older and newer) and PgBouncer if no connection is left.
FULL = ("too many", "remaining connection slots", "max clients", "max client conn", "no more connections")
HOW = "set DATABASE_URL to a user, a password and a database that its server accepts"


async def try_connection(url: str) -> None:
    """Connect once. A pool would retry for its whole timeout and then not report the reason.

    Raises Unavailable, TooManyConnections or DatabaseAuth.
    """
    try:
        connection = await psycopg.AsyncConnection.connect(url, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        if any(words in text.lower() for words in FULL):
            raise TooManyConnections(f"no connection left: {text}") from None
        if "FATAL:" in text and not any(word in text for word in PASSING):
            raise DatabaseAuth(f"{text}; fix: {HOW}") from None
        raise Unavailable(text) from None
    await connection.close()


async def connection_error(url: str) -> PortError | None:
    """Return the error of a finished connection test, or None."""
    try:
        await try_connection(url)
    except PortError as error:
        return error
    return None
