"""`ssh` and `exec`: a shell or a command on a worker's pod. Both accept only the host key that bring-up has pinned."""

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.pod_output import Captured, Shown
from orchestrator.cli.program import PROGRAM
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for
from orchestrator.errors import BAD_ARGUMENT, MISSING_PART, NO_SSH, Failure
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.core.model import Worker

CONNECT_S = 15.0
DEFAULT_S = 3_600.0
UNKNOWN_STATUS = 255  # as OpenSSH exits if a signal ended the command
SIGNALLED = 128  # a shell adds the number of the signal that ended a command
ROOT = "root"


@click.command()
@click.argument("worker")
@click.pass_obj
@runs
async def ssh(output: Output, worker: str) -> int:
    """Open a shell on the pod of WORKER. Exit with the shell's code.

    OpenSSH's client gets the fleet's key and the pinned host key in files that are removed at the end. No other host
    key, configuration or agent is used.
    """
    target = await _target(worker)
    program = shutil.which("ssh")
    if program is None:
        fix = f"apt-get install openssh-client; or: python -m orchestrator exec {target.id} -- sh -c '…'"
        raise Failure(MISSING_PART, why="OpenSSH's client `ssh` is not on the PATH", fix=fix)
    key = settings_for("database", "shell").login_pair().private.text
    output.say(f"{target.id}: {target.metadata.ssh_user or ROOT}@{target.ssh_host}:{target.ssh_port}", "dim")
    with tempfile.TemporaryDirectory(prefix="orchestrator-ssh-") as directory:
        words = [program, *_client_options(target, key, Path(directory))]
        with contextlib.suppress(ValueError):  # not in the main thread
            # Ctrl-C is for the client and the remote program. They would inherit SIG_IGN.
            signal.signal(signal.SIGINT, lambda *_: None)
        status = subprocess.run(words, check=False).returncode  # noqa: ASYNC221  nothing else runs meanwhile
        return status if status >= 0 else SIGNALLED - status


class _AfterDashes(click.Command):
    """A command that shows how to write `--`, if an option of the remote command is taken for one of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in given or given[0].startswith("-"):
                raise
            fix = f"{PROGRAM} exec {shlex.join([given[0], '--', *given[1:]])}"
            why = f"{error.option_name} belongs to the command on the pod, which begins after --"
            raise Failure(BAD_ARGUMENT, why=why, fix=fix) from None


@click.command("exec", cls=_AfterDashes)
@click.argument("worker")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_S,
    show_default=True,
    help="Seconds after which the connection is closed.",
)
@json_option
@click.pass_obj
@runs
async def execute(output: Output, worker: str, command: Sequence[str], timeout_s: float) -> int:
    """Run COMMAND on the pod of WORKER and exit with its code. Write -- before it.

    The words of COMMAND reach the program as they are: no shell on the pod interprets them. It reads no input. On a
    terminal, control characters of its output are replaced; in a pipe, the bytes are unchanged.
    """
    from orchestrator import wiring

    target = await _target(worker)
    assert target.ssh_host is not None and target.ssh_port is not None  # noqa: S101, PT018  _target() has checked it
    shell, _ = wiring.open_ssh_pool(settings_for("database", "shell"))
    outputs = [Captured() if output.json else Shown(stream) for stream in (sys.stdout, sys.stderr)]
    try:
        session = await shell.connect(
            target.ssh_host,
            target.ssh_port,
            pinned=target.host_key,
            timeout_s=CONNECT_S,
            user=target.metadata.ssh_user,
        )
        try:
            out, err = outputs
            status = await session.stream(shlex.join(command), stdout=out, stderr=err, timeout_s=timeout_s)
        finally:
            await session.close()
    except PortError as error:
        if isinstance(error.__cause__, BrokenPipeError):  # the reader of our output, such as `head`, has ended
            raise error.__cause__ from None
        fix = f"python -m orchestrator verify {target.id} --now"
        raise Failure(NO_SSH, why=f"{type(error).__name__}: {one_line(str(error), 400)}", fix=fix) from None
    texts = [one.end() for one in outputs]
    if output.json:
        names = ("stdout", "stderr")
        cut = [name for name, one in zip(names, outputs, strict=True) if isinstance(one, Captured) and one.truncated]
        output.document(worker_id=target.id, exit_status=status, **dict(zip(names, texts, strict=True)), truncated=cut)
    elif status is None:
        output.say("a signal ended the command", "yellow")
    return UNKNOWN_STATUS if status is None else status


async def _target(name: str) -> "Worker":
    """Return the worker. Raises Failure if its pod has no SSH address or no pinned host key."""
    from orchestrator.adapters.rows import worker_of

    async with opened_store() as store:
        row = (await find_worker(store, name))["worker"]
    fix = f"python -m orchestrator status {row['id']}"
    if row["status"] == "terminated":
        raise Failure(NO_SSH, why=f"worker {row['id']} has ended", fix=fix)
    if not row.get("ssh_host") or not row.get("ssh_port"):
        raise Failure(NO_SSH, why=f"the pod of {row['id']} has no SSH address yet", fix=fix)
    if not row.get("host_key"):
        why = f"no host key is pinned for {row['id']}: bring-up has not reached its pod, so any machine could answer"
        raise Failure(NO_SSH, why=why, fix=fix)
    return worker_of(row)


def _client_options(target: "Worker", key: str, directory: Path) -> list[str]:
    """Write the key and the pinned host key, and return the arguments for OpenSSH's client."""
    known, identity = directory / "known_hosts", directory / "key"
    identity.touch(mode=0o600)
    identity.write_text(f"{key.strip()}\n", encoding="utf-8")
    known.write_text(f"[{target.ssh_host}]:{target.ssh_port} {target.host_key}\n", encoding="utf-8")
    options = {
        "UserKnownHostsFile": str(known),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "ForwardAgent": "no",
        "ConnectTimeout": f"{CONNECT_S:.0f}",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    if target.host_key:
        options["HostKeyAlgorithms"] = _algorithms(target.host_key.split()[0])
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    address = ["-p", str(target.ssh_port), "-l", target.metadata.ssh_user or ROOT, "--", str(target.ssh_host)]
    return ["-F", "/dev/null", "-i", str(identity), *words, *address]


def _algorithms(kind: str) -> str:
    """Return the signature algorithms of a kind of host key."""
    return "rsa-sha2-512,rsa-sha2-256" if kind == "ssh-rsa" else kind
