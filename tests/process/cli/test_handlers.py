"""`handlers new` and `handlers test`: the real agent and its child process, without a fleet."""

import json
from pathlib import Path

import pytest

from tests.process.cli.builders import Cli, Ran
from worker import protocol

CODE = """
import os, signal, time


def work(params, task):
    task.progress(0.25, "a quarter")
    time.sleep(params["seconds"])
    big = task.dir / "big.bin"
    big.write_bytes(b"x" * (17 << 20))
    task.upload(big, "deep/ä b.bin")
    seen = {name: os.environ.get(name) for name in ("GREETING", "DATABASE_URL", "S3_BUCKET")}
    return {"pid": os.getpid(), "file": __file__, "seen": seen}


def bad(params, task):
    raise KeyError("name")


def final(params, task):
    error = ValueError("the input is unusable")
    error.retryable = False
    raise error


def killed(params, task):
    os.kill(os.getpid(), signal.SIGKILL)


def slow(params, task):
    time.sleep(60)
"""
HANDLERS = ",".join(f"{name}=mine:{name}" for name in ("work", "bad", "final", "killed", "slow"))


async def handlers(folder: Path, *arguments: str, **environment: str) -> Ran:
    """`handlers …` with `folder` as the current directory."""
    return await Cli(environment, folder)("handlers", *arguments)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """A directory with the handlers of CODE and a command, and the settings that name them."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(CODE)
    (code / "count.sh").write_text("#!/bin/sh\nwc -c > output/bytes.txt\necho '{\"counted\": true}'\n")
    (code / "count.sh").chmod(0o755)
    return {"WORKER_CODE_DIR": "code", "WORKER_HANDLERS": f"{HANDLERS},count=cmd:./count.sh"}


async def test_a_new_handler_runs_at_once(tmp_path: Path) -> None:
    """`new` writes it and names the settings; `test` needs none of them, and leaves the outputs in a folder."""
    made = await handlers(tmp_path, "new", "say-hello", WORKER_HANDLERS="other=other:run")
    assert made.code == 0, made.err
    assert made.out == "WORKER_CODE_DIR=handlers\nWORKER_HANDLERS=other=other:run,say-hello=say_hello:run\n"
    ran = await handlers(tmp_path, "test", "say-hello", "--params", '{"name": "you"}')
    assert ran.code == 0, ran.err
    assert "params: {'name': 'you'}" in ran.err  # its log
    assert ran.out.startswith("Complete in ")
    assert (tmp_path / "outputs" / "say-hello" / "say_hello.txt").read_text() == "hello you\n"
    again = await handlers(tmp_path, "new", "say-hello")
    assert again.code == 2
    assert "say_hello.py exists" in again.err


async def test_a_folder_that_cannot_be_made_and_params_too_deep_are_explained(tmp_path: Path) -> None:
    """With a fix, and without a traceback."""
    (tmp_path / "handlers").write_text("a file")
    made = await handlers(tmp_path, "new", "hello")
    assert made.code == 2
    assert "why: handlers/hello.py cannot be written: File exists" in made.err
    (tmp_path / "mine.py").write_text("def run(params, task): pass\n")
    deep = await handlers(tmp_path, "test", "mine", "--params", "[" * 20_000, WORKER_CODE_DIR=".")
    assert deep.code == 2
    assert "--params must be a JSON object" in deep.err
    endless = await handlers(tmp_path, "test", "mine", "--params", '{"a": NaN}', WORKER_CODE_DIR=".")
    assert (endless.code, "NaN is not JSON" in endless.err) == (2, True)


async def test_an_output_whose_name_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """The task fails before anything is stored, as on a worker."""
    (tmp_path / "bad.sh").write_text("#!/bin/sh\ntouch \"output/$(printf 'a\\377')\"\n")
    (tmp_path / "bad.sh").chmod(0o755)
    ran = await handlers(tmp_path, "test", "t", WORKER_CODE_DIR=".", WORKER_HANDLERS="t=cmd:./bad.sh")
    assert ran.code == 1
    assert r"OutputRefused: 'a\udcff' cannot be the name of an output: it is not UTF-8" in ran.out
    assert "OUTPUT_REFUSED" in ran.out
    assert "such a task is not tried again" in ran.out
    assert not (tmp_path / "outputs").exists()


async def test_it_gets_what_a_pod_gets(tmp_path: Path, settings: dict[str, str]) -> None:
    """Progress while it runs, large outputs, WORKER_ENV; but no setting of the orchestrator."""
    environment = settings | {
        "WORKER_ENV": "GREETING", "GREETING": "good day", "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "S3_BUCKET": "bucket",
    }  # fmt: skip
    arguments = ("test", "work", "--params", '{"seconds": 1}', "-o", "out", "--json")
    ran = await handlers(tmp_path, *arguments, **environment)
    assert ran.code == 0, ran.err
    assert "25% a quarter" in ran.err
    said = ran.json()
    assert said["result_data"]["seen"] == {"GREETING": "good day", "DATABASE_URL": None, "S3_BUCKET": None}
    assert "user-" in said["result_data"]["file"]  # unpacked from the archive that a pod gets
    assert said["outputs"] == [{"path": str(tmp_path / "out" / "deep" / "ä b.bin"), "bytes": 17 << 20}]
    assert not Path(f"/proc/{said['result_data']['pid']}").exists()


async def test_a_command_is_a_handler_too(tmp_path: Path, settings: dict[str, str]) -> None:
    """Its output folder is stored, and the last JSON object of its stdout is the result."""
    ran = await handlers(tmp_path, "test", "count", **settings)
    assert ran.code == 0, ran.err
    assert '"counted": true' in ran.out
    assert int((tmp_path / "outputs" / "count" / "bytes.txt").read_text()) > 10


@pytest.mark.parametrize(
    ("name", "code", "exit_class", "text", "retryable"),
    [
        pytest.param("bad", "HANDLER_ERROR", "exception", "KeyError: 'name'", True, marks=pytest.mark.full),
        ("final", "HANDLER_ERROR", "exception", "ValueError: the input is unusable", False),
        ("killed", "SIGNAL", "signal", "SIGKILL", True),
        pytest.param("slow", "TIMEOUT", "timeout", "no end within 0.5 s", True, marks=pytest.mark.full),
    ],
)
async def test_a_failure_is_the_agents(
    tmp_path: Path, settings: dict[str, str], name: str, code: str, exit_class: str, text: str, *, retryable: bool
) -> None:
    """The class, code and text that a worker would report; exit 1."""
    limit = "0.5" if name == "slow" else "30"
    ran = await handlers(tmp_path, "test", name, "--timeout-s", limit, "--json", **settings)
    assert ran.code == 1, ran.err
    failure = ran.json()["failure"]
    assert (failure["code"], failure["exit_class"], failure["retryable"]) == (code, exit_class, retryable)
    assert text in failure["message"]
    assert failure["exit_class"] in protocol.EXIT_CLASSES


async def test_a_failure_is_explained(tmp_path: Path, settings: dict[str, str]) -> None:
    """Code and text on stdout, the traceback in the log."""
    ran = await handlers(tmp_path, "test", "bad", **settings)
    assert ran.code == 1
    assert "HANDLER_ERROR (exception)\nKeyError: 'name'\nThe handler raised an exception." in ran.out
    assert 'raise KeyError("name")' in ran.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("test", "nothing"), "names no handler for 'nothing'"),
        (("test", "bad", "--params", "{"), "--params must be a JSON object"),
        (("new", "json"), "would hide Python's own module json"),
        (("new", "../x"), "is no name"),
    ],
)
async def test_what_cannot_be_used_is_named(
    tmp_path: Path, settings: dict[str, str], arguments: tuple[str, ...], why: str
) -> None:
    """Exit 2 with what, why and fix; nothing is written."""
    ran = await handlers(tmp_path, *arguments, **settings)
    assert ran.code == 2
    assert why in ran.err
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == '["code"]'


async def test_an_output_is_written_once_as_on_a_worker(tmp_path: Path) -> None:
    """Other content under the same name is refused, and does not replace what was stored; the same content is there."""
    (tmp_path / "twice.py").write_text(
        "def work(params, task):\n"
        "    path = task.dir / 'a'\n"
        "    for text in params['texts']:\n"
        "        path.write_text(text)\n"
        "        task.upload(path, 'name')\n"
    )
    arguments = ("test", "t", "-o", "out", "--params")
    environment = {"WORKER_CODE_DIR": ".", "WORKER_HANDLERS": "t=twice:work"}
    again = await handlers(tmp_path, *arguments, '{"texts": ["1", "1"]}', **environment)
    assert again.code == 0, again.err
    ran = await handlers(tmp_path, *arguments, '{"texts": ["2", "3"]}', **environment)
    assert ran.code == 1
    assert "OUTPUT_EXISTS" in ran.out
    assert (tmp_path / "out" / "name").read_text() == "2"
