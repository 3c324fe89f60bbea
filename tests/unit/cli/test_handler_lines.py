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
PermissionError: [Errno 13] Permission denied: 'handlers/n.sh'"""


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
    ],
)
def test_the_usual_failures_have_a_fix(message: str, fix: str | None) -> None:
    """Ready to be copied."""
    found = fix_of(message, "m:run", "python3")
    assert (found or "").startswith(fix or "")
    assert (found is None) is (fix is None)
