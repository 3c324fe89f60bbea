"""The database: it answers, it is this version's, it can be used, and who leads."""

from datetime import UTC, datetime

from orchestrator import wiring
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.migrate import sql_files
from orchestrator.ports import BadToken, PortError, SchemaMismatch

MIGRATE = "python -m orchestrator migrate"
TRANSACTION_POOLER_PORT = 6543  # Supabase's
OLDEST = 150_000  # PostgreSQL 15, as server_version_num
CONNECT_TIMEOUT_S = 10


async def database(settings: Settings, section: Section) -> None:
    """Connection and version, schema, functions."""
    require(settings, "database")
    if settings.database_url is not None and not await _server(settings.database_url.get_secret_value(), section):
        section.skip("its schema and functions", "it does not answer")
        return
    async with wiring.open_store(settings) as store:
        try:
            there = await store.check_functions()
        except SchemaMismatch as error:
            section.fail("its schema is not this version's", str(error), MIGRATE)
            return
        ours = sql_files().version
        standing = ours.standing(there)
        if standing == "older":
            section.fail(
                "its schema is older than this program", f"it has {there}, this program brings {ours}", MIGRATE
            )
        elif standing == "newer":
            why = f"it has {there}, this program knows {ours}"
            section.warn("its schema is newer than this program", why, "deploy the newer program here too")
        else:
            section.ok("its schema is current", there)
        try:
            seen = await store.snapshot()
        except BadToken as error:
            section.fail("its functions may not be called", str(error), "use the role that ran the migrations")
            return
        section.ok("its functions answer", f"{len(seen.workers)} live worker(s) in fleet {settings.fleet_id}")


async def leader(settings: Settings, section: Section) -> None:
    """Who leads; a second orchestrator of the same fleet stands by."""
    require(settings, "database")
    try:
        async with wiring.open_store(settings) as store:
            found = (await store.explain_scaling())["leader"]
    except PortError as error:
        section.skip("who leads", f"{type(error).__name__}: {error}")
        return
    if not found:
        why = f"nobody holds the lease of fleet {settings.fleet_id}, so nothing is decided"
        section.warn("no orchestrator leads", why, "python -m orchestrator run")
        return
    since = datetime.fromisoformat(found["since"]).astimezone(UTC)
    led = f"{found['holder']} since {since:%Y-%m-%d %H:%M:%SZ}, term {found['term']}"
    section.ok("an orchestrator leads; another one would stand by", led)


async def _server(url: str, section: Section) -> bool:
    """Connect once, by hand: a pool would not say why it cannot."""
    import psycopg  # noqa: PLC0415  not needed where Supabase's API is the way in

    try:
        async with await psycopg.AsyncConnection.connect(url, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            version, port = connection.info.server_version, connection.info.port
    except (psycopg.Error, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        section.fail("it does not let us in", why, 'psql "$DATABASE_URL" -c "select 1"')
        return False
    shown = f"PostgreSQL {version // 10_000}.{version % 10_000}"
    if version < OLDEST:
        section.fail("it is too old", f"{shown}; 15 or newer is needed", "move to PostgreSQL 15 or newer")
    elif port == TRANSACTION_POOLER_PORT:
        why = f"port {port} is a transaction pooler: it has no LISTEN, so changes are polled for every second"
        section.warn(
            "it answers, through a transaction pooler", why, "use port 5432, the session pooler, in DATABASE_URL"
        )
    else:
        section.ok("it answers", f"{shown}, port {port}: LISTEN works")
    return True
