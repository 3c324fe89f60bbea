"""The settings of the systems that the orchestrator talks to. The docstring of a section is its heading in the docs."""

from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from orchestrator.config.names import Bucket, Host, Key, KeyId, LogLevel, Prefix, Region
from orchestrator.config.setting import setting
from orchestrator.config.types import (
    ENCRYPTED_URL,
    AlertUrl,
    Conninfo,
    Count,
    Days,
    Domain,
    FleetId,
    Headers,
    Networks,
    QuietTimes,
    SentryDsn,
    Url,
)
from orchestrator.config.weak_secrets import MIN_SECRET_BYTES, MIN_TOKEN_BYTES


class Needed(BaseModel):
    """Needed."""

    database_url: Conninfo | None = setting(
        None,
        "The database with the task queue: PostgreSQL 15 or newer. A session pooler works (Supabase: port 5432). A "
        "transaction pooler has no LISTEN, so the orchestrator polls for changes every second. "
        "Percent-encode every character of the password that is not a letter or a digit. The form host=… "
        "password='…' dbname=… of libpq works too.",
    )
    runpod_api_key: Key | None = setting(
        None, "The RunPod API key (RunPod console, Settings, API keys). It needs the right to read and write pods."
    )
    runpod_ssh_public_key: str | None = setting(
        None, "The public key for SSH to the pods: the line of the .pub file. It may be followed by further lines."
    )
    runpod_ssh_private_key: SecretStr | None = setting(
        None, "The private key that belongs to it: the whole file in OpenSSH or PEM form, without a passphrase."
    )
    s3_bucket: Bucket | None = setting(None, "The bucket for worker logs and task outputs.")
    aws_access_key_id: KeyId | None = setting(
        None, "The key of the bucket. It stays in the orchestrator; pods upload through presigned URLs."
    )
    aws_secret_access_key: Key | None = setting(None, "The secret half of the bucket's key.")
    worker_jwt_secret: SecretStr | None = setting(
        None,
        "The secret that signs worker tokens (HS256, the same on every replica): openssl rand -hex 32",
        min_bytes=MIN_SECRET_BYTES,
    )
    worker_jwt_secret_previous: SecretStr | None = setting(
        None,
        "The secret before the last rotation. It verifies tokens and signs none. Unset it when no worker has such a "
        "token.",
        min_bytes=MIN_SECRET_BYTES,
    )
    worker_api_url: Url | None = setting(
        None,
        "The public URL by which pods reach this service. It may stay empty if RAILWAY_PUBLIC_DOMAIN or SUPABASE_URL "
        "is set.",
        limits=ENCRYPTED_URL,
    )


class Places(BaseModel):
    """Where things are."""

    supabase_url: Url | None = setting(
        None,
        "The URL of a Supabase project. If DATABASE_URL is set too, the orchestrator uses DATABASE_URL. Pods then "
        "still use SUPABASE_URL, unless WORKER_API_URL is set.",
        limits=ENCRYPTED_URL,
    )
    supabase_service_role_key: Key | None = setting(
        None, "The service_role key or sb_secret_ key of the Supabase project."
    )
    supabase_publishable_key: KeyId | None = setting(
        None,
        "The project's public key. It is needed if pods call Supabase directly. SUPABASE_ANON_KEY is read too.",
        variables=("SUPABASE_PUBLISHABLE_KEY", "SUPABASE_ANON_KEY"),
    )
    worker_jwt_signing_key: SecretStr | None = setting(
        None,
        "An ES256 key (a private JWK with its kid, or PEM). If set, it signs worker tokens; WORKER_JWT_SECRET still "
        "verifies.",
    )
    worker_jwt_signing_key_previous: SecretStr | None = setting(
        None,
        "The signing key before the last rotation. It verifies tokens and signs none. Unset it when no worker has such "
        "a token.",
    )
    runpod_api_base_url: Url = setting(
        "https://api.runpod.io", "The URL of RunPod's API (REST v2), without a slash at the end.", limits=ENCRYPTED_URL
    )
    s3_endpoint_url: Url | None = setting(
        None,
        "The URL of the S3 service, if it is not AWS. AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL are read too.",
        variables=("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        limits=ENCRYPTED_URL,
    )
    aws_region: Region = setting(
        "us-east-1",
        "The region of the bucket. AWS_DEFAULT_REGION is read too.",
        variables=("AWS_REGION", "AWS_DEFAULT_REGION"),
    )
    s3_prefix: Prefix = setting("", "Every key in the bucket begins with this prefix and a slash.")
    fleet_id: FleetId = setting(
        "default",
        "The name of this environment. The orchestrator never changes pods or rows of another fleet. Give each "
        "database that shares a RunPod account its own FLEET_ID (staging, production). Each pod carries the identity "
        "of the database that created it: the orchestrator deletes pods of this fleet and this database that have no "
        "live row, and only reports pods of another database. A restored copy of a database has the same identity, so "
        "it needs its own FLEET_ID.",
        limits="letters, digits, - and _, at most 63",
    )
    host: Host = setting(
        "0.0.0.0",  # noqa: S104  a container's only door; what is behind it checks tokens
        "The address of /healthz, /readyz, /metrics and the worker gateway. :: means all addresses, of IPv6 and IPv4.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = setting(8080, "The port at this address.")
    trusted_proxy_hops: Annotated[int, Field(ge=0, le=8)] | None = setting(
        None,
        "The number of your proxies that each request passes. The gateway trusts that many entries at the end of "
        "X-Forwarded-For; the first of these is the caller's address. Empty means 1 on Railway and 0 elsewhere. Only "
        "callers without a valid token are limited by address.",
    )
    railway_public_domain: Domain | None = setting(
        None, "Railway sets this. If WORKER_API_URL and SUPABASE_URL are not set, the pods' URL is made from it."
    )
    railway_git_commit_sha: str | None = setting(
        None, "Railway sets this for deploys from GitHub. /healthz and the metrics show it."
    )
    log_level: LogLevel = setting("INFO", "DEBUG, INFO, WARNING or ERROR.")
    metrics_token: Key | None = setting(
        None,
        "The token that Prometheus sends to read /metrics (Authorization: Bearer …); closed if not set: "
        "openssl rand -hex 32",
        min_bytes=MIN_TOKEN_BYTES,
    )
    admin_token: Key | None = setting(
        None,
        "A token of the API with the scope admin, named env:admin (docs/api.md): openssl rand -hex 32",
        min_bytes=MIN_SECRET_BYTES,
    )
    viewer_token: Key | None = setting(
        None,
        "A token of the API with the scope read, named env:viewer: openssl rand -hex 32",
        min_bytes=MIN_SECRET_BYTES,
    )


class Messages(BaseModel):
    """Messages about alerts (docs/alerts.md), and webhooks (docs/webhooks.md)."""

    alert_webhook_url: AlertUrl | None = setting(
        None,
        "The address to which the leader sends alerts. A URL of Slack or Discord gets their format, any other one gets "
        "JSON. Test it with: orchestrator alerts test",
        limits=ENCRYPTED_URL,
    )
    alert_quiet_hours: QuietTimes | None = setting(
        None,
        "The time of day in which only alerts about money without control are sent: 22:00-07:00 (UTC), or 22:00-07:00 "
        "Europe/Berlin.",
    )
    alert_max_per_hour: Count = setting(
        10, "The largest number of messages within an hour. One summary has the number of the others."
    )
    webhook_secret: SecretStr | None = setting(
        None,
        "The secret that signs webhooks (the same on every replica). Without it, none is sent. "
        "`orchestrator webhooks key URL` shows the key that a receiver needs: openssl rand -hex 32",
        min_bytes=MIN_SECRET_BYTES,
    )
    webhook_secret_previous: SecretStr | None = setting(
        None,
        "The secret before the last rotation. Messages are signed with both. Unset it when every receiver has its "
        "new key.",
        min_bytes=MIN_SECRET_BYTES,
    )
    webhook_private_networks: Networks = setting(
        (),
        "Networks that webhooks may reach although they are not public, also by http://: 10.1.0.0/16,127.0.0.1/32. "
        "Everybody who may submit tasks can then cause requests to them.",
    )


class Telemetry(BaseModel):
    """Traces and reports of errors (docs/tracing.md)."""

    otel_exporter_otlp_endpoint: Url | None = setting(
        None, "The URL of an OpenTelemetry collector (OTLP over HTTP). The leader sends it a trace of each task."
    )
    otel_exporter_otlp_headers: Headers | None = setting(
        None, "Headers of these requests, such as an API key: name=value,name=value."
    )
    sentry_dsn: SentryDsn | None = setting(
        None,
        "The DSN of a Sentry project. The orchestrator reports its own unexpected errors: their types, and places in "
        "the code, no values.",
    )


class Retention(BaseModel):
    """How long the database keeps rows. The leader deletes older ones, a part each hour."""

    attempts_retention_days: Days = setting(
        90, "Attempts at tasks. Figures over a longer time come from totals by hour and day.", unit="days"
    )
    events_retention_days: Days = setting(
        90, "Events, bring-up attempts and the list of log objects of workers, after the worker ended.", unit="days"
    )
    workers_retention_days: Days = setting(
        400, "Ended workers with their costs. Attempts and events are not kept longer than these.", unit="days"
    )
    decisions_retention_days: Days = setting(30, "Scaling decisions, except the last one of each pool.", unit="days")
    audit_retention_days: Days = setting(90, "The audit log. Submissions of tasks stay a week at most.", unit="days")
    history_retention_days: Days = setting(8, "The minutes of pools and workers that charts show.", unit="days")
    tasks_retention_days: Days | None = setting(
        None,
        "Ended tasks, 10,000 an hour at most. Empty keeps them. A task that another one still needs stays. Outputs in "
        "the bucket stay.",
        unit="days",
    )
