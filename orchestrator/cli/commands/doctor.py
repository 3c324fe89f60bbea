"""`doctor`: checks every part. `doctor ssh --repair`: prints the key pair as lines of an .env file."""

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click
from rich.padding import Padding
from rich.text import Text

from orchestrator.cli.fixes import whole
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.program import as_typed, suggestion
from orchestrator.cli.tables import MARKS
from orchestrator.core.plurals import counted
from orchestrator.errors import BAD_ARGUMENT, SETTING, Failure
from orchestrator.observability.redaction import plain

if TYPE_CHECKING:
    from orchestrator.diagnostics.doctor import Finding

INDENT = 7  # columns
LIST = "code"  # the section that is a list: who asks for it wants to see it
MANY = 3  # missing settings, from which on `init` is the shorter way


@click.command()
@click.argument("section", nargs=-1)
@click.option("--repair", is_flag=True, help="With `ssh`: print the key pair for pasting, the private key included.")
@click.option("-v", "--verbose", is_flag=True, help="Show the checks that succeeded, too.")
@json_option
@click.pass_obj
def doctor(output: Output, section: tuple[str, ...], repair: bool, verbose: bool) -> int:
    """Check every part, or the SECTIONs named. It never stops at the first fault. Exit 1 on any failure.

    Sections: settings, code, database, leader, runpod, pods, ssh, s3, clock, gateway. It changes nothing but one
    object of its own in the bucket, which it deletes.
    """
    from orchestrator.diagnostics.doctor import SECTIONS, counts, diagnose

    if unknown := sorted(set(section) - set(SECTIONS)):
        near = suggestion(unknown[0], SECTIONS)
        raise Failure(BAD_ARGUMENT, why=f"{', '.join(unknown)}: sections are {', '.join(SECTIONS)}.{near}")
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
        for name, found in groupby(findings, key=lambda finding: finding.section):
            _show(
                output, f"{name}: {SECTIONS[name]}", list(found), verbose=verbose or (name == LIST and LIST in section)
            )
        output.show("", Text(", ".join(f"{number} {name}" for name, number in counted.items()), style="bold"))
        if sum(finding.status == "fail" and finding.what.endswith("is missing") for finding in findings) >= MANY:
            output.show("python -m orchestrator init asks for what is missing, checks it and writes .env.")
    return 1 if counted["fail"] else 0


def _in_one_line(findings: "Sequence[Finding]") -> Text:
    """Show a section without a fault: its note, else its first fact, and how many checks it made or skipped."""
    statuses = [finding.status for finding in findings]
    status = next(one for one in ("note", "ok", "skip") if one in statuses)
    worst = next((one for one in findings if one.status == status and one.why), findings[statuses.index(status)])
    facts = {"ok": worst.why or worst.what, "note": f"{worst.what}; {worst.fix}", "skip": f"{worst.what}: {worst.why}"}
    done, skipped = len(findings) - statuses.count("skip"), statuses.count("skip")
    number = f" {counted(done, 'check')}{f', {skipped} skipped' if skipped else ''}:" if done else ""
    mark, style = MARKS[status]
    line = Text.assemble((mark, style), " ", (f"{findings[0].section:<8}", "bold"), f"{number} ")
    line.append(as_typed(plain(facts[status])))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _show(output: Output, title: str, findings: "Sequence[Finding]", *, verbose: bool) -> None:
    """Show a section: one line if it has no fault, else what needs attention; with `verbose` every check."""
    from orchestrator.diagnostics.doctor import FAULTS

    if not verbose and not FAULTS & {finding.status for finding in findings}:
        output.show(_in_one_line(findings))
        return
    output.show(Text(title, style="bold"))
    for finding in findings:
        if finding.status == "ok" and not verbose:
            continue
        mark, style = MARKS[finding.status]
        output.show(Text.assemble("  ", (mark, style), " ", plain(finding.what)))
        if finding.why:
            why = f"why: {finding.why}" if finding.fix else finding.why
            output.show(Padding(Text(as_typed(plain(why))), (0, 0, 0, INDENT)))
        if finding.fix:
            output.show(whole(f"{' ' * INDENT}fix: {plain(finding.fix)}"))


def _repair(output: Output) -> int:
    """Print both halves as lines of an .env file. The public one is derived if it does not match."""
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
    one_line, line = ours.text.replace("\n", "\\n"), line.replace("\n", "\\n")
    if output.json:
        _secretly(output, ours.text, one_line, line, note)
        return 0
    output.say(f"The private key follows: paste it where it belongs, and nowhere else. {note.capitalize()}.", "yellow")
    if ours.undone:
        output.say(f"Undone in the private key: {', '.join(ours.undone)}.")
    parts = (
        "# These lines are for .env, a shell, or a form of variables. \\n stands for a line break.",
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
