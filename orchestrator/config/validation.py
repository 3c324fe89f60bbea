"""Contradictions between settings, and the settings that each part needs. Each problem has its fix."""

import os
from collections.abc import Callable, Mapping

from orchestrator.config.endpoints import endpoint_problems
from orchestrator.config.env_file import ENV_FILE
from orchestrator.config.errors import PATH_CHARS, SettingProblem, SettingsError, shown
from orchestrator.config.handler_check import handler_problems
from orchestrator.config.setting import settings_of
from orchestrator.config.settings import Settings
from orchestrator.config.weak_secrets import is_readable_on_the_way, weakness
from orchestrator.core.policy import PoolKind

MIN_BYTES = {one.variables[0]: one.min_bytes for one in settings_of(Settings) if one.min_bytes}
ENCRYPTED = ("WORKER_API_URL", "SUPABASE_URL", "S3_ENDPOINT_URL", "RUNPOD_API_BASE_URL")
PROJECTS_OWN = "set WORKER_JWT_SECRET to the project's JWT secret, or WORKER_JWT_SIGNING_KEY to a key imported there"
PUBLIC_KEY = "set SUPABASE_PUBLISHABLE_KEY=sb_publishable_… (or the legacy anon key); it is public by design"


def contradictions(settings: Settings) -> list[SettingProblem]:
    """Return the settings that are valid alone and contradict each other."""
    problems = list(endpoint_problems(settings))
    if settings.max_active_gpus and settings.min_active_gpus > settings.max_active_gpus:
        why = f"{settings.min_active_gpus} is more than MAX_ACTIVE_GPUS={settings.max_active_gpus}"
        problems.append(SettingProblem("MIN_ACTIVE_GPUS contradicts MAX_ACTIVE_GPUS", why, "lower MIN_ACTIVE_GPUS"))
    if settings.deadman_timeout_sec <= settings.heartbeat_timeout_sec:
        silent_s = settings.heartbeat_timeout_sec
        why = f"{settings.deadman_timeout_sec:g} s is not more than HEARTBEAT_TIMEOUT_SEC={silent_s:g}"
        fix = "raise DEADMAN_TIMEOUT_SEC, or workers end themselves before anybody misses them"
        problems.append(SettingProblem("DEADMAN_TIMEOUT_SEC contradicts HEARTBEAT_TIMEOUT_SEC", why, fix))
    if settings.worker_code_dir is not None and not os.path.isdir(settings.worker_code_dir):  # noqa: PTH112  Path raises for long names
        why = f"{shown(str(settings.worker_code_dir), PATH_CHARS)} is not a directory"
        problems.append(
            SettingProblem("WORKER_CODE_DIR cannot be used", why, "give the directory that holds your handlers")
        )
    if settings.worker_start_command and settings.worker_handlers:
        why = "WORKER_START_COMMAND replaces the agent that would call WORKER_HANDLERS"
        problems.append(SettingProblem("two kinds of worker are set", why, "unset one of the two"))
    try:
        problems += _clusters_without_agent(settings)
        problems += _beyond(settings)
    except SettingsError as error:
        problems += error.problems
    return problems


def _clusters_without_agent(settings: Settings) -> list[SettingProblem]:
    """Return the cluster pools without an agent that submits tasks to Slurm. Raises SettingsError as `_beyond`."""
    names = [pool.name for pool in settings.policy().pools if pool.kind is PoolKind.CLUSTER]
    if not names or not settings.worker_start_command:
        return []
    why = "WORKER_START_COMMAND replaces the agent, which submits a cluster's tasks to Slurm"
    what = f"POOLS_FILE [pools.{names[0]}] cannot be a cluster"
    return [SettingProblem(what, why, "unset WORKER_START_COMMAND and set WORKER_HANDLERS, or remove the pool")]


def _beyond(settings: Settings) -> list[SettingProblem]:
    """Return what a pool should get and no worker gets. Raises SettingsError if POOLS_FILE cannot be used."""
    known = {"worker_handlers": {name for name, _ in settings.worker_handlers}, "worker_env": set(settings.worker_env)}
    problems = []
    for pool in settings.policy().pools:
        for key, named in (("worker_handlers", pool.handlers), ("worker_env", pool.env)):
            if beyond := sorted(set(named or ()) - known[key]):
                what = f"POOLS_FILE [pools.{pool.name}] {key} names {beyond[0]!r}"
                why = f"{key.upper()} does not have it, and a pool gets a part of that"
                problems.append(SettingProblem(what, why, f"add it to {key.upper()}, or remove it from the pool"))
    return problems


def _unset(settings: Settings, names: Mapping[str, str]) -> list[SettingProblem]:
    missing = [name for name in names if not getattr(settings, name.lower())]
    return [SettingProblem(f"{name} is missing", "it is not set in the environment", names[name]) for name in missing]


def _missing_database(settings: Settings) -> list[SettingProblem]:
    if settings.database_url or (settings.supabase_url and settings.supabase_service_role_key):
        return []
    if settings.supabase_url:
        why = "SUPABASE_URL is set, and neither SUPABASE_SERVICE_ROLE_KEY nor DATABASE_URL"
        fix = "set SUPABASE_SERVICE_ROLE_KEY to the project's secret key (sb_secret_…, or the legacy service_role key)"
        return [SettingProblem("SUPABASE_SERVICE_ROLE_KEY is missing", why, fix)]
    why = "neither DATABASE_URL nor SUPABASE_URL is set, and this directory has no .env"
    if os.path.exists(ENV_FILE):  # noqa: PTH110  it never raises
        why = "neither DATABASE_URL nor SUPABASE_URL is set, in the environment or in .env"
    fix = "python -m orchestrator init; or set DATABASE_URL=postgresql://…"
    return [SettingProblem("no database is given", why, fix)]


def _missing_shell(settings: Settings) -> list[SettingProblem]:
    names = {
        "RUNPOD_SSH_PUBLIC_KEY": 'set RUNPOD_SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)"',
        "RUNPOD_SSH_PRIVATE_KEY": 'set RUNPOD_SSH_PRIVATE_KEY="$(cat ~/.ssh/id_ed25519)"',
    }
    if problems := _unset(settings, names):
        return problems
    from orchestrator.config.ssh_keys import BadKey  # noqa: PLC0415  asyncssh takes a while to import, and few commands need it

    try:
        settings.login_pair()
    except BadKey as error:
        name = "RUNPOD_SSH_PUBLIC_KEY" if error.cause == "bad_public_key" else "RUNPOD_SSH_PRIVATE_KEY"
        return [SettingProblem(f"{name} cannot be used", str(error), error.fix)]
    return []


def _guessable(settings: Settings, fix: str) -> list[SettingProblem]:
    """Return the secrets that protect something of ours and could be guessed."""
    problems = []
    for name, min_bytes in MIN_BYTES.items():
        secret = getattr(settings, name.lower())
        why = weakness(secret.get_secret_value(), min_bytes) if secret else None
        if why:
            how = fix if name == "WORKER_JWT_SECRET" else f'set {name}="$(openssl rand -hex 32)", or unset it'
            problems.append(SettingProblem(f"{name} is too weak", why, how))
    return problems


def _readable(settings: Settings) -> list[SettingProblem]:
    """Return the addresses to which tokens, keys and tasks would be sent unencrypted."""
    given = {name: getattr(settings, name.lower()) for name in ENCRYPTED}
    why = "http:// outside of this machine: others on the network can read tokens, keys and tasks"
    return [
        SettingProblem(f"{name} is not encrypted", why, f"set {name}=https://…")
        for name, url in given.items()
        if url and is_readable_on_the_way(url)
    ]


def _missing_gateway(settings: Settings) -> list[SettingProblem]:
    fix = 'set WORKER_JWT_SECRET="$(openssl rand -hex 32)", the same on every replica'
    if settings.supabase_url:
        fix = PROJECTS_OWN
    problems = []
    if not (settings.worker_jwt_secret or settings.worker_jwt_signing_key):
        why = "neither WORKER_JWT_SECRET nor WORKER_JWT_SIGNING_KEY is set in the environment"
        problems.append(SettingProblem("WORKER_JWT_SECRET is missing", why, fix))
    problems += _guessable(settings, fix)
    problems += _readable(settings)
    try:
        settings.token_keys()
    except ValueError as error:
        how = "make one with `supabase gen signing-key --algorithm ES256` and import it in the project's JWT settings"
        both = " or WORKER_JWT_SIGNING_KEY_PREVIOUS" if settings.worker_jwt_signing_key_previous else ""
        problems.append(SettingProblem(f"WORKER_JWT_SIGNING_KEY{both} cannot be used", str(error), how))
    if settings.pods_use_supabase and not settings.supabase_publishable_key:
        why = "pods speak to SUPABASE_URL, whose gateway lets no call in without a project key in its apikey header"
        problems.append(SettingProblem("SUPABASE_PUBLISHABLE_KEY is missing", why, PUBLIC_KEY))
    if not (settings.database_url or settings.pods_use_supabase) and settings.supabase_url:
        why = "without DATABASE_URL this service has no gateway for pods: they speak to SUPABASE_URL"
        problems.append(
            SettingProblem("WORKER_API_URL cannot be used", why, "unset WORKER_API_URL, or set DATABASE_URL")
        )
    for name in settings.worker_env:
        if name.lower() in type(settings).model_fields:
            why = "it is the orchestrator's own, and pods are given none of these"
            problems.append(
                SettingProblem(f"WORKER_ENV cannot name {name}", why, "give handlers a variable of another name")
            )
        elif name not in settings.handler_env:
            why = "WORKER_ENV names it for the handlers, and it is not set"
            problems.append(SettingProblem(f"{name} is missing", why, f"set {name}, or take it out of WORKER_ENV"))
    if not settings.worker_url:
        why = "neither WORKER_API_URL nor RAILWAY_PUBLIC_DOMAIN is set, so pods could not reach the worker RPC"
        problems.append(
            SettingProblem("WORKER_API_URL is missing", why, "set WORKER_API_URL=https://<this service's public name>")
        )
    return problems


MISSING: Mapping[str, Callable[[Settings], list[SettingProblem]]] = {
    "database": _missing_database,
    "cloud": lambda s: _unset(s, {"RUNPOD_API_KEY": "set RUNPOD_API_KEY=rpa_… (RunPod console, Settings, API keys)"}),
    "shell": _missing_shell,
    "blobs": lambda s: _unset(
        s,
        {
            "S3_BUCKET": "set S3_BUCKET to the bucket for logs and outputs",
            "AWS_ACCESS_KEY_ID": "set AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY": "set AWS_SECRET_ACCESS_KEY",
        },
    ),
    "gateway": _missing_gateway,
    "handlers": lambda s: [one.problem for one in handler_problems(s) if one.is_certain],
}
TO_RUN = tuple(MISSING)  # the parts that `run` and `once` need


def require(settings: Settings, *parts: str) -> Settings:
    """Return `settings` if they contain what these parts (names in MISSING) need. Raises SettingsError."""
    problems = [problem for part in parts for problem in MISSING[part](settings)]
    if problems:
        raise SettingsError(problems)
    return settings


def unusable_at_start(settings: Settings, *parts: str) -> list[SettingProblem]:
    """Return why the start would refuse values that are set: what `require` raises, without missing settings."""
    names = {name for one in settings_of(Settings) for name in one.variables}
    found = [problem for part in parts for problem in MISSING[part](settings)]
    return [one for one in found if one.what.removesuffix(" is missing") not in names]


def lacks(settings: Settings, *parts: str) -> str | None:
    """Return in one line what `require` would refuse; None if it would not."""
    return "; ".join(problem.what for part in parts for problem in MISSING[part](settings)) or None
