"""All settings together, and what follows from them. environment.py reads them."""

import os
import urllib.parse
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from orchestrator.config.connection_settings import Messages, Needed, Places, Retention, Telemetry
from orchestrator.config.conninfo import conninfo_passwords
from orchestrator.config.fleet_settings import Machines, Scaling, WorkerPrograms
from orchestrator.config.placeholders import (
    refuse_comment,
    refuse_invisible,
    refuse_own_name,
    refuse_placeholder,
    refuse_reference,
    refuse_reference_in_command,
)
from orchestrator.config.pools import read_pools
from orchestrator.config.setting import settings_of
from orchestrator.config.types import in_digits, is_number, unquoted
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer
from worker.secret_values import secrets_in, secrets_of

if TYPE_CHECKING:
    from orchestrator.config.ssh_keys import Pair
    from orchestrator.worker_tokens import Key


SECTIONS = (Needed, Places, Scaling, Machines, WorkerPrograms, Messages, Telemetry, Retention)


KEY_TEXTS = frozenset({"runpod_ssh_private_key", "runpod_ssh_public_key"})  # ssh_keys.py undoes what was done to them
COMMANDS = frozenset({"worker_setup_command", "worker_start_command", "worker_handlers"})  # a shell reads these


def refuse_unfilled(given: str, name: str) -> None:
    """Raise ValueError for a text that cannot be the value of a setting as it is."""
    refuse_own_name(name, given)
    refuse_invisible(given)
    if name in COMMANDS:
        refuse_reference_in_command(given)
        return
    refuse_reference(given)
    refuse_placeholder(given)
    refuse_comment(given)


class Settings(Retention, Telemetry, Messages, WorkerPrograms, Machines, Scaling, Places, Needed, BaseSettings):
    """What the environment says, validated."""

    model_config = SettingsConfigDict(case_sensitive=False, extra="ignore", frozen=True, env_ignore_empty=True)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        if info.field_name in KEY_TEXTS:
            return unquoted(value, strips=False)
        given = unquoted(value)
        if isinstance(given, str):
            refuse_unfilled(given, info.field_name or "")
        if not is_number(field.annotation):
            return given
        extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
        return in_digits(given, extra["unit"])

    @property
    def worker_url(self) -> str | None:
        """How pods reach the worker RPC."""
        if self.worker_api_url or self.supabase_url:
            return self.worker_api_url or self.supabase_url
        return f"https://{self.railway_public_domain}" if self.railway_public_domain else None

    @property
    def proxy_hops(self) -> int:
        """How many proxies of ours each request passes: one on Railway, none elsewhere, unless it is set."""
        if self.trusted_proxy_hops is not None:
            return self.trusted_proxy_hops
        return 1 if self.railway_public_domain else 0

    @property
    def handler_env(self) -> dict[str, str]:
        """The variables that WORKER_ENV names, as far as they are set."""
        return {name: os.environ[name] for name in self.worker_env if name in os.environ}

    @property
    def pods_use_supabase(self) -> bool:
        """Whether pods speak to Supabase's PostgREST and not to this service."""
        return self.worker_url is not None and self.worker_url == self.supabase_url

    def token_keys(self) -> "tuple[Key, ...]":
        """What verifies workers' tokens; the first one signs them. Raises ValueError where a key cannot be used.

        The previous ones only verify: workers have tokens of them until their next renewal.
        """
        from orchestrator.worker_tokens import SigningKey  # noqa: PLC0415  few commands need what it imports

        pairs = (
            (self.worker_jwt_signing_key, self.worker_jwt_secret),
            (self.worker_jwt_signing_key_previous, self.worker_jwt_secret_previous),
        )
        keys: list[Key] = []
        for signing, secret in pairs:
            keys += [SigningKey.parse(signing.get_secret_value())] if signing else []
            keys += [secret.get_secret_value()] if secret else []
        return tuple(keys)

    def login_pair(self) -> "Pair":
        """Return the SSH key pair; the usual damage to its text is repaired. Raises BadKey. Both halves must be set."""
        from orchestrator.config.ssh_keys import login_pair  # noqa: PLC0415  as in _missing_shell

        private, public = self.runpod_ssh_private_key, self.runpod_ssh_public_key
        return login_pair(private.get_secret_value() if private else "", public or "")

    def default_pool(self) -> Pool:
        """The pool that the environment describes."""
        centers: tuple[str | None, ...] = self.runpod_data_centers or (None,)
        return Pool(
            name="default",
            offers=tuple(Offer(gpu, dc, self.runpod_cloud) for gpu in self.runpod_gpu_type for dc in centers),
            gpu_count=1,
            **{one.pool_field: getattr(self, one.name) for one in settings_of(Settings) if one.pool_field},
        )

    def retention_days(self) -> dict[str, float]:
        """How long the rows of each kind are kept, as fleet_retention() names them."""
        days = {one.name: getattr(self, one.name) for one in settings_of(Retention)}
        return {name.removesuffix("_retention_days"): kept for name, kept in days.items() if kept is not None}

    def policy(self) -> Policy:
        """The planner's numbers. Raises SettingsError where POOLS_FILE cannot be used."""
        pools, task_types = read_pools(self.pools_file, self.default_pool())
        return Policy(
            fleet_id=self.fleet_id,
            pools=pools,
            task_types=task_types,
            own_program=self.worker_start_command is not None,
            handled=() if self.worker_start_command else tuple(name for name, _ in self.worker_handlers),
            spawning_timeout_s=self.spawning_timeout_sec,
            spawning_grace_s=self.spawning_grace_period_sec,
            scale_down_grace_s=self.scale_down_grace_period_sec,
            drain_grace_s=self.graceful_shutdown_timeout_sec,
            heartbeat_timeout_s=self.heartbeat_timeout_sec,
            task_stuck_s=self.task_stuck_timeout_sec,
            deadman_s=self.deadman_timeout_sec,
            max_failure_rate=self.max_worker_failure_rate,
            failure_window_s=self.failure_window_minutes * 60,
            failure_min_bringups=self.min_workers_for_rate_check,
            max_failures=self.worker_max_consecutive_failures,
            hourly_budget_usd=self.max_hourly_cost_usd,
            daily_budget_usd=self.daily_budget_usd,
            retention_days=self.retention_days(),
        )

    def secrets(self) -> tuple[str, ...]:
        """Every secret value, for redaction: whole settings, and the passwords and tokens within any."""
        found = list(secrets_of(self.handler_env))
        if self.database_url:
            found += conninfo_passwords(self.database_url.get_secret_value())
        if self.alert_webhook_url:  # an answer can quote the path, which has the token
            parts = urllib.parse.urlsplit(self.alert_webhook_url.get_secret_value())
            found += [parts.path, parts.query]
        for name in type(self).model_fields:
            value = getattr(self, name)
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            if isinstance(text, str):
                found += [text, *secrets_in(text)] if isinstance(value, SecretStr) else secrets_in(text)
        return tuple(dict.fromkeys(found))
