"""Output of the command line: tables and JSON on stdout, progress and errors on stderr, formats of times and money."""

import json
import signal
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import IO, Any, TypeVar, cast

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from orchestrator.cli.program import PROGRAM, as_typed, typed
from orchestrator.errors import Failure
from orchestrator.observability.redaction import plain, redact

SCHEMA_VERSION = 1  # of every JSON answer; raised when the meaning of a key changes
PIPE_COLUMNS = 20_000  # without a terminal: wider than any row, so that each row is one line, for grep
NARROW_COLUMNS = 130  # on a narrower terminal, a table stacks related columns

F = TypeVar("F", bound=Callable[..., Any])


class Output:
    """The two streams of one command."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?", not a traceback
        self.json = False
        self.owns_process = False  # the process ends with this command
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def interactive(self) -> bool:
        """Whether the user can answer a question."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.json

    @property
    def narrow(self) -> bool:
        """Whether a wide table would be cut."""
        return self.out.width < NARROW_COLUMNS

    def show(self, *parts: RenderableType) -> None:
        """Print data for a person. In a pipe, lines are not wrapped and columns not padded.

        Texts name the program as the user typed it. A caller does the same for the texts within a table.
        """
        parts = tuple(map(shown_as_typed, parts))
        if self.out.is_terminal:
            for part in parts:  # rich joins texts of one call, which then wrap
                kept = part if isinstance(part, Text) else Text()
                is_whole = kept.overflow == "ignore"  # a line to paste: the terminal itself may wrap it
                self.out.print(part, no_wrap=kept.no_wrap, overflow=kept.overflow, crop=not is_whole)
            return
        with self.out.capture() as captured:
            for part in parts:
                self.out.print(part, soft_wrap=isinstance(part, str | Text))
        sys.stdout.write(redact("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())))
        sys.stdout.flush()

    def document(self, **content: Any) -> None:
        """Print data for a program: one JSON object on one line."""
        sys.stdout.write(document_text(content) + "\n")
        sys.stdout.flush()

    def addresses(self, urls: Sequence[str], **content: Any) -> None:
        """Print addresses that the user asked for: these open an object, so they are not redacted as other output is.

        With --json, print one object with `content`, which is redacted, and the addresses as `urls`.
        """
        facts = {"schema_version": SCHEMA_VERSION, **redact(content), "urls": list(urls)}
        lines = [json.dumps(facts, default=_encode)] if self.json else urls
        sys.stdout.write("".join(f"{plain(line)}\n" for line in lines))
        sys.stdout.flush()

    def say(self, text: str, style: str = "") -> None:
        """Print a message for a person. It names the program as the user typed it."""
        self.err.print(Text(plain(as_typed(text)), style=style), soft_wrap=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner on stderr whose text the caller may change. Nothing without a terminal, or for JSON."""
        if self.json or not self.err.is_terminal:
            yield lambda _: None
            return
        with self.err.status(Text(plain(what))) as status:
            yield lambda now: status.update(Text(plain(now)))

    def fail(self, *failures: Failure) -> int:
        """Show errors, at least one. Return the first one's exit code."""
        for failure in failures:
            head, *rest = failure.lines()
            self.say(head, "bold red")
            for line in rest:
                self.say(line)
        if self.json:
            self.document(errors=[failure.as_json() for failure in failures])
        return failures[0].kind.exit_code

    def confirm(self, question: str, *, force: bool) -> None:
        """Ask for a confirmation. Without a terminal and without --yes, refuse."""
        from orchestrator.errors import CONFIRM

        if force:
            return
        if not self.interactive:
            raise Failure(CONFIRM, why=f"{question} There is no terminal to answer on")
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a running loop's handler waits for the answer
        try:
            agreed = click.confirm(question, err=True)
        finally:
            signal.signal(signal.SIGINT, before)
        if not agreed:
            self.say("Nothing was done.")
            raise click.exceptions.Exit(1)


def document_text(content: Mapping[str, Any]) -> str:
    """Return the JSON of a document on one line, redacted."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **content}, default=_encode, ensure_ascii=False)
    # Control characters are written as JSON escapes: JSON would allow raw C1 controls and bidi marks.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in redact(text))


def shown_as_typed(part: RenderableType) -> RenderableType:
    """Return a text that names the program as the user typed it, with its styles. Other parts stay as they are."""
    if isinstance(part, str):
        return as_typed(part)
    if isinstance(part, Text) and PROGRAM in part.plain:
        between = Text(typed(), no_wrap=part.no_wrap, overflow=part.overflow)
        return between.join(part.split(PROGRAM, allow_blank=True))
    return part


def json_option(command: F, text: str = "One JSON object on stdout.") -> F:
    """Add `--json` to a command."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Output).json = True

    return click.option("--json", is_flag=True, is_eager=True, expose_value=False, callback=remember, help=text)(
        command
    )


def one_line(value: Any, most: int = 200) -> str:
    """Return a value as one line, shortened to `limit`."""
    text = value if isinstance(value, str) else json.dumps(value, default=_encode, ensure_ascii=False)
    text = plain(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def numbers(value: Mapping[str, float], beyond: Container[str] = ()) -> str:
    """`a 1, b more than 2`, with b in `beyond`."""
    parts = ((name, "more than " if name in beyond else "", amount) for name, amount in sorted(value.items()))
    return ", ".join(f"{name} {more}{amount:g}" for name, more, amount in parts)


def _console(stream: Any) -> Console:
    width = None if stream.isatty() else PIPE_COLUMNS
    return _Console(file=cast("IO[str]", _Redacting(stream)), width=width, highlight=False, markup=False, emoji=False)


class _Console(Console):
    """Rich's console without control characters in texts. Its own control sequences stay.

    All output passes through it, so callers need not clean texts that come from a pod.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return Rich's segments without control characters in their texts."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(plain(text), style)


class _Redacting:
    """A stream that redacts secrets."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(redact(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Decimal):
        return float(value)  # a number stays a number
    return str(value)
