"""Settings that are valid and probably a mistake. `doctor` and the start of the orchestrator show them."""

from collections.abc import Iterator

from orchestrator.config.command_check import command_problems
from orchestrator.config.errors import SettingProblem
from orchestrator.config.handler_check import handler_problems
from orchestrator.config.settings import Settings

FLOATING = "latest"


def doubtful(settings: Settings) -> Iterator[SettingProblem]:
    """Yield each doubt once. The settings must be without contradictions."""
    pools = settings.policy().pools
    if not settings.worker_start_command and not settings.worker_handlers:
        why, fix = "workers could run no task", "python -m orchestrator handlers new hello, and set what it prints"
        yield SettingProblem("WORKER_HANDLERS is not set", why, fix)
    for image in dict.fromkeys(pool.image for pool in pools):
        if is_floating(image):
            why = "each pod pulls what the name means at that time, so two workers may differ"
            yield SettingProblem(f"the image {image} has no fixed tag", why, f"name a version: {_name(image)}:1.0")
    for pool in pools:
        if pool.max_active == 0:
            setting = "MAX_ACTIVE_GPUS" if pool.name == "default" else f"max_active_gpus of [pools.{pool.name}]"
            why = f"no worker is ever started, and tasks of pool {pool.name} wait"
            yield SettingProblem(f"{setting} is 0", why, f"raise {setting}, if tasks should run")
    yield from command_problems(settings)
    yield from (one.problem for one in handler_problems(settings) if not one.is_certain)


def is_floating(image: str) -> bool:
    """Whether the name of an image means another image from time to time: no tag and no digest, or `latest`."""
    last = image.rpartition("/")[2]
    return "@" not in image and (":" not in last or last.endswith(f":{FLOATING}"))


def _name(image: str) -> str:
    return image.removesuffix(f":{FLOATING}")
