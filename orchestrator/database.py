"""`DatabaseClient`, as operators' own snippets import it: the Supabase client, and the workers of this fleet.

Nothing in the orchestrator itself uses it. It reads the same environment as every command, and `.env`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

try:
    from orchestrator.config.env_file import read_env_file
    from orchestrator.config.environment import load
except ModuleNotFoundError as error:
    fix = "run this with the interpreter that has the packages: .venv/bin/python of the repository"
    raise ModuleNotFoundError(f"{error}; fix: {fix}", name=error.name) from None

if TYPE_CHECKING:
    from supabase import Client


class DatabaseClient:
    """One fleet's database. Raises SettingsError where the environment cannot be used, and BadEnvFile for `.env`."""

    def __init__(self) -> None:
        read_env_file()
        self._settings = load()

    @cached_property
    def supabase(self) -> "Client":
        """The synchronous Supabase client. Raises SettingsError without SUPABASE_URL and SUPABASE_SERVICE_ROLE_KEY."""
        import httpx  # noqa: PLC0415
        from supabase import ClientOptions, create_client  # noqa: PLC0415  half a second that get_workers() does not need

        from orchestrator.adapters.http_client import outgoing  # noqa: PLC0415
        from orchestrator.config.errors import SettingProblem, SettingsError  # noqa: PLC0415

        url, key = self._settings.supabase_url, self._settings.supabase_service_role_key
        if not url or key is None:
            missing = [
                name for name in ("supabase_url", "supabase_service_role_key") if not getattr(self._settings, name)
            ]
            why = "a plain Postgres has no Supabase client: `await get_workers()` and the commands work with both"
            raise SettingsError(
                SettingProblem(f"{name.upper()} is missing", why, f"set {name.upper()}") for name in missing
            )
        http = httpx.Client(**outgoing(url))
        return create_client(url, key.get_secret_value(), ClientOptions(httpx_client=http))

    async def get_workers(self) -> Sequence[Mapping[str, Any]]:
        """The live workers, newest first, with tasks and costs; over Supabase or Postgres, whichever is set."""
        from orchestrator import wiring  # noqa: PLC0415

        async with wiring.open_store(self._settings) as store:
            return await store.workers()
