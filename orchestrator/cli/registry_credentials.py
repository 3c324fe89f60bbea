"""The credentials of a container registry in the RunPod account: `init` adds them for a private image."""

from orchestrator.cli.session import settings_for
from orchestrator.diagnostics.account import account, answer
from orchestrator.errors import SETTING, Failure
from orchestrator.observability.redaction import hide
from orchestrator.ports import BadSpec, Unavailable

PATH = "/v2/registries"
CONSOLE = "add them in the RunPod console: Settings, Container registry auth"


async def exist(name: str) -> bool:
    """Whether the account has credentials of this name or id. Raises PortError."""
    from orchestrator import wiring

    cloud = wiring.open_cloud(settings_for("cloud"))
    try:
        await cloud.registry_id(name)
    except BadSpec:  # none, or several: the check that follows says which
        return False
    finally:
        await cloud.close()
    return True


async def add(name: str, username: str, password: str) -> None:
    """Add credentials. Raises Failure; no text contains the password."""
    hide([password])
    settings = settings_for("cloud")
    key = settings.runpod_api_key
    assert key is not None  # noqa: S101  settings_for() has checked it
    body = {"name": name, "username": username, "password": password}
    async with account(settings.runpod_api_base_url, key.get_secret_value()) as client:
        try:
            await answer(client.post(PATH, json=body))
        except Unavailable as error:
            what = "RunPod does not take the registry credentials"
            raise Failure(SETTING, what=what, why=str(error), fix=CONSOLE) from None
