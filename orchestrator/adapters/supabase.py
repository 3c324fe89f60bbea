"""The Supabase transport: the same functions over PostgREST's RPC, through the supabase client.

A call is repeated for a while if it is known not to have been executed: PostgREST has not read the schema yet, or
cannot reach its database (503 in bursts while a project wakes up or migrates), or does not know a function that a
migration has just made. Any other unclear answer may mean that the call was executed, so the caller decides.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Self

import httpx
from postgrest.exceptions import APIError
from supabase import AsyncClient, AsyncClientOptions, acreate_client

from orchestrator.adapters.arguments import check_names, plain
from orchestrator.adapters.functions import refusal
from orchestrator.adapters.http_client import outgoing
from orchestrator.adapters.notifications import POLL_S, Listeners, poll
from orchestrator.adapters.replies import loads
from orchestrator.ports import BadArgument, DatabaseAuth, PortError, SchemaMismatch, Unavailable

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30.0  # seconds: load balancers in front of a project close an idle connection later
AGAIN_AFTER_S = (0.1, 0.3, 0.6, 1.0, 2.0, 2.0)  # seconds between tries of a call that was not executed
RELOADS = 4  # tries for a stale schema cache; after these, the function does not exist
DEADLOCK = "40P01"  # the transaction was rolled back as a whole, so a repetition is safe
NOT_DONE = frozenset(
    {
        DEADLOCK,
        "PGRST000",  # no connection to the database
        "PGRST002",  # PostgREST has not read the schema yet
        "PGRST003",  # no connection of the pool became free in time
    }
)
UNKNOWN = frozenset({"PGRST202", "PGRST205"})  # no such function or table, perhaps not yet
# 300: the server has no key. 301, 303: signature, form, expiry. 302: no token. 401, 403: from the proxy in front.
AUTH = frozenset({"PGRST300", "PGRST301", "PGRST302", "PGRST303", "401", "403"})
BAD_KEY = "Invalid API key"  # the proxy's answers, which have no code
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
        """Return a Db. It does not wait for the database; the first call does."""
        # HTTP/1.1: with one HTTP/2 connection, a lost packet or a GOAWAY would delay or fail all calls at once.
        http = _HttpClient(
            timeout=httpx.Timeout(call_timeout_s, connect=min(CONNECT_TIMEOUT_S, call_timeout_s)),
            limits=httpx.Limits(max_connections=pool_size, keepalive_expiry=KEEP_ALIVE_S),
            **outgoing(url),
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
        """Return the function's decoded jsonb. Raises the port's error for `code`.

        Unavailable without a clear answer.
        """
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
        """Yield (channel, payload) of changes forever, by polling. CONNECTED comes first, and after each gap."""
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
        except ValueError as error:  # NaN or a lone surrogate is not JSON, so nothing was sent
            raise BadArgument(f"{function}: not valid as JSON: {error}") from error
        if not isinstance(answer, dict):  # our functions return objects: this is another program's page
            raise Unavailable(f"{function}: an answer that is no JSON object: {str(answer)[:200]}")
        return answer


class _HttpClient(httpx.AsyncClient):
    """Decodes its replies as a direct connection does."""

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        response = await super().send(request, **options)
        response.json = lambda **_: loads(response.content)  # type: ignore[method-assign]
        return response


class _NotDone(Exception):
    """The call was not executed; `error` is for the caller if that does not change."""

    def __init__(self, error: PortError) -> None:
        super().__init__(str(error))
        self.error = error


def _read(function: str, error: APIError) -> Exception:
    """Return the port's error for a refusal of PostgREST, or of the proxy in front of it."""
    code, message = error.code, error.message or "no reason given"
    if code in AUTH or (code is None and BAD_KEY in message):
        return DatabaseAuth(f"{function}: Supabase refuses the key: {message}; fix: {HOW}")
    found = refusal(code, f"{function}: {message}", error.details, error.hint)
    if isinstance(found, DatabaseAuth):  # the key has another role, most often anon
        return DatabaseAuth(f"{found}; fix: {HOW}")
    return _NotDone(found) if code in NOT_DONE or code in UNKNOWN else found


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
