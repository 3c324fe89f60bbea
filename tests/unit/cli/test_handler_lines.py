"""`handlers test` shows the user's frames, and ends with a fix for what most handlers have once."""

from pathlib import Path

import pytest

from orchestrator.cli.handler_lines import HandlerLines, fix_of

HOME = "/tmp/handler-x"  # noqa: S108  a text, not a file
CODE = f"{HOME}/user-{'0a' * 32}"
AGENT = f"{HOME}/agent-{'1b' * 32}.pyz/orchestrator_worker/host.py"
LOG = f"""\
--- task 1 attempt 1 begins: m:run
Traceback (most recent call last):
  File "{AGENT}", line 82, in _run
    last = task.ended(_function(request["handler"])(task.params, task))
           ^^^^^^^^^^^^^^
  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import
  File "{CODE}/m.py", line 3, in run
    deep()
  File "/usr/lib/python3/json/__init__.py", line 1, in loads
    raise ValueError
ValueError: no
  a line of the handler, indented
Traceback (most recent call last):
  File "{AGENT}", line 82, in _run
    commands.run()
PermissionError: [Errno 13] Permission denied: '{CODE}/n.sh'
50 %Traceback (most recent call last):
  File "{AGENT}", line 82, in _run
    run()
  File "{CODE}/m.py", line 9, in run
    task.upload(path)
  File "{AGENT}", line 94, in upload
    return self._upload(path)
           ^^^^^^^^^^^^^^^^^^
ImportError: cannot import name 'x' from 'm' ({CODE}/m.py)
  File "{AGENT}" is no frame outside of a traceback"""
SHOWN = """\
--- task 1 attempt 1 begins: m:run
Traceback (most recent call last):
  File "handlers/m.py", line 3, in run
    deep()
  File "/usr/lib/python3/json/__init__.py", line 1, in loads
    raise ValueError
ValueError: no
  a line of the handler, indented
Traceback (most recent call last):
PermissionError: [Errno 13] Permission denied: 'handlers/n.sh'
50 %Traceback (most recent call last):
  File "handlers/m.py", line 9, in run
    task.upload(path)
ImportError: cannot import name 'x' from 'm' (handlers/m.py)"""


def test_a_traceback_begins_in_the_users_code() -> None:
    """With the path that the user knows; nothing else is left out."""
    lines = HandlerLines(Path("handlers"))
    shown = [one for one in map(lines.shown, LOG.split("\n")) if one is not None]
    assert shown[:-1] == SHOWN.split("\n")
    assert shown[-1].endswith("is no frame outside of a traceback")


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("ModuleNotFoundError: No module named 'torch.nn'", "python3 -m pip install torch;"),
        ("AttributeError: module 'a.b' has no attribute 'go'", "define go in a/b.py, or correct WORKER_HANDLERS=m:run"),
        ("PermissionError: [Errno 13] Permission denied: 'handlers/n.sh'", "chmod +x handlers/n.sh"),
        ("OSError: [Errno 8] Exec format error: 'handlers/n.sh'", "begin handlers/n.sh with a line such as #!/bin/sh"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'tool'", "write cmd:./tool for a file"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'", None),
        ("RuntimeError: boom", None),
        ("TypeError: run() takes 1 positional argument but 2 were given", "def run(params, task): "),
        ("TypeError: run() missing 1 required positional argument: 'more'", "def run(params, task): "),
        ("TypeError: other() missing 1 required positional argument: 'more'", None),
    ],
)
def test_the_usual_failures_have_a_fix(message: str, fix: str | None) -> None:
    """Ready to be copied."""
    found = fix_of(message, "m:run", "python3")
    assert (found or "").startswith(fix or "")
    assert (found is None) is (fix is None)


def test_a_command_that_is_missing_is_told_from_one_whose_interpreter_is(tmp_path: Path) -> None:
    """The error of both names the script."""
    (script := tmp_path / "run.sh").write_text("#!/opt/none/python")
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
    fix = fix_of(missing.format(script), "cmd:./run.sh", "python3")
    assert fix is not None
    assert fix.startswith(f"correct the first line of {script}")
    assert (fix_of(missing.format("./gone.sh"), "cmd:./gone.sh", "python3") or "").startswith("write gone.sh into")
