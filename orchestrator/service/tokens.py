"""The tokens of workers, as the settings have them and at the present time."""

import time
from collections.abc import Callable, Sequence

from orchestrator.config.settings import Settings
from orchestrator.core.model import Worker
from orchestrator.web.token_renewal import Renewals


def renewals_of(settings: Settings) -> Renewals:
    """The keys with which this fleet signs and renews."""
    has_program = settings.worker_start_command is not None
    return Renewals(settings.token_keys(), settings.deadman_timeout_sec, own_program=has_program)


def token_for(settings: Settings) -> Callable[[Worker, str], str]:
    """Return the function worker, jti -> its first token."""
    renewals = renewals_of(settings)
    return lambda worker, jti: renewals.token(worker.id, jti, time.time())


def sealed_token_for(settings: Settings) -> Callable[[str, str], Sequence[str]]:
    """Return the function worker id, jti -> its next token, encrypted for it."""
    renewals = renewals_of(settings)
    return lambda worker_id, jti: renewals.sealed(worker_id, jti, time.time())
