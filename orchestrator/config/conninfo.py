"""DATABASE_URL: the address of a PostgreSQL database, in the forms in which other tools write it."""

import re
import urllib.parse
from collections.abc import Iterator

from pydantic import SecretStr

from orchestrator.config.errors import shown
from orchestrator.config.placeholders import PASSWORD as UNFILLED
from orchestrator.config.placeholders import refuse_names

# With the driver of SQLAlchemy (postgresql+asyncpg://), of a URL for Java (jdbc:postgresql://), or as libpq has it.
URL_START = re.compile(r"(?:jdbc:)?postgres(?:ql)?(?:\+[a-z0-9_]{1,30})?://", re.IGNORECASE)
# As written, in a URL's query and among libpq's pairs: there with a backslash before what means something else.
PASSWORD = re.compile(r"(?:ssl)?password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s&\\]|\\.)+))", re.DOTALL)
BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
DOTNET = re.compile(r"(?:^|;)\s*(?:server|host|user id|username)\s*=[^;]*;", re.IGNORECASE)
# Parameters that tell Prisma, node-postgres, SQLAlchemy, pgx or a dashboard something about their own pool.
OTHERS = frozenset({
    "pgbouncer", "connection_limit", "pool_timeout", "socket_timeout", "statement_cache_size",
    "prepared_statement_cache_size", "prepared_statements", "preparethreshold", "prepare_threshold",
    "default_query_exec_mode", "pool_max_conns", "pool_min_conns", "pool_size", "max_overflow", "pool_mode", "max",
    "single_use_connections", "workaround", "supa", "uselibpqcompat", "sslaccept", "sslidentity", "async_fallback",
    "tcpkeepalive",
})  # fmt: skip
SCHEMAS = frozenset({"schema", "currentschema", "search_path"})
# A whole part of a URL: the password $POSTGRES_PASSWORD, $(PASSWORD) of Kubernetes, %PASSWORD% of Windows.
UNEXPANDED = re.compile(r"\$[A-Z_][A-Z0-9_]{2,99}|\$\([A-Za-z_]\w{0,99}\)")
SHOWN_CHARS = 60
MAX_PORT = 65_535
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SSL_OF = {"true": "require", "1": "require", "no-verify": "require", "false": "prefer", "0": "prefer"} | {
    mode: mode for mode in SSL_MODES
}  # what node-postgres, JDBC and asyncpg write -> libpq's sslmode


def conninfo_passwords(text: str) -> Iterator[str]:
    """The passwords in a connection string, as libpq reads them and as written; not one that is the user's own name."""
    read = _as_libpq(text)
    written = (quoted or bare for quoted, bare in PASSWORD.findall(text))
    for password in (read.get("password"), read.get("sslpassword"), *written):
        if password and password != read.get("user"):
            yield password
            yield urllib.parse.unquote(password)


def conninfo(value: SecretStr) -> SecretStr:
    """Return a connection string as libpq takes it. Raises ValueError, whose text has no password.

    libpq's own errors quote the password, and it splits some strings in the wrong place.
    """
    text = value.get_secret_value()
    if not (start := URL_START.match(text)):
        _refuse_foreign(text)
        read = _as_libpq(text)
    else:
        text = f"postgresql://{text[start.end() :]}"
        if re.search(r"\s", text):
            raise ValueError(
                "it contains a space or a line end, which no URL has: write %20, or remove what follows it"
            )
        if BARE_PERCENT.search(text):
            raise ValueError("a '%' stands for itself, in its password perhaps: write %25 for it")
        text = _with_known_parameters(text)
        read = _as_libpq(text)
        login, at, rest = text.partition("://")[2].partition("@")
        for part in re.split(r"[:/?@&=]", text.partition("://")[2]):
            if UNEXPANDED.fullmatch(part):
                raise ValueError(f"{part[:SHOWN_CHARS]} is a reference that nothing has expanded (a '$' itself is %24)")
        if at and rest.startswith((":", "/")) and login.count(":") <= 1 and "host" not in read:
            raise ValueError("it names no host after the '@': a variable in its place was empty, perhaps")
        is_misplaced = "@" in rest.partition("?")[0] or (at and "/" in login and "?" not in login)
        if is_misplaced or "?" in read.get("user", ""):
            raise ValueError("an '@' or '/' stands in a password or the user's name: write %40 or %2F for it")
    _check(read)
    return SecretStr(text)


def _refuse_foreign(text: str) -> None:
    """Raise ValueError for what is neither a URL of PostgreSQL nor libpq's pairs."""
    if text.startswith("psql "):
        raise ValueError("it begins with the command psql: give the URL alone")
    if DOTNET.search(text):
        raise ValueError("it has the form of .NET (Server=…;User Id=…): copy the URI, postgresql://…, in its place")
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme.startswith("prisma"):
        raise ValueError("it is the address of Prisma's proxy: give the database's own, postgresql://…")
    if scheme in {"http", "https"}:
        raise ValueError("it is a web address; a Supabase project's belongs in SUPABASE_URL")
    if "=" not in text.partition("://")[0]:
        raise ValueError("must be a URL that begins with postgresql:// (or libpq's host=… dbname=…)")


def _with_known_parameters(url: str) -> str:
    """Return a URL whose query has libpq's parameters only. Raises ValueError for one with another meaning."""
    head, mark, query = url.partition("?")
    if not mark or "@" in query.partition("&")[0].partition("=")[0]:  # a '?' of the password
        return url
    kept = []
    for pair in query.strip().split("&"):
        name, equals, value = pair.partition("=")
        key = urllib.parse.unquote(name).lower()
        if key in OTHERS or not pair:
            continue
        if key in SCHEMAS:
            if value.lower() not in {"", "public"}:
                raise ValueError(f"its parameter {name} names {shown(value)}, and the tables are in public: remove it")
            continue
        if key in {"ssl", "sslmode"}:
            name, value = "sslmode", _ssl_mode(name, value)
        elif key not in _keywords():
            raise ValueError(f"its parameter {shown(name)} is none of libpq's: remove it")
        kept.append(f"{name}{equals or '='}{value}")
    return f"{head}?{'&'.join(kept)}" if kept else head


def _ssl_mode(name: str, value: str) -> str:
    mode = SSL_OF.get(value.strip().lower())
    if mode is None:
        raise ValueError(f"its parameter {name} is {shown(value)}, and not one of {', '.join(SSL_MODES)}")
    return mode


def _keywords() -> frozenset[str]:
    from psycopg.pq import Conninfo  # noqa: PLC0415  not needed where Supabase's API is the way in

    return frozenset(option.keyword.decode() for option in Conninfo.get_defaults())


def _check(read: dict[str, str]) -> None:
    """Raise ValueError for a part that nobody has filled in, or that libpq would refuse later."""
    if UNFILLED.fullmatch(read.get("password", "")):
        raise ValueError("its password is a placeholder: write the database's own password in its place")
    for part in ("user", "host", "dbname", "port"):
        refuse_names(read.get(part, ""))
    for port in filter(None, read.get("port", "").split(",")):
        if not (port.isdecimal() and 0 < int(port[:6]) <= MAX_PORT):
            raise ValueError(f"its port is not a number from 1 to {MAX_PORT} (an IPv6 address has brackets: [::1])")
    if read.get("dbname", "").endswith((";", ",")):
        raise ValueError("a ';' or ',' ends the name of its database: remove it")
    if read.get("replication", "0") not in {"0", "false", "off", "no"}:
        raise ValueError("its parameter replication opens no connection for queries: remove it")
    if (mode := read.get("sslmode", "prefer")) not in SSL_MODES:
        raise ValueError(f"its sslmode is {shown(mode)}, and not one of {', '.join(SSL_MODES)}")


def _as_libpq(text: str) -> dict[str, str]:
    from psycopg import ProgrammingError  # noqa: PLC0415  as in _keywords
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except ProgrammingError:
        how = "a password with a space is '…' in host=… password=…, and has %20 in a URL"
        raise ValueError(f"it cannot be read as a connection string, and may not be shown; {how}") from None
