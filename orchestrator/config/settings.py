"""Every setting: its name, type and default, and what follows from it. environment.py reads them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from orchestrator.config.pools import Batch, Count, Seconds, read_pools
from orchestrator.config.types import (
    Conninfo,
    Deadlines,
    Dollars,
    FleetId,
    GpuTypes,
    Handlers,
    Names,
    Url,
    conninfo_passwords,
    in_digits,
    is_number,
    unquoted,
)
from orchestrator.core.model import Offer, Policy, Pool
from orchestrator.observability.redaction import SECRET_NAMES, passwords

if TYPE_CHECKING:
    from orchestrator.config.ssh_keys import Pair
    from orchestrator.worker_tokens import Key


class Settings(BaseSettings):
    """What the environment says, validated; defaults are those of spec'd operators' environments."""

    model_config = SettingsConfigDict(case_sensitive=False, extra="ignore", frozen=True, env_ignore_empty=True)

    # Where things are
    database_url: Conninfo | None = None
    supabase_url: Url | None = None
    supabase_service_role_key: SecretStr | None = None
    supabase_publishable_key: str | None = Field(
        None, validation_alias=AliasChoices("SUPABASE_PUBLISHABLE_KEY", "SUPABASE_ANON_KEY")
    )
    runpod_api_key: SecretStr | None = None
    runpod_api_base_url: Url = "https://api.runpod.io"
    runpod_ssh_public_key: str | None = None
    runpod_ssh_private_key: SecretStr | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: SecretStr | None = None
    aws_region: str = Field("us-east-1", validation_alias=AliasChoices("AWS_REGION", "AWS_DEFAULT_REGION"))
    s3_endpoint_url: Url | None = None
    s3_bucket: str | None = None
    s3_prefix: str = ""
    fleet_id: FleetId = "default"
    host: str = "0.0.0.0"  # noqa: S104  a container's only door; what is behind it checks tokens
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    trusted_proxy_hops: Annotated[int, Field(ge=0, le=8)] | None = None
    railway_public_domain: str | None = None
    railway_git_commit_sha: str | None = None
    metrics_token: SecretStr | None = None
    admin_token: SecretStr | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    # How many
    min_active_gpus: Count = 0
    max_active_gpus: Count = 2
    tasks_per_gpu_threshold: Annotated[int, Field(ge=1, le=100_000)] = 3
    machines_to_keep_idle: Count = 0
    gpu_idle_timeout_sec: Seconds = 600
    gpu_overcapacity_idle_timeout_sec: Seconds = 30
    spawning_grace_period_sec: Seconds = 180
    scale_down_grace_period_sec: Seconds = 60
    orchestrator_poll_sec: Seconds = 30
    spawning_timeout_sec: Seconds = 900
    bringup_deadlines: Deadlines = ()
    graceful_shutdown_timeout_sec: Seconds = 600
    task_stuck_timeout_sec: Seconds = 1200
    heartbeat_timeout_sec: Seconds = 60
    max_worker_failure_rate: Annotated[float, Field(ge=0, le=1)] = 0.8
    failure_window_minutes: Annotated[float, Field(gt=0, le=1_440)] = 5
    min_workers_for_rate_check: Annotated[int, Field(ge=1, le=100)] = 5
    worker_max_consecutive_failures: Annotated[int, Field(ge=1, le=100)] = 5
    max_hourly_cost_usd: Dollars | None = None
    daily_budget_usd: Dollars | None = None

    # What
    pools_file: Path | None = None
    runpod_gpu_type: GpuTypes = ("NVIDIA GeForce RTX 4090",)
    runpod_data_centers: Names = ()
    runpod_cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    runpod_worker_image: str = "runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04"
    runpod_storage_name: str | None = None
    runpod_volume_mount_path: str = "/workspace"
    runpod_container_disk_gb: Annotated[int, Field(ge=1, le=10_000)] = 50
    runpod_min_memory_gb: Annotated[int, Field(ge=1, le=4_096)] = 32
    runpod_min_vcpu: Annotated[int, Field(ge=1, le=512)] = 8

    # The worker
    worker_api_url: Url | None = None
    worker_jwt_secret: SecretStr | None = None
    worker_jwt_secret_previous: SecretStr | None = None
    worker_jwt_signing_key: SecretStr | None = None
    worker_code_dir: Path | None = None
    worker_handlers: Handlers = ()
    worker_tasks_per_claim: Batch = 1
    worker_setup_command: str | None = None
    worker_env: Names = ()
    worker_python: str = "python3"
    worker_start_command: str | None = None
    deadman_timeout_sec: Seconds = 900

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[info.field_name or ""]
        return in_digits(unquoted(value)) if is_number(field.annotation) else unquoted(value)

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
    def metrics_tokens(self) -> tuple[str, ...]:
        """What opens /metrics."""
        return tuple(t.get_secret_value() for t in (self.metrics_token, self.admin_token) if t)

    @property
    def pods_use_supabase(self) -> bool:
        """Whether pods speak to Supabase's PostgREST and not to this service."""
        return self.worker_url is not None and self.worker_url == self.supabase_url

    def token_keys(self) -> "tuple[Key, ...]":
        """What verifies workers' tokens; the first one signs them. Raises ValueError where a key cannot be used.

        The previous secret verifies alone: workers have tokens of it until their next renewal.
        """
        from orchestrator.worker_tokens import SigningKey  # noqa: PLC0415  few commands need what it imports

        signing, secret = self.worker_jwt_signing_key, self.worker_jwt_secret
        keys: tuple[Key, ...] = (SigningKey.parse(signing.get_secret_value()),) if signing else ()
        secrets = (secret, self.worker_jwt_secret_previous)
        return (*keys, *(one.get_secret_value() for one in secrets if one))

    def login_pair(self) -> "Pair":
        """The SSH key pair, whatever the environment did to its text. Raises BadKey; both halves must be set."""
        from orchestrator.config.ssh_keys import login_pair  # noqa: PLC0415  as in _missing_shell

        private, public = self.runpod_ssh_private_key, self.runpod_ssh_public_key
        return login_pair(private.get_secret_value() if private else "", public or "")

    def default_pool(self) -> Pool:
        """The pool that the environment describes."""
        centers: tuple[str | None, ...] = self.runpod_data_centers or (None,)
        return Pool(
            name="default",
            offers=tuple(Offer(gpu, dc, self.runpod_cloud) for gpu in self.runpod_gpu_type for dc in centers),
            image=self.runpod_worker_image,
            gpu_count=1,
            disk_gb=self.runpod_container_disk_gb,
            min_memory_gb=self.runpod_min_memory_gb,
            min_vcpu=self.runpod_min_vcpu,
            volume_name=self.runpod_storage_name,
            volume_mount_path=self.runpod_volume_mount_path,
            min_active=self.min_active_gpus,
            max_active=self.max_active_gpus,
            tasks_per_gpu=self.tasks_per_gpu_threshold,
            keep_idle=self.machines_to_keep_idle,
            idle_timeout_s=self.gpu_idle_timeout_sec,
            overcapacity_idle_timeout_s=self.gpu_overcapacity_idle_timeout_sec,
            batch=self.worker_tasks_per_claim,
        )

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
            max_failure_rate=self.max_worker_failure_rate,
            failure_window_s=self.failure_window_minutes * 60,
            failure_min_bringups=self.min_workers_for_rate_check,
            max_failures=self.worker_max_consecutive_failures,
            hourly_budget_usd=self.max_hourly_cost_usd,
            daily_budget_usd=self.daily_budget_usd,
        )

    def secrets(self) -> tuple[str, ...]:
        """Every secret value, for redaction: whole settings, and the passwords within any."""
        found = [value for name, value in self.handler_env.items() if SECRET_NAMES.search(name)]
        if self.database_url:
            found += conninfo_passwords(self.database_url.get_secret_value())
        for name in type(self).model_fields:
            value = getattr(self, name)
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            if isinstance(text, str):
                found += [text, *passwords(text)] if isinstance(value, SecretStr) else passwords(text)
        return tuple(dict.fromkeys(found))
