"""What the commands start: the service until a signal, one tick, or one maintenance job."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from orchestrator import __version__
from orchestrator.config.doubtful import doubtful
from orchestrator.config.effective import digest, effective
from orchestrator.config.environment import unread
from orchestrator.config.errors import SettingsError
from orchestrator.config.settings import Settings
from orchestrator.core import maintenance
from orchestrator.core.actions import Plan
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.errors import Failure, Failures
from orchestrator.loop.watchdog import Watchdog
from orchestrator.observability.error_reports import reporting_errors
from orchestrator.observability.logging import configure
from orchestrator.ports import PortError
from orchestrator.service import process
from orchestrator.service.control_loop import build_loop
from orchestrator.service.http import open_application, text_of
from orchestrator.web.server import GatewayServer
from orchestrator.wiring import LIST_WAIT_S

JOB_EVERY_S = 2.0  # the tick interval while an operator waits
SERVED_S = 0.5  # for running answers and long polls, after the loop has stopped
log = structlog.get_logger()


async def run(settings: Settings) -> int:
    """Run the daemon and its HTTP server until SIGTERM or SIGINT.

    Exit in EXIT_WITHIN_S; a second signal exits at once.
    """
    configure(settings.log_level, settings.secrets())
    expected = (PortError, Failure, Failures, SettingsError)
    with reporting_errors(text_of(settings.sentry_dsn), settings.fleet_id, __version__, expected):
        return await _run(settings)


async def _run(settings: Settings) -> int:
    for one in unread(settings):
        log.warning("setting_unread", message=". ".join(one.problem), variable=one.name)
    for doubt in doubtful(settings):
        log.warning("setting_doubtful", message=". ".join(doubt))
    process.raise_limits()
    stop = asyncio.Event()
    process.stop_on_signals(stop)
    async with build_loop(settings) as (daemon, parts):
        server = GatewayServer(
            settings.host, settings.port, partial(open_application, settings, parts, asyncio.get_running_loop())
        )
        parts.notified.append(server.on_notification)
        server.open()
        process.keep_objects_of_start()
        watching = asyncio.create_task(_stop_with(server, stop), name="watch_the_server")
        log.info(
            "orchestrator_started",
            fleet=settings.fleet_id,
            port=settings.port,
            worker_url=settings.worker_url,
            configuration=digest(effective(settings)),
        )
        with Watchdog(lambda: parts.health.steps, tick_limit_s=parts.health.dead_after_s).watching():
            await daemon.run(stop)
        died = server.closed.is_set()
        await server.close(SERVED_S)
        watching.cancel()
    log.info("orchestrator_stopped")
    return 1 if died else 0


async def _stop_with(server: GatewayServer, stop: asyncio.Event) -> None:
    await server.closed.wait()
    stop.set()  # without the HTTP server (port in use), the loop must end too


async def once(settings: Settings) -> Plan | None:
    """Run one tick with its actions. None if another orchestrator leads. Raises PortError if the database refuses."""
    configure(settings.log_level, settings.secrets())
    async with build_loop(settings, patience_s=LIST_WAIT_S) as (daemon, _):
        return await daemon.once()


async def lead_for(
    settings: Settings, job: MaintenanceJob, is_done: Callable[[], Awaitable[bool]], *, timeout_s: float
) -> None:
    """Lead for one maintenance job, if there is no other leader, until it is done or `timeout_s` is over.

    Then release the lease.
    """
    configure("WARNING", settings.secrets())
    often = settings.model_copy(update={"orchestrator_poll_sec": JOB_EVERY_S})
    async with build_loop(often, planner=partial(maintenance.plan, job)) as (daemon, _):
        stop = asyncio.Event()
        leading = asyncio.create_task(daemon.run(stop), name="maintenance_job")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not leading.done() and not await is_done():
                        await asyncio.sleep(JOB_EVERY_S)
        finally:
            stop.set()
            await leading
