"""Secrets of WORKER_ENV that handlers print: they leave the pod nowhere, in no form."""

import base64
import json
from collections.abc import Callable

import pytest

from tests.process.worker.scripted import Orchestrator, Pod, wait_for
from worker.redaction import HIDDEN

SECRET = 'c4n/ry+s3cret:with "odd\'signs"-0123456789'
ENV = {
    "HF_TOKEN": SECRET,
    "PLAIN_NAME": f"postgresql://app:{SECRET[:9].replace('/', '-')}@db/x",
    "HF_HOME": "/workspace/hf",
}
FORMS = [SECRET, json.dumps(SECRET)[1:-1], base64.b64encode(SECRET.encode()).decode(), SECRET.encode().hex()]

CHATTY = """
import base64, json, os, subprocess, sys

def prints(params, task):
    secret = os.environ["HF_TOKEN"]
    print("plain", secret, os.environ["HF_HOME"])
    print("url", os.environ["PLAIN_NAME"])
    print("json", json.dumps({"a": secret}), "repr", repr(secret))
    print("base64", base64.b64encode(secret.encode()).decode(), "hex", secret.encode().hex())
    sys.stdout.write("two writes " + secret[:20])
    sys.stdout.write(secret[20:] + "\\n")
    sys.stderr.write("error " + secret + "\\n")
    os.write(1, b"descriptor " + secret.encode() + b"\\n")
    subprocess.run(["sh", "-c", 'printf "child %s\\n" "$HF_TOKEN"; printf "child error %s\\n" "$HF_TOKEN" >&2'])
    task.progress(0.5, "progress " + base64.b64encode(secret.encode()).decode())
    print("last words")
    return {"a": [secret, secret.encode().hex()], secret: "x"}

def raises(params, task):
    raise ValueError(json.dumps(os.environ["HF_TOKEN"]))

def says_much(params, task):
    secret = os.environ.pop("HF_TOKEN")
    task.progress(1, "x" * 85 + secret + "y" * 1000)
    raise ValueError("x" * 1860 + secret + "y" * 8000)

def long_type(params, task):
    raise type("E" * 40 + os.environ["HF_TOKEN"] + "E" * 200, (Exception,), {})()

def refused_key(params, task):
    return {"x" * 90 + os.environ["HF_TOKEN"]: float("nan")}

def refused_name(params, task):
    (task.dir / "file").touch()
    task.upload("file", "x" * 90 + os.environ["HF_TOKEN"] + "\\n")

def name(params, task):
    (task.dir / "file").touch()
    task.upload("file", "made by " + os.environ["HF_TOKEN"])

def elsewhere(params, task):
    return "https://host/file?token=" + os.environ["HF_TOKEN"]
"""
SCRIPT = """#!/bin/sh
printf 'out %s\\n' "$HF_TOKEN"
printf 'err %s\\n' "$HF_TOKEN" >&2
printf '%s' "$HF_TOKEN" | base64 | tr -d '\\n'
echo
exit 3
"""


TWICE = """#!/usr/bin/env python3
import json, os
key = json.dumps("x" * 90 + os.environ["HF_TOKEN"])
print("{%s: 1, %s: 2}" % (key, key))
"""


def leaks(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


def test_no_secret_that_a_function_prints_is_in_the_log(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """By print, by descriptor, by a child process, in every encoding; progress and the result too."""
    pod = make_pod({"chatty.py": CHATTY})
    pod.start(
        {"prints": "chatty:prints", "raises": "chatty:raises", "elsewhere": "chatty:elsewhere"},
        env=ENV,
        heartbeat_s=0.1,
    )
    orchestrator.submit("one", "prints")
    result = orchestrator.completion("one")["p_result_data"]
    log = pod.log("handler")
    assert leaks(log) == []
    assert f"plain {HIDDEN} /workspace/hf\n" in log
    assert f"url postgresql://app:{HIDDEN}@db/x\n" in log
    assert f"two writes {HIDDEN}\nerror {HIDDEN}\ndescriptor {HIDDEN}\nchild {HIDDEN}\nchild error {HIDDEN}\n" in log
    assert log.endswith("last words\n--- task one attempt 1 ends: done\n")
    assert result == {"a": [HIDDEN, HIDDEN], HIDDEN: "x"}
    orchestrator.submit("two", "raises")
    assert leaks(json.dumps(orchestrator.failure("two"))) == []
    orchestrator.submit("three", "elsewhere")
    assert orchestrator.completion("three")["p_output_location"] == f"https://host/file?token={HIDDEN}"
    assert leaks(json.dumps(orchestrator.calls)) == []
    assert leaks(pod.log("handler") + pod.log("agent")) == []


def test_no_half_of_a_secret_is_in_a_text_that_was_cut(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """Long texts lose their middle, which may begin within a secret. The handler removes the variable itself."""
    pod = make_pod({"chatty.py": CHATTY})
    pod.start({"says_much": "chatty:says_much"}, env=ENV, heartbeat_s=0.1)
    for name in ("one", "two"):
        orchestrator.submit(name, "says_much")
        assert "characters left out" in orchestrator.failure(name)["message"]
    said = json.dumps(orchestrator.calls)
    assert not [half for half in (SECRET[:8], SECRET[8:16], SECRET[-10:]) if half in said]


@pytest.mark.parametrize(
    ("task_type", "code"),
    [
        ("long_type", "HANDLER_ERROR"),
        ("refused_key", "RESULT_REFUSED"),
        ("twice", "RESULT_REFUSED"),
        ("refused_name", "OUTPUT_REFUSED"),
        ("name", "OUTPUT_REFUSED"),
    ],
)
def test_no_part_of_a_secret_is_in_what_names_a_failure(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], task_type: str, code: str
) -> None:
    """The name of an error, of a key or of an output, which the message cuts. No output has a secret in its name."""
    pod = make_pod({"chatty.py": CHATTY, "twice.sh": TWICE})
    handler = "cmd:./twice.sh" if task_type == "twice" else f"chatty:{task_type}"
    pod.start({task_type: handler}, env=ENV)
    orchestrator.submit("t", task_type)
    failure = orchestrator.failure("t")
    assert failure["code"] == code
    assert HIDDEN[:5] in failure["message"]
    said = json.dumps(orchestrator.calls) + pod.log("handler") + pod.log("agent")
    assert not [half for half in (SECRET[:8], SECRET[8:16], SECRET[-10:]) if half in said]
    assert not orchestrator.objects


def test_no_secret_that_a_command_prints_is_in_the_log(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """Its standard error goes to the log without the agent's Python; the second task in a row is the same."""
    pod = make_pod({"job.sh": SCRIPT})
    pod.start({"job": "cmd:./job.sh"}, env=ENV)
    for name in ("one", "two"):
        orchestrator.submit(name, "job")
        failure = orchestrator.failure(name)
        assert leaks(json.dumps(failure)) == []
        assert f"err {HIDDEN}" in failure["detail"]["log"]
    log = pod.log("handler")
    assert leaks(log) == []
    assert log.count(f"out {HIDDEN}\n") == log.count(f"err {HIDDEN}\n") == log.count(f"{HIDDEN}\n--- task") == 2


def test_the_beginning_of_a_secret_does_not_hold_up_the_log(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """It may be the end of a prompt without a newline; a log that is followed shows it within seconds."""
    waits = 'import os, time\n\ndef waits(params, task):\n    print("which one? c4n/r", end="")\n'
    waits += '    while not os.path.exists(params["gate"]):\n        time.sleep(0.05)\n'
    pod = make_pod({"waits.py": waits})
    pod.start({"waits": "waits:waits"}, env=ENV)
    orchestrator.submit("one", "waits", {"gate": str(pod.home / "gate")})
    wait_for(lambda: pod.log("handler").endswith("which one? c4n/r"))
    (pod.home / "gate").touch()
    orchestrator.completion("one")


@pytest.mark.parametrize("status", [0, 1])
def test_no_secret_that_the_setup_command_prints_is_in_the_log(make_pod: Callable[..., Pod], status: int) -> None:
    """Also not in the error, and not from a program that it leaves running."""
    pod = make_pod()
    command = (
        'printf "out %s\\n" "$HF_TOKEN"; printf "err %s\\n" "$HF_TOKEN" >&2; '
        '(while [ ! -e "$GATE" ]; do sleep 0.05; done; printf "server %s\\n" "$HF_TOKEN"; exec sleep 30) & '
        f"exit {status}"
    )
    config = pod.config({}, env={**ENV, "GATE": str(pod.home / "gate")}, setup_command=command)
    _, line = pod.agent("start", stdin=json.dumps(config))
    assert leaks(json.dumps(line)) == []
    assert ("error" in line) == bool(status)
    if not status:
        (pod.home / "gate").touch()
        wait_for(lambda: f"server {HIDDEN}\n" in pod.log("system"))
    assert pod.log("system").startswith(f"out {HIDDEN}\nerr {HIDDEN}\n")
    assert leaks(pod.log("system") + pod.log("agent")) == []
