"""Each `--json` answer has a checked-in schema (docs/schemas/), and the answers of commands fit them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import Commands
from testbed.runpod.server import Emulator
from tests.process.cli import json_schemas
from tests.process.cli.builders import Cli, Fleet
from tests.process.cli.screens import FAILED, fill

CODE = "def run(params, task):\n    return {'n': 1}\n"


def commands_with_json() -> Iterator[str]:
    """The names of all commands that have --json."""
    group = Commands()

    def under(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for child in command.commands.values():
                yield from under(child, f"{name} {child.name}")
        else:
            yield name, command

    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield from (whole for whole, one in under(command, name) if any("--json" in param.opts for param in one.params))


@pytest.mark.parametrize("name", [*commands_with_json()])
def test_every_command_with_json_has_a_schema(name: str) -> None:
    """With a title that says whose it is, and the version of the answer's form."""
    schema = json_schemas.load(json_schemas.command_of(name.split()))
    assert schema["title"] == f"orchestrator {name} --json"
    assert schema["properties"]["schema_version"] == {"type": "integer"}


async def test_the_answers_fit_their_schemas(
    cli: Cli, fleet: Fleet, s3_environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Of the commands that other tests call without --json. Cli checks each answer."""
    active, stuck, ended = await fill(fleet)
    (tmp_path / "hello.py").write_text(CODE)
    handlers = {"WORKER_CODE_DIR": str(tmp_path), "WORKER_HANDLERS": "hello=hello:run"}
    secret = {"WEBHOOK_SECRET": "0f1e2d3c4b5a69788796a5b4c3d2e1f0"}
    nowhere = {"RUNPOD_API_BASE_URL": "http://127.0.0.1:1", "S3_ENDPOINT_URL": "http://127.0.0.1:1"}
    async with Emulator(tmp_path / "pods") as emulator:
        cloud = {"RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url}
        asked: list[tuple[tuple[str, ...], Mapping[str, str]]] = [
            (("list", "--all"), {}), (("status", active), {}), (("explain", active), {}), (("explain", stuck), {}),
            (("explain", ended), {}), (("explain", FAILED), {}), (("explain", "scaling"), {}),
            (("explain", "AUTH_FAILED"), {}), (("explain", "E012"), {}), (("explain", "U22"), {}),
            (("verify", stuck), {}), (("timeline", ended), {}), (("tasks", "list"), {}),
            (("tasks", "show", FAILED), {}), (("tasks", "retry", FAILED), {}),
            (("tasks", "cancel", FAILED, "--force"), {}),
            (("health",), {}),
            (("schedules", "add", "x", "--type", "x", "--every", "1h"), {}), (("schedules", "list"), {}),
            (("tenants", "list"), {}), (("limits", "list"), {}),
            (("schedules", "next", "x"), {}),
            (("webhooks", "add", "x", "--url", "https://x.example/", "--type", "of-no-other-test"), {}),
            (("webhooks", "list"), {}),
            (("webhooks", "retry"), {}), (("webhooks", "key", "https://x.example/"), secret),
            (("cost",), {}), (("efficiency",), {}), (("alerts", "list"), {}), (("diagnose",), nowhere),
            (("handlers", "test", "hello"), handlers), (("handlers", "new", "other"), handlers),
            (("shutdown", "--dry-run"), cloud), (("sync", "analyze"), cloud), (("plan",), cloud),
        ]  # fmt: skip
        for arguments, environment in asked:
            ran = await cli(*arguments, "--json", **environment)
            assert ran.code in (0, 1, 2), (arguments, ran.err)
            assert "errors" not in ran.json(), (arguments, ran.out)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"usd": "0.44", "rows": []}, "$.usd is string, not ['number', 'null']"),
        ({"rows": []}, "$.usd is missing"),
        ({"usd": 1, "rows": [{"id": None}]}, "$.rows[0].id is null, not string"),
        ({"usd": True, "rows": None}, "$.usd is boolean, not ['number', 'null']"),
    ],
)
def test_a_number_that_becomes_a_text_is_seen(value: dict[str, object], fault: str) -> None:
    """And a missing key, and a null where none may be."""
    item = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    schema = {
        "type": "object", "required": ["usd"],
        "properties": {"usd": {"type": ["number", "null"]}, "rows": {"type": "array", "items": item}},
    }  # fmt: skip
    assert list(json_schemas.faults(schema, {"usd": 3, "rows": [{"id": "x"}]}, "$")) == []
    assert next(json_schemas.faults(schema, value, "$")) == fault
