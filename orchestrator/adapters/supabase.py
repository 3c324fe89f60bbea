"""The Supabase transport: the same functions over PostgREST's RPC, through the supabase client.

A call that is known not to have been executed is made again for a while: PostgREST has not read the schema yet or
cannot reach its database (503 in bursts while a project wakes up or migrates), or it does not know of a function that a
migration has just made. Everything else that is no clear answer may have been done, and is the caller's to look at.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from typing import Any, Self

import httpx
from postgrest.exceptions import APIError
from supabase import AsyncClient, AsyncClientOptions, acreate_client

from orchestrator.adapters.arguments import check_names, plain
from orchestrator.adapters.functions import refusal
from orchestrator.adapters.notifications import POLL_S, Listeners, poll
from orchestrator.adapters.replies import loads
from orchestrator.ports import BadArgument, DatabaseAuth, PortError, SchemaMismatch, Unavailable

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30.0  # below what the balancers in front of a project keep an idle connection for
AGAIN_AFTER_S = (0.1, 0.3, 0.6, 1.0, 2.0, 2.0)  # waits between tries, where nothing was done
RELOADS = 4  # of these waits are for a schema cache that is stale: then the function is really not there
DEADLOCK = "40P01"  # the transaction was undone as a whole: calling again is safe
NOT_DONE = frozenset(
    {
        DEADLOCK,
        "PGRST000",  # no connection to the database
        "PGRST002",  # the schema has not been read yet
        "PGRST003",  # no connection of the pool became free in time
    }
)
UNKNOWN = frozenset({"PGRST202", "PGRST205"})  # no such function, no such table: perhaps not yet
# 300: the server has no key. 301, 303: signature, form, expiry. 302: no token. 401, 403: the door in front said so.
AUTH = frozenset({"PGRST300", "PGRST301", "PGRST302", "PGRST303", "401", "403"})
BAD_KEY = "Invalid API key"  # what the door says, without a code
HOW = "set SUPABASE_SERVICE_ROLE_KEY to the project's secret key (sb_secret_…, or the legacy service_role key)"


class SupabaseDb:
    """Db over a Supabase project; see ports.Db. Use `open`. `url`: the project's, without a path."""

    def __init__(self, client: AsyncClient, http: httpx.AsyncClient, call_timeout_s: float, poll_s: float) -> None:
        self._client = client
        self._http = http
        self._call_timeout_s = call_timeout_s
        self._listeners = Listeners(partial(poll, self.call, poll_s))

    @classmethod
    async def open(
        cls, url: str, key: str, *, pool_size: int = 8, call_timeout_s: float = 15, poll_s: float = POLL_S
    ) -> Self:
        """A Db. It does not wait for the database: a call does."""
        # HTTP/1.1: over one HTTP/2 connection, a lost packet or a GOAWAY would hold up or fail all calls at once.
        http = _Client(
            timeout=httpx.Timeout(call_timeout_s, connect=min(CONNECT_TIMEOUT_S, call_timeout_s)),
            limits=httpx.Limits(max_connections=pool_size, keepalive_expiry=KEEP_ALIVE_S),
            verify=_trusted(),
        )
        options = AsyncClientOptions(
            httpx_client=http, postgrest_client_retry=False, persist_session=False, auto_refresh_token=False
        )
        return cls(await acreate_client(url, key, options), http, call_timeout_s, poll_s)

    async def close(self) -> None:
        """Close every connection."""
        await self._listeners.close()
        await self._http.aclose()

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded. Raises port errors by `code`; Unavailable where there is no clear answer."""
        check_names((function, *args))
        body = plain(args)
        last: PortError | None = None
        try:
            async with asyncio.timeout(self._call_timeout_s):
                for tried, wait_s in enumerate((*AGAIN_AFTER_S, None)):
                    last = None
                    try:
                        return await self._once(function, body)
                    except _NotDone as not_done:
                        last = not_done.error
                        if wait_s is None or (isinstance(last, SchemaMismatch) and tried >= RELOADS):
                            raise last from not_done.__cause__
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise last or Unavailable(f"{function}: no answer within {self._call_timeout_s:g} s") from None
        raise AssertionError("unreachable")

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of what changed, by polling, for ever; CONNECTED first, and after each gap."""
        return self._listeners.stream()

    async def _once(self, function: str, body: Mapping[str, Any]) -> Any:
        try:
            answer = (await self._client.rpc(function, dict(body)).execute()).data
        except APIError as error:
            raise _read(function, error) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            where = self._client.supabase_url
            raise _NotDone(Unavailable(f"{function}: no connection with {where}: {_words(error)}")) from error
        except httpx.HTTPError as error:
            raise Unavailable(f"{function}: {_words(error)}") from error
        except ValueError as error:  # NaN, a lone surrogate: no JSON, so nothing was sent
            raise BadArgument(f"{function}: not to be said in JSON: {error}") from error
        if not isinstance(answer, dict):  # our functions return objects: somebody else's page
            raise Unavailable(f"{function}: an answer that is no JSON object: {str(answer)[:200]}")
        return answer


class _Client(httpx.AsyncClient):
    """Its replies are decoded as those over a direct connection are."""

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        response = await super().send(request, **options)
        response.json = lambda **_: loads(response.content)  # type: ignore[method-assign]
        return response


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted: read once, which takes 20 ms."""
    return httpx.create_ssl_context()


class _NotDone(Exception):
    """Nothing was executed; `error` is what the caller hears if it stays so."""

    def __init__(self, error: PortError) -> None:
        super().__init__(str(error))
        self.error = error


def _read(function: str, error: APIError) -> Exception:
    """The port error for PostgREST's refusal, or for that of whatever stands in front of it."""
    code, message = error.code, error.message or "no reason given"
    if code in AUTH or (code is None and BAD_KEY in message):
        return DatabaseAuth(f"{function}: Supabase refuses the key: {message}; fix: {HOW}")
    found = refusal(code, f"{function}: {message}", error.details, error.hint)
    if isinstance(found, DatabaseAuth):  # the key is another role's: the anon key, most often
        return DatabaseAuth(f"{found}; fix: {HOW}")
    return _NotDone(found) if code in NOT_DONE or code in UNKNOWN else found


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
