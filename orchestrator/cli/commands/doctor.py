"""`doctor`: every part asked whether it works; `doctor ssh --repair`: the key pair in the form for pasting."""

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Iterable

import click
from rich.padding import Padding
from rich.text import Text

from orchestrator.cli.output import Output, json_option
from orchestrator.errors import BAD_ARGUMENT, SETTING, Failure
from orchestrator.observability.redaction import plain

MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red"), "skip": ("skip", "dim")}
INDENT = (0, 0, 0, 7)


@click.command()
@click.argument("section", nargs=-1)
@click.option("--repair", is_flag=True, help="With `ssh`: print the key pair for pasting, the private key included.")
@json_option
@click.pass_obj
def doctor(output: Output, section: tuple[str, ...], repair: bool) -> int:
    """Check every part, or the SECTIONs named; never stops at the first fault, changes nothing. Exit 1 on any failure.

    Sections: settings, database, leader, runpod, pods, ssh, s3, clock, gateway. In the bucket an object of its own is
    put and deleted.
    """
    from orchestrator.diagnostics.doctor import SECTIONS, counts, diagnose

    if unknown := sorted(set(section) - set(SECTIONS)):
        raise Failure(BAD_ARGUMENT, why=f"{', '.join(unknown)}: sections are {', '.join(SECTIONS)}")
    if repair:
        if section != ("ssh",):
            raise Failure(BAD_ARGUMENT, why="--repair is for ssh", fix="python -m orchestrator doctor ssh --repair")
        return _repair(output)
    with output.waiting(f"asking {', '.join(section) or 'every part'}"):
        findings = asyncio.run(diagnose(section))
    counted = counts(findings)
    if output.json:
        output.document(findings=[dataclasses.asdict(finding) for finding in findings], counts=counted)
    else:
        shown = ""
        for finding in findings:
            if finding.section != shown:
                shown = finding.section
                output.show(Text(f"{shown}: {SECTIONS[shown]}", style="bold"))
            mark, style = MARKS[finding.status]
            output.show(Text.assemble("  ", (mark, style), " ", plain(finding.what)))
            for line in _more(finding.why, finding.fix):
                output.show(Padding(Text(plain(line)), INDENT))
        output.show("", Text(", ".join(f"{number} {name}" for name, number in counted.items()), style="bold"))
    return 1 if counted["fail"] else 0


def _more(why: str, fix: str) -> Iterable[str]:
    if why:
        yield f"why: {why}" if fix else why
    if fix:
        yield f"fix: {fix}"


def _repair(output: Output) -> int:
    """Print both halves; the public one is derived where it cannot be read or belongs to another key."""
    from orchestrator.config.environment import usable
    from orchestrator.config.ssh_keys import BadKey, login_pair, private_key

    settings, _ = usable()
    secret = settings.runpod_ssh_private_key
    given, public = secret.get_secret_value() if secret else "", settings.runpod_ssh_public_key or ""
    try:
        ours = private_key(given)
    except BadKey as error:
        what = "RUNPOD_SSH_PRIVATE_KEY cannot be repaired"
        raise Failure(
            SETTING, what=what, why=f"{error}: something is lost that no repair brings back", fix=error.fix
        ) from None
    try:
        line, note = login_pair(given, public).public.text, "they belong together"
    except BadKey as error:
        line = ours.key.export_public_key().decode().strip()
        note = f"the public key was derived from the private one, since {error}"
    one_line = ours.text.replace("\n", "\\n")
    if output.json:
        _secretly(output, ours.text, one_line, line, note)
        return 0
    output.say(f"The private key follows: paste it where it belongs, and nowhere else. {note.capitalize()}.", "yellow")
    if ours.undone:
        output.say(f"Undone in the private key: {', '.join(ours.undone)}.")
    parts = (
        "# As it is in its file:",
        ours.text.rstrip("\n"),
        "",
        "# In one line, for an .env file or a form that keeps no line breaks:",
        f'RUNPOD_SSH_PRIVATE_KEY="{one_line}"',
        f"RUNPOD_SSH_PUBLIC_KEY={shlex.quote(line)}",
        "",
    )
    sys.stdout.write("\n".join(parts))  # not by `output`, which would hide it
    sys.stdout.flush()
    return 0


def _secretly(output: Output, text: str, one_line: str, public: str, note: str) -> None:
    """The same for a program, past the redaction that every other answer goes through."""
    import json

    from orchestrator.cli.output import SCHEMA_VERSION

    document = {"schema_version": SCHEMA_VERSION, "private_key": text, "private_key_one_line": one_line}
    sys.stdout.write(json.dumps({**document, "public_key": public, "note": note}) + "\n")
    output.say("The answer shows the private key.", "yellow")
