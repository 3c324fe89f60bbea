"""Values as the documentation of other tools writes them: each is understood, or refused with its part named.

A row is a variable, its text, and what becomes of it: the value that the orchestrator uses, or words of the refusal.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from gpu_orchestrator_client import AsyncClient, Client
from gpu_orchestrator_client import proxies as client_proxies
from gpu_orchestrator_client.proxies import proxy_of as client_proxy_of
from pydantic import SecretStr

from orchestrator.adapters import http_client, http_deadline, s3
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.config.environment import usable
from orchestrator.config.errors import SettingsError
from orchestrator.core import proxies
from orchestrator.core.proxies import BadProxy, proxy_of
from orchestrator.leader_jobs.schedules import due_times


class Row(NamedTuple):
    """One value."""

    name: str
    text: str
    value: object = None  # understood as this
    refused: str = ""  # words of the refusal
    beside: Mapping[str, str] = {}  # other variables


POOLER = "postgresql://postgres.abcdefgh:s3cret@aws-0-eu-central-1.pooler.supabase.com:6543/postgres"
SOCKET = "host=/cloudsql/p:r:i dbname=app user=u password=s3cret"
AWS_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PLAIN = "postgresql://u:s3cret@db.example.com:5432/app"
R2 = "https://0123456789abcdef0123456789abcdef.r2.cloudflarestorage.com"
BUCKET = {"S3_BUCKET": "my-bucket"}
ANON, SERVICE_ROLE = "eyJyb2xlIjoiYW5vbiJ9", "eyJyb2xlIjoic2VydmljZV9yb2xlIn0"  # claims of Supabase's legacy keys
READ_AS = {"AWS_DEFAULT_REGION": "aws_region", "AWS_ENDPOINT_URL_S3": "s3_endpoint_url"}


def database(text: str, value: str | None = None, refused: str = "") -> Row:
    """A row of DATABASE_URL."""
    return Row("DATABASE_URL", text, value, refused)


DATABASE = [
    # Supabase
    database(POOLER, POOLER),
    database(f"{POOLER}?pgbouncer=true", POOLER),
    database(f"{POOLER}?pgbouncer=true&connection_limit=1", POOLER),
    database(f"{POOLER}?supa=base-pooler.x", POOLER),
    database(f"{POOLER}?sslmode=require&supa=base-pooler.x", f"{POOLER}?sslmode=require"),
    database(f"{POOLER}?workaround=supabase-pooler.vercel", POOLER),
    database(POOLER.replace("s3cret", "[YOUR-PASSWORD]"), refused="its password is a placeholder"),
    database(POOLER.replace("s3cret", "YOUR_PASSWORD"), refused="its password is a placeholder"),
    database("postgresql://postgres:s3cret@db.[PROJECT-REF].supabase.co:5432/postgres", refused="[PROJECT-REF]"),
    database("postgresql://postgres:s3cret@db.<ref>.supabase.co:5432/postgres", refused="<ref>"),
    database("postgresql://postgres:p@ss@db.x.supabase.co:5432/postgres", refused="%40"),
    database("postgresql://postgres:p%40ss@db.x.co/postgres", "postgresql://postgres:p%40ss@db.x.co/postgres"),
    database("postgresql://postgres:50%off@db.x.supabase.co/postgres", refused="%25"),
    database("postgresql://postgres:a#b@db.x.co/postgres", "postgresql://postgres:a#b@db.x.co/postgres"),
    database(
        "jdbc:postgresql://db.x.supabase.co:5432/postgres?user=postgres&password=s3cret",
        "postgresql://db.x.supabase.co:5432/postgres?user=postgres&password=s3cret",
    ),
    database(
        "jdbc:postgresql://db.x.supabase.co:5432/postgres?user=postgres&password=[YOUR-PASSWORD]",
        refused="its password is a placeholder",
    ),
    database("User Id=postgres;Password=s3cret;Server=db.x.supabase.co;Port=5432;Database=postgres", refused=".NET"),
    database('psql "postgresql://u:s3cret@h/db"', refused="psql"),
    database("https://abcdefgh.supabase.co", refused="SUPABASE_URL"),
    # Prisma
    database(f"{PLAIN}?schema=public", PLAIN),
    database(f"{PLAIN}?schema=shop", refused="schema names 'shop'"),
    database(f"{PLAIN}?connection_limit=5&pool_timeout=10&socket_timeout=3", PLAIN),
    database(f"{PLAIN}?connect_timeout=300&statement_cache_size=0", f"{PLAIN}?connect_timeout=300"),
    database(f"{PLAIN}?sslmode=require&sslaccept=strict", f"{PLAIN}?sslmode=require"),
    database("prisma://accelerate.prisma-data.net/?api_key=abc", refused="Prisma"),
    database("prisma+postgres://accelerate.prisma-data.net/?api_key=abc", refused="Prisma"),
    # SQLAlchemy, asyncpg, node-postgres, JDBC, Heroku, Railway, Neon
    database("postgresql+asyncpg://u:s3cret@db.example.com:5432/app", PLAIN),
    database("postgresql+psycopg2://u:s3cret@db.example.com:5432/app", PLAIN),
    database("postgresql+psycopg://u:s3cret@db.example.com:5432/app?prepared_statement_cache_size=0", PLAIN),
    database("postgres://u:s3cret@db.example.com:5432/app", PLAIN),
    database("POSTGRESQL://u:s3cret@db.example.com:5432/app", PLAIN),
    database(f"{PLAIN}?ssl=true", f"{PLAIN}?sslmode=require"),
    database(f"{PLAIN}?ssl=require", f"{PLAIN}?sslmode=require"),
    database(f"{PLAIN}?sslmode=no-verify", f"{PLAIN}?sslmode=require"),
    database(f"{PLAIN}?sslmode=require&uselibpqcompat=true", f"{PLAIN}?sslmode=require"),
    database(f"{PLAIN}?sslmode=verify-full&sslrootcert=system", f"{PLAIN}?sslmode=verify-full&sslrootcert=system"),
    database(f"{PLAIN}?sslmode=on", refused="sslmode is 'on'"),
    database(f"{PLAIN}?currentSchema=public&prepareThreshold=0", PLAIN),
    database(f"{PLAIN}?sslmode=require&channel_binding=require", f"{PLAIN}?sslmode=require&channel_binding=require"),
    database(f"{PLAIN}?options=endpoint%3Dep-cool-1", f"{PLAIN}?options=endpoint%3Dep-cool-1"),
    database(f"{PLAIN}?charset=utf8mb4", refused="'charset'"),
    database("mysql://u:s3cret@h:3306/db", refused="postgresql://"),
    database(SOCKET, SOCKET),
    database("${{Postgres.DATABASE_URL}}", refused="${{Postgres.DATABASE_URL}} is a reference"),
    database("postgresql://${PGUSER}:${PGPASSWORD}@${PGHOST}:5432/app", refused="${PGUSER} is a reference"),
    database("${{ secrets.DATABASE_URL }}", refused="is a reference"),
    database("$DATABASE_URL", refused="$DATABASE_URL is a reference"),
    database("postgresql://USER:<password>@HOST:5432/app", refused="placeholder"),
    database("postgresql://u:********@db.example.com/app", refused="password is a placeholder"),
    database(f"DATABASE_URL={PLAIN}", refused="its own name, DATABASE_URL="),
    database(f"export DATABASE_URL={PLAIN}", refused="its own name"),
    # .env, docker --env-file, editors
    database(f'"{PLAIN}"', PLAIN),
    database(f"'{PLAIN}'", PLAIN),
    database(f"\u201c{PLAIN}\u201d", PLAIN),
    database(f"{PLAIN}\r", PLAIN),
    database(f"  {PLAIN}  \n", PLAIN),
    database(f"\ufeff{PLAIN}", PLAIN),
    database(f'"{PLAIN}"\r\n', PLAIN),
    # a part that nobody has filled in, what follows the value, and marks that nobody sees
    database("postgresql://postgres:$POSTGRES_PASSWORD@db:5432/app", refused="$POSTGRES_PASSWORD is a reference"),
    database("postgresql://postgres:$(DB_PASSWORD)@db:5432/app", refused="$(DB_PASSWORD) is a reference"),
    database("postgresql://postgres:%24ecret@db:5432/app", "postgresql://postgres:%24ecret@db:5432/app"),
    database("postgresql://u:{password}@db:5432/app", refused="its password is a placeholder"),
    database("postgresql://u:xxxxx@db:5432/app", refused="its password is a placeholder"),
    database(f"{PLAIN} # the main database", refused="ends with a comment"),
    database(f"{PLAIN};", refused="ends the name of its database"),
    database(f"{PLAIN}?application_name=my app", refused="a space"),
    database("postgresql://u:s3c\u200bret@db:5432/app", refused="U+200B"),
    database("postgresql://u:s3cret@2001:db8::1:5432/app", refused="has brackets"),
    database("postgresql://u:s3cret@h:65536/app", refused="from 1 to 65535"),
    database("postgresql://u:s3cret@:5432/app", refused="names no host"),
    database("postgresql://u:s3cret@/app?host=/cloudsql/p:r:i", "postgresql://u:s3cret@/app?host=/cloudsql/p:r:i"),
    database("postgresql:///app?host=/run/postgresql", "postgresql:///app?host=/run/postgresql"),
    database(f"{PLAIN}?replication=database", refused="replication"),
    database(f"DATABASE_URL = {PLAIN}", refused="its own name"),
    database(f"DATABASE_URL: {PLAIN}", refused="its own name"),
    database(f'$env:DATABASE_URL="{PLAIN}"', refused="its own name"),
]  # fmt: skip
PLACES = [
    # S3: AWS, R2, MinIO, Supabase
    Row("S3_ENDPOINT_URL", f"{R2}/", R2),
    Row("S3_ENDPOINT_URL", f"{R2}/my-bucket", refused="path is the bucket", beside=BUCKET),
    Row("S3_ENDPOINT_URL", "https://my-bucket.s3.eu-central-1.amazonaws.com", refused="host begins", beside=BUCKET),
    Row("S3_ENDPOINT_URL", "https://<ACCOUNT_ID>.r2.cloudflarestorage.com", refused="<ACCOUNT_ID>"),
    Row("S3_ENDPOINT_URL", "https://pub-0123.r2.dev", refused="public address", beside=BUCKET),
    Row("S3_ENDPOINT_URL", "https://s3.amazonaws.com", "https://s3.amazonaws.com", beside=BUCKET),
    Row("S3_ENDPOINT_URL", "s3.eu-central-1.amazonaws.com", refused="http:// or https://"),
    Row("S3_ENDPOINT_URL", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    Row("S3_ENDPOINT_URL", "https://abc.storage.supabase.co/storage/v1/s3", "https://abc.storage.supabase.co/storage/v1/s3"),
    Row("S3_ENDPOINT_URL", "https://dash.cloudflare.com/0123/r2", refused="a website"),
    Row("AWS_ENDPOINT_URL_S3", R2, R2),
    Row("S3_BUCKET", "s3://my-bucket/", "my-bucket"),
    Row("S3_BUCKET", "arn:aws:s3:::my-bucket", "my-bucket"),
    Row("S3_BUCKET", "my-bucket/logs", refused="S3_PREFIX"),
    Row("S3_PREFIX", "x" * 120, "x" * 120),
    Row("S3_PREFIX", "\u00e9" * 61, refused="more than 120 bytes"),
    Row("S3_BUCKET", "https://my-bucket.s3.amazonaws.com", refused="is a URL or an ARN"),
    Row("S3_BUCKET", "your-bucket-name", refused="placeholder"),
    Row("AWS_REGION", "auto", "auto", beside={"S3_ENDPOINT_URL": R2}),
    Row("AWS_REGION", "auto", refused="S3_ENDPOINT_URL"),
    Row("AWS_REGION", "EU-CENTRAL-1", "eu-central-1"),
    Row("AWS_REGION", "eu-central-1a", refused="its region is eu-central-1"),
    Row("AWS_REGION", "EU (Frankfurt)", refused="is not the name of a region"),
    Row("AWS_DEFAULT_REGION", "us-west-2", "us-west-2"),
    Row("AWS_SECRET_ACCESS_KEY", f"{AWS_KEY}\r\n", AWS_KEY),
    Row("AWS_SECRET_ACCESS_KEY", "<your-secret-access-key>", refused="placeholder"),
    # stores of secrets, consoles that mask a value, and lists of other tools
    Row("RUNPOD_API_KEY", "op://vault/runpod/key", refused="op://vault/runpod/key is a reference"),
    Row("RUNPOD_API_KEY", "$(RUNPOD_API_KEY)", refused="is a reference"),
    Row("RUNPOD_API_KEY", "%RUNPOD_API_KEY%", refused="is a reference"),
    Row("RUNPOD_API_KEY", "#{RUNPOD_API_KEY}#", refused="is a reference"),
    Row("RUNPOD_API_KEY", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:x", refused="is a reference"),
    Row("RUNPOD_API_KEY", "projects/app/secrets/runpod/versions/latest", refused="is a reference"),
    Row("RUNPOD_API_KEY", "@Microsoft.KeyVault(SecretUri=https://x)", refused="is a reference"),
    Row("RUNPOD_API_KEY", "vault:secret/data/app#key", refused="is a reference"),
    Row("RUNPOD_API_KEY", "RUNPOD_API_KEY=rpa_s3cret", refused="its own name"),
    Row("RUNPOD_API_KEY", "rpa_****1234", refused="placeholder"),
    Row("AWS_SECRET_ACCESS_KEY", "\u2022" * 12, refused="placeholder"),
    Row("AWS_SECRET_ACCESS_KEY", "changeme", refused="placeholder"),
    Row("AWS_ACCESS_KEY_ID", "xxxxxxxxxxxx", refused="placeholder"),
    Row("AWS_ACCESS_KEY_ID", "null", refused="placeholder"),
    Row("S3_BUCKET", "undefined", refused="placeholder"),
    Row("WORKER_ENV", "HF_TOKEN=s3cret", refused="'HF_TOKEN' with a value"),
    Row("WORKER_ENV", "HF_TOKEN HF_HOME", refused="names alone"),
    Row("WORKER_ENV", "HF_TOKEN;HF_HOME", refused="commas between"),
    Row("WORKER_ENV", '["HF_TOKEN"]', refused="without brackets"),
    Row("WORKER_ENV", "*", refused="no name of a variable"),
    Row("RUNPOD_DATA_CENTERS", "EU-RO-1;EU-SE-1", refused="commas between"),
    Row("RUNPOD_GPU_TYPE", '["NVIDIA L4"]', refused="without brackets"),
    # Supabase's API and RunPod
    Row("SUPABASE_URL", "https://abcdefgh.supabase.co/", "https://abcdefgh.supabase.co"),
    Row("SUPABASE_URL", "https://abcdefgh.supabase.co/rest/v1/", refused="set SUPABASE_URL=https://abcdefgh.supabase.co"),
    Row("SUPABASE_URL", "https://supabase.com/dashboard/project/abcdefgh", refused="a website"),
    Row("SUPABASE_URL", "https://your-project.supabase.co", refused="your-project"),
    Row("SUPABASE_SERVICE_ROLE_KEY", "sb_publishable_0123456789abcdef", refused="public key"),
    Row("SUPABASE_PUBLISHABLE_KEY", "sb_secret_0123456789abcdef", refused="secret key"),
    Row("SUPABASE_SERVICE_ROLE_KEY", "${{ secrets.SUPABASE_KEY }}", refused="is a reference"),
    Row("RUNPOD_API_KEY", "rpa_ABCDEFGHIJKLMNOP0123456789", "rpa_ABCDEFGHIJKLMNOP0123456789"),
    Row("RUNPOD_API_KEY", "Bearer rpa_ABCDEFGHIJKLMNOP", refused="the word Bearer"),
    Row("RUNPOD_API_KEY", "rpa_…", refused="placeholder"),
    Row("RUNPOD_API_KEY", "YOUR_API_KEY", refused="placeholder"),
    Row("RUNPOD_API_KEY", "rpa_ABC DEF", refused="a space"),
    Row("RUNPOD_API_BASE_URL", "https://api.runpod.io/graphql", refused="set RUNPOD_API_BASE_URL=https://api.runpod.io"),
    Row("RUNPOD_API_BASE_URL", "https://rest.runpod.io/v1", refused="older API"),
    Row("RUNPOD_CLOUD", "secure", "SECURE"),
    Row("RUNPOD_CLOUD", "Community Cloud", "COMMUNITY"),
    Row("RUNPOD_CLOUD", "ALL", refused="COMMUNITY"),
    Row("RUNPOD_DATA_CENTERS", "eu-ro-1, EU-SE-1", ("EU-RO-1", "EU-SE-1")),
    Row("RUNPOD_GPU_TYPE", "RTX 4090", ("NVIDIA GeForce RTX 4090",)),
    Row("RUNPOD_GPU_TYPE", "nvidia geforce rtx 4090,l4", ("NVIDIA GeForce RTX 4090", "NVIDIA L4")),
    Row("RUNPOD_GPU_TYPE", "RTX 6000 Ada", ("NVIDIA RTX 6000 Ada Generation",)),
    Row("RUNPOD_GPU_TYPE", "H100", refused="NVIDIA H100 NVL"),
    Row("RUNPOD_GPU_TYPE", "NVIDIA RTX 2000 Ada Generation", ("NVIDIA RTX 2000 Ada Generation",)),
    # Railway, Docker and Compose
    Row("HOST", "::", "::"),
    Row("HOST", "[::]", "::"),
    Row("HOST", "*", "0.0.0.0"),  # noqa: S104
    Row("HOST", "0.0.0.0:8080", refused="set PORT"),
    Row("HOST", "http://0.0.0.0", refused="is a URL"),
    Row("PORT", "", 8080),
    Row("PORT", '"3000"', 3000),
    Row("PORT", "$PORT", refused="$PORT is a reference"),
    Row("PORT", "tcp://10.0.0.1:8080", refused="in digits"),
    Row("RAILWAY_PUBLIC_DOMAIN", "${{RAILWAY_PUBLIC_DOMAIN}}", refused="is a reference"),
    Row("WORKER_API_URL", "https://app.up.railway.app/api/v1/", refused="set WORKER_API_URL=https://app.up.railway.app"),
    Row("LOG_LEVEL", "info", "INFO"),
    Row("LOG_LEVEL", "warn", "WARNING"),
    Row("LOG_LEVEL", "verbose", refused="INFO"),
    Row("MAX_ACTIVE_GPUS", "true", refused="in digits"),
    Row("GPU_IDLE_TIMEOUT_SEC", "10m", refused="its unit is seconds"),
    Row("RUNPOD_CONTAINER_DISK_GB", "50Gi", refused="its unit is GB"),
    Row("DAILY_BUDGET_USD", "$20", refused="its unit is US dollars"),
    Row("WORKER_SETUP_COMMAND", "${VENV}/bin/pip install -r r.txt", "${VENV}/bin/pip install -r r.txt"),
    Row("WORKER_SETUP_COMMAND", "pip install ${{ inputs.package }}", refused="${{ inputs.package }} is a reference"),
    Row("WORKER_SETUP_COMMAND", "WORKER_SETUP_COMMAND=pip install x", refused="its own name"),
    Row("WORKER_SETUP_COMMAND", "pip install x # once", "pip install x # once"),
    # what is no host, no image, no key, although it looks like text of a setting
    Row("S3_ENDPOINT_URL", "https://fsn1.your-objectstorage.com", "https://fsn1.your-objectstorage.com"),
    Row("S3_ENDPOINT_URL", "HTTPS://s3.example.com", "https://s3.example.com"),
    Row("S3_ENDPOINT_URL", "https://$ACCOUNT_ID.r2.cloudflarestorage.com", refused="is no name of a host"),
    Row("S3_ENDPOINT_URL", "https://minio_1:9000", "https://minio_1:9000"),
    Row("S3_ENDPOINT_URL", "http://[::1]:9000", "http://[::1]:9000"),
    Row("WORKER_API_URL", "https://a.example.org,https://b.example.org", refused="is no name of a host"),
    Row("WORKER_API_URL", "https://a.example.org;", refused="is no name of a host"),
    Row("WORKER_API_URL", "https://a..example.org", refused="is no name of a host"),
    Row("RAILWAY_PUBLIC_DOMAIN", "https://app.up.railway.app/", "app.up.railway.app"),
    Row("RAILWAY_PUBLIC_DOMAIN", "a.up.railway.app,b.example.org", refused="is no name of a host"),
    Row("RAILWAY_PUBLIC_DOMAIN", "app.up.railway.app/path", refused="is no name of a host"),
    Row("OTEL_EXPORTER_OTLP_ENDPOINT", "http://$NODE_IP:4318", refused="is no name of a host"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "x-honeycomb-team=s3cret", "x-honeycomb-team=s3cret"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20s3cret,", "Authorization=Basic%20s3cret,"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer s3cret", refused="name=value"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", '{"api-key": "s3cret"}', refused="name=value"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "api-key=${KEY}", refused="${KEY} is a reference"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "api-key=<s3cret>", refused="placeholder"),
    Row("OTEL_EXPORTER_OTLP_HEADERS", "api-key=", refused="'api-key' is empty"),
    Row("SENTRY_DSN", "https://0a1b@o1.ingest.de.sentry.io/123", "https://0a1b@o1.ingest.de.sentry.io/123"),
    Row("SENTRY_DSN", "https://<key>@<org>.ingest.sentry.io/<project>", refused="placeholder"),
    Row("SENTRY_DSN", "https://o1.ingest.sentry.io/123", refused="Client Keys"),
    Row("SENTRY_DSN", "https://sentry.io/settings/me/projects/x/keys/", refused="Client Keys"),
    Row("SENTRY_DSN", "false", refused="Client Keys"),
    Row("ALERT_WEBHOOK_URL", "https://discord.com/api/webhooks/<id>/<token>", refused="<id> is a placeholder"),
    Row("ALERT_WEBHOOK_URL", "https://hooks.slack.com/services/${SLACK}", refused="${SLACK} is a reference"),
    Row("ALERT_WEBHOOK_URL", "https://a.example.org,https://b.example.org/x", refused="is no name of a host"),
    Row("AWS_ACCESS_KEY_ID", "AKIA IOSFODNN7", refused="a space"),
    Row("AWS_ACCESS_KEY_ID", "aws_access_key_id = AKIAIOSFODNN7", refused="its own name"),
    Row("AWS_ACCESS_KEY_ID", "AKIAIOSF\u200bODNN7", refused="U+200B"),
    Row("RUNPOD_API_KEY", "$$RUNPOD_API_KEY", refused="is a reference"),
    Row("RUNPOD_API_KEY", "rpa_xxxxxxxxxxxxxxxx", refused="placeholder"),
    Row("RUNPOD_API_KEY", "rpa_your_key_here", refused="placeholder"),
    Row("RUNPOD_API_KEY", "paste-your-key-here", refused="placeholder"),
    Row("ADMIN_TOKEN", "0123456789abcdef\n0123456789abcdeffedcba98", refused="a line end"),
    Row("METRICS_TOKEN", "0123456789abcdeffedcba98 # Prometheus", refused="ends with a comment"),
    Row("SUPABASE_PUBLISHABLE_KEY", f"eyJhbGciOiJIUzI1NiJ9.{SERVICE_ROLE}.c2ln", refused="secret key, and pods would"),
    Row("SUPABASE_SERVICE_ROLE_KEY", f"eyJhbGciOiJIUzI1NiJ9.{ANON}.c2ln", refused="public key"),
    Row("SUPABASE_PUBLISHABLE_KEY", f"e30.{ANON}.c2ln", f"e30.{ANON}.c2ln"),
    Row("S3_BUCKET", "arn:aws:s3:eu-west-1:123456789012:accesspoint/a", refused="is a URL or an ARN"),
    Row("S3_PREFIX", "s3://my-bucket/logs", refused="what follows the bucket's name"),
    Row("S3_PREFIX", "../logs", refused="another key"),
    Row("S3_PREFIX", "logs # of production", refused="ends with a comment"),
    Row("S3_PREFIX", "a#b/", "a#b/"),
    Row("HOST", "0.0.0.0,::", refused="not one address"),
    Row("HOST", "not a host", refused="not one address"),
    Row("HOST", "fd00::1", "fd00::1"),
    Row("RUNPOD_DATA_CENTERS", "any", refused="empty means any"),
    Row("RUNPOD_DATA_CENTERS", "EU_RO_1", refused="'EU_RO_1' is no data centre"),
    Row("RUNPOD_GPU_TYPE", "NVIDIA L4\nNVIDIA A40", refused="a line end is no part"),
    Row("RUNPOD_WORKER_IMAGE", "ghcr.io/team/image:${TAG}", refused="${TAG} is a reference"),
    Row("RUNPOD_WORKER_IMAGE", "https://hub.docker.com/r/runpod/pytorch", refused="name of an image"),
    Row("RUNPOD_WORKER_IMAGE", "docker pull runpod/pytorch:2.4", refused="name of an image"),
    Row("RUNPOD_WORKER_IMAGE", "MyTeam/Image:1", refused="small letters"),
    Row("RUNPOD_WORKER_IMAGE", "runpod/pytorch:", refused="name of an image"),
    Row("RUNPOD_WORKER_IMAGE", "localhost:5000/a__b/c-d.e:V1_x", "localhost:5000/a__b/c-d.e:V1_x"),
    Row("RUNPOD_WORKER_IMAGE", f"ghcr.io/t/i:1@sha256:{'a' * 64}", f"ghcr.io/t/i:1@sha256:{'a' * 64}"),
    Row("RUNPOD_VOLUME_MOUNT_PATH", "workspace", refused="/workspace"),
    Row("RUNPOD_VOLUME_MOUNT_PATH", "/data:/workspace", refused="/workspace"),
    Row("WORKER_PYTHON", "/usr/bin/env python3", refused="not one program"),
    Row("WORKER_PYTHON", "~/venv/bin/python", refused="not one program"),
    Row("WORKER_PYTHON", "python3 -u", refused="without options"),
    Row("WORKER_PYTHON", "/home/me/my tools/bin/python", "/home/me/my tools/bin/python"),
    Row("WORKER_PYTHON", "/opt/venv/bin/python3.12", "/opt/venv/bin/python3.12"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the PATH of the machine."""
    for name in os.environ:
        if name != "PATH":
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "row", DATABASE + PLACES, ids=lambda row: f"{row.name}={row.text}".encode("ascii", "replace").decode()
)
def test_a_value_is_understood_or_its_part_is_named(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """No refusal shows a password."""
    for name, text in {row.name: row.text, **row.beside}.items():
        monkeypatch.setenv(name, text)
    settings, problems = usable()
    if row.refused:
        (problem,) = problems
        assert row.name in problem.what
        assert row.refused in f"{problem.why}; {problem.fix}"
        assert "s3cret" not in "".join(problem)
        return
    assert problems == []
    used = getattr(settings, READ_AS.get(row.name, row.name.lower()))
    used = used.get_secret_value() if isinstance(used, SecretStr) else used
    assert used == row.value


PROXY = "http://proxy.corp:3128"
API = "https://api.runpod.io/v2/pods"
PROXIES = [
    # What the variables are, the URL of a request, and its proxy; "" for none; a refusal in words.
    ({}, API, ""),
    ({"HTTPS_PROXY": PROXY}, API, PROXY),
    ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, API, PROXY),
    ({"HTTPS_PROXY": "proxy.corp:3128"}, API, PROXY),
    ({"HTTPS_PROXY": f"{PROXY}/"}, API, PROXY),
    ({"HTTPS_PROXY": f'"{PROXY}"\r'}, API, PROXY),
    ({"HTTPS_PROXY": "http://user:p%40ss@proxy.corp:3128"}, API, "http://user:p%40ss@proxy.corp:3128"),
    ({"HTTPS_PROXY": "https://proxy.corp:3129"}, API, "https://proxy.corp:3129"),
    ({"HTTPS_PROXY": "http://[fd00::1]:3128"}, API, "http://[fd00::1]:3128"),
    ({"HTTP_PROXY": PROXY}, API, ""),
    ({"HTTP_PROXY": PROXY}, "http://collector.corp:4318/v1/traces", PROXY),
    ({"ALL_PROXY": PROXY}, API, PROXY),
    ({"ALL_PROXY": "socks5://127.0.0.1:7890", "HTTPS_PROXY": PROXY}, API, PROXY),
    ({"ALL_PROXY": "socks5://127.0.0.1:7890"}, API, "ALL_PROXY cannot be used: socks5://127.0.0.1 is a SOCKS proxy"),
    ({"all_proxy": "socks5h://u:s3cret@127.0.0.1:1080"}, API, "all_proxy cannot be used: socks5h://127.0.0.1 is"),
    ({"ALL_PROXY": "socks5://127.0.0.1:7890", "NO_PROXY": "runpod.io"}, API, ""),
    ({"HTTPS_PROXY": "http://proxy.corp:port"}, API, "HTTPS_PROXY cannot be used: its host or port cannot be read"),
    ({"HTTPS_PROXY": "http://u:s3cret#1@proxy.corp:3128"}, API, "%23"),
    ({"HTTPS_PROXY": "ftp://proxy.corp"}, API, "ftp:// is not the scheme of a proxy"),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "localhost,127.0.0.1,::1"}, API, PROXY),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "localhost,::1/128"}, API, PROXY),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "localhost,::1/128,fd00::/8"}, "https://[fd00::5]:9000/b", ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8,192.168.0.0/16"}, "https://10.1.2.3:9000/bucket", ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "https://11.1.2.3:9000/bucket", PROXY),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/99"}, API, "NO_PROXY cannot be used: its entry '10.0.0.0/99'"),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*.runpod.io"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".runpod.io"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "runpod.io"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "pod.io"}, API, PROXY),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "https://api.runpod.io/"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "api.runpod.io:443"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "api.runpod.io:8443"}, API, PROXY),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "localhost api.runpod.io"}, API, ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "[fd00::5]:9000"}, "https://[fd00::5]:9000/b", ""),
    ({"HTTPS_PROXY": PROXY, "no_proxy": "192.168.*"}, "https://192.168.1.9/b", ""),
    ({"HTTPS_PROXY": PROXY, "NO_PROXY": "API.RunPod.IO."}, API, ""),
    ({"HTTPS_PROXY": PROXY}, "https://127.0.0.1:8443/", ""),
    ({"HTTPS_PROXY": PROXY}, "https://localhost:8443/", ""),
    ({"HTTPS_PROXY": PROXY}, "https://[::1]:8443/", ""),
]  # fmt: skip


def said(answer: Callable[[], str | None]) -> str:
    """Return an answer, or the words of its refusal."""
    try:
        return answer() or ""
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("variables", "url", "expected"), PROXIES)
@pytest.mark.parametrize("decide", [proxy_of, client_proxy_of])
def test_a_proxy_is_used_excepted_or_named(
    variables: dict[str, str], url: str, expected: str, decide: Callable[[str, Mapping[str, str]], str | None]
) -> None:
    """No refusal shows a password."""
    found = said(lambda: decide(url, variables))
    if "cannot be used" in found:
        assert expected
        assert expected in found
        assert "s3cret" not in found
    else:
        assert found == expected


def test_the_client_has_the_same_rules() -> None:
    """It is a distribution of its own."""
    ours, theirs = (Path(module.__file__ or "").read_text() for module in (proxies, client_proxies))
    assert ours == theirs


@pytest.mark.parametrize("variables", [variables for variables, _, _ in PROXIES], ids=str)
async def test_no_client_ends_at_a_proxy_with_an_error_of_its_library(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client of this program is made, or refused in our words."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    made = (
        lambda: http_client.client(API).aclose(),
        lambda: SupabaseDb.open("https://abcdefgh.supabase.co", "key"),
        lambda: asyncio.to_thread(http_deadline.session_for(API).close),
        lambda: S3Blobs(R2, "id", "secret", "my-bucket", "", "auto").close(),
        lambda: asyncio.to_thread(Client("https://gpu.example.com", "token").close),
        lambda: AsyncClient("https://gpu.example.com", "token").close(),
    )
    refusals = []
    for make in made:
        try:
            await make()
        except (SettingsError, BadProxy, client_proxies.BadProxy) as error:
            refusals.append(str(error))
    assert all("cannot be used" in words for words in refusals)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)  # a Thursday
CRONS = [
    ("0 2 * * *", "2026-01-02T02:00"),
    ("*/5 * * * *", "2026-01-01T12:05"),
    ("*/60 * * * *", "2026-01-01T13:00"),
    ("*/90 * * * *", "the minute '*/90' has a step beyond an hour, so it would mean every one; use --every 90m"),
    ("0-59/90 * * * *", "use --every 90m"),
    ("0 */36 * * *", "use --every 36h"),
    ("0 0 */45 * *", "use --every 45d"),
    ("0 0 * */18 *", "the month '*/18' has a step beyond a year"),
    ("@daily", "2026-01-02T00:00"),
    ("@midnight", "2026-01-02T00:00"),
    ("@hourly", "2026-01-01T13:00"),
    ("@weekly", "2026-01-04T00:00"),
    ("@monthly", "2026-02-01T00:00"),
    ("@yearly", "2027-01-01T00:00"),
    ("@reboot", "is none of @yearly"),
    ("@every 5m", "--every"),
    ("0 0 * * 7", "2026-01-04T00:00"),
    ("0 0 * * SUN", "2026-01-04T00:00"),
    ("0 9 * * mon-fri", "2026-01-02T09:00"),
    ("0 0 1 FEB *", "2026-02-01T00:00"),
    ("0 0 L * *", "2026-01-31T00:00"),
    ("0 12 ? * MON", "2026-01-05T12:00"),
    ("0 0 15 * ?", "2026-01-15T00:00"),
    ("? * * * *", "Bad minute"),
    ("0 0 15W * *", "Bad day"),
    ("0 0 12 * * ?", "Wrong number of fields"),
    ("0 12 * * ? *", "without seconds and years"),
    ("cron(0 12 * * ? *)", "the form of AWS"),
    ("rate(5 minutes)", "the form of AWS"),
    ("CRON_TZ=Europe/Berlin 0 6 * * *", "--timezone"),
    ("H H * * *", "the H of Jenkins"),
    ("60 * * * *", "Bad minute"),
    (" 0  6 * * * ", "2026-01-02T06:00"),
]


@pytest.mark.parametrize(("text", "expected"), CRONS)
def test_a_cron_expression_means_what_it_says(text: str, expected: str) -> None:
    """Or it is refused with its part."""
    row = {"cron": text, "timezone": "UTC", "every_s": None, "created_at": NOON.isoformat()}
    found = said(lambda: next(due_times(row, NOON)).isoformat())
    assert found.startswith(expected) if expected[:2] == "20" else expected in found


def test_a_profile_of_the_user_is_not_the_buckets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS_PROFILE may name one that this machine has not, and a file may be spoilt."""
    (tmp_path / "config").write_text("[profile\nno = file of boto's\n")
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    s3._session.cache_clear()
    blobs = S3Blobs(R2, "id", "secret", "my-bucket", "", "auto")
    assert blobs.sign("GET", "key", expires_s=60).startswith(f"{R2}/my-bucket/key?")
    s3._session.cache_clear()


def test_there_are_enough_of_them() -> None:
    """The documentation of ten tools has more than a few forms."""
    assert len({(row.name, row.text) for row in DATABASE + PLACES}) + len(PROXIES) + len(CRONS) >= 280
