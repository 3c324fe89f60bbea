"""Opens the HTTP application on its own thread, with connections of its own while this process leads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydantic import SecretStr
from starlette.applications import Starlette

from orchestrator.adapters.api_rows import ApiRows
from orchestrator.adapters.metered import MeteredWorkerDb
from orchestrator.adapters.s3_signing import origins
from orchestrator.config.settings import Settings
from orchestrator.service.adapters import GATEWAY_POOL
from orchestrator.service.control_loop import Parts
from orchestrator.service.tokens import sealed_token_for
from orchestrator.web.api.operations import Api
from orchestrator.web.app import build_app
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.role_routing import RoleRoutedCalls, RoleRoutedDb
from orchestrator.web.wakeups import WakeupHub
from orchestrator.wiring import as_direct, open_worker_db
from orchestrator.worker_tokens import verifier

FOLLOWS = frozenset({"starting", "standby"})  # the roles in which the gateway has no connections of its own


@asynccontextmanager
async def open_application(
    settings: Settings, parts: Parts, loop: asyncio.AbstractEventLoop, wakeups: WakeupHub
) -> AsyncIterator[Starlette]:
    """Open the application on the event loop of this thread; `loop` is the control loop's."""
    async with open_worker_db(settings, pool_size=GATEWAY_POOL) as own:
        shared = as_direct(parts.db)

        def leads() -> bool:
            return parts.health.role not in FOLLOWS

        db = RoleRoutedDb(own, shared, loop, leads) if own and shared else None
        if own:
            here = asyncio.get_running_loop()
            parts.on_lead.append(lambda leads: None if leads else _close_idle(here, own.resize(GATEWAY_POOL)))
        calls = RoleRoutedCalls(own, shared or parts.db, loop, leads)
        api = Api(
            ApiRows(calls, settings.fleet_id),
            parts.blobs,
            wakeups,
            admin_token=text_of(settings.admin_token),
            viewer_token=text_of(settings.viewer_token),
            policy=settings.policy(),
        )
        yield build_app(
            db=MeteredWorkerDb(db, parts.metrics) if db else None,
            blobs=parts.blobs,
            verifier=verifier(*settings.token_keys()),
            health=parts.health,
            wakeups=wakeups,
            on_unanswered=lambda worker_id: _call_soon(loop, parts.observer.note_unanswered, worker_id),
            metrics=parts.metrics,
            metrics_token=text_of(settings.metrics_token),
            proxy_hops=settings.proxy_hops,
            sealed=sealed_token_for(settings),
            api=api,
            dashboard=Dashboard(
                api, settings.fleet_id, bucket_origin=bucket_origin(settings), has_proxy=settings.proxy_hops > 0
            ),
        )


def bucket_origin(settings: Settings) -> str | None:
    """Return from where browsers load outputs; None without a bucket."""
    if not settings.s3_bucket:
        return None
    return origins(settings.s3_endpoint_url, settings.s3_bucket, settings.aws_region)


def text_of(secret: SecretStr | None) -> str | None:
    """Return the text of a secret setting."""
    return secret.get_secret_value() if secret else None


def _close_idle(loop: asyncio.AbstractEventLoop, closing: Coroutine[Any, Any, None]) -> None:
    """Close the idle connections of another thread's pool."""
    try:
        asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop has closed, and its connections with it
        closing.close()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[str], None], argument: str) -> None:
    with suppress(RuntimeError):  # the loop has closed: the process is about to end
        loop.call_soon_threadsafe(callback, argument)
