"""Templates to HTML. Every text is escaped, and has no control characters; a page has parts that a stream can send.

A part is one element between `<!--#its-id-->` and `<!--/-->`, with this id. What stands between the parts is the
frame: if the frame is the same, a stream sends only the parts that have changed.
"""

import hashlib
import html
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from orchestrator.core.plurals import counted
from orchestrator.diagnostics import amounts
from orchestrator.observability.redaction import plain, redact

HERE = Path(__file__).parent
STATIC = HERE / "static"
MARK = re.compile(r"<!--(?:#([A-Za-z0-9_.:-]{1,200})|/)-->")  # the begin of a part with its id, or the end
AGE = re.compile(r'(<time [^<>]{1,200} data-ago="[^"<>]{0,40}">)[^<>]{0,60}')  # an open page counts on by itself
WORKER_ID = re.compile(r"(?<![\w-])gpu-\d{8}_\d{6}-[0-9a-f]{8}(?![\w-])")  # as `spawn` makes it
CSRF = f"csrf-{secrets.token_hex(16)}"  # stands in shared HTML for what each session has of its own; no text has it
BADGE, LEADER = "badge", "leader"  # parts outside of the content
MAX_TEXT_CHARS = 20_000  # of one text on a page
BRIEF_S = 10.0  # seconds that are shown with tenths
MAX_LINE_CHARS = 300  # … in a row


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """The content of a page at one moment, the same for all who may see the same. Two are never equal."""

    title: str
    html: str
    frame: str  # without ages
    parts: Mapping[str, str]
    marks: Mapping[str, str]  # the parts without ages: whether they differ
    digest: str
    at: datetime
    nav: Mapping[str, Any]


def rendered(template: str, facts: Mapping[str, Any], nav: Mapping[str, Any], at: datetime) -> Rendered:
    """Render the content of a page: its template's macro-free body, and `title`, which the facts name."""
    content = environment().get_template(template).render(facts, now=at)
    pieces = iter(MARK.split(content))  # a text, and for each mark its id, None at an end, and the text after it
    outside, parts = [next(pieces)], dict[str, str]()
    for name, text in zip(pieces, pieces, strict=True):
        if name is not None:
            parts[name] = text.strip()
        outside.append(text if name is None else f"<!--#{name}-->")
    frame = AGE.sub(r"\1", "".join(outside))
    if nav:
        parts |= {BADGE: badge(nav["problems"]), LEADER: leader(nav["leader"])}
    marks = {name: AGE.sub(r"\1", text) for name, text in parts.items()}
    digest = hashlib.sha256("\0".join((frame, *marks.values())).encode()).hexdigest()[:24]
    return Rendered(str(facts["title"]), content, frame, parts, marks, digest, at, nav)


def badge(problems: int) -> Markup:
    """The number of problems in the navigation, which every open page keeps up to date."""
    said = f' aria-label="{counted(problems, "problem")}"' if problems else " hidden"
    return Markup(f'<i id="{BADGE}" class="count"{said}>{problems}</i>')  # noqa: S704 - a number


def leader(now: Mapping[str, Any] | None) -> Markup:
    """Who leads, below every page, also on an open one."""
    if now is None:
        return Markup(f'<span id="{LEADER}" class="s s-bad">no leader</span>')  # noqa: S704 - a constant
    holder = html.escape(clean(str(now["holder"]), MAX_LINE_CHARS))
    return Markup(f'<span id="{LEADER}">{holder} leads, term {int(now["term"])}</span>')  # noqa: S704 - escaped


def page(content: Rendered, **around: Any) -> str:
    """The whole document."""
    text = environment().get_template("base.html").render(
        title=content.title, content=Markup(content.html), nav=content.nav, now=content.at, **around  # noqa: S704 - made by a template
    )  # fmt: skip
    return text.replace(CSRF, str(around.get("csrf") or ""))


def changes(before: Rendered, after: Rendered) -> Mapping[str, str] | None:
    """The parts that differ; None if the frame does."""
    if before.frame != after.frame or before.title != after.title:
        return None
    return {name: text for name, text in after.parts.items() if before.marks.get(name) != after.marks[name]}


@cache
def environment() -> Environment:
    """The templates, with the formats of amounts and times that the command line uses."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )
    made.filters |= {
        "usd": amounts.usd, "span": amounts.span, "gpu": amounts.gpu_name, "octets": amounts.octets,
        "clock": amounts.clock, "since": _since, "at": _at, "until": _until, "line": _line, "many": "{:,}".format,
        "brief": _brief, "linked": _linked, "part": _part_id,
    }  # fmt: skip
    made.globals |= {"static": static_url, "badge": badge, "leader": leader, "csrf": Markup(CSRF)}  # noqa: S704 - a constant
    return made


def _final(value: Any) -> Any:
    """A text of a page, redacted like all that is shown; a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return clean(value)


def clean(text: str, most: int = MAX_TEXT_CHARS) -> str:
    """A text without secrets and control characters, shortened."""
    if len(text) > most * 4:
        text = (text[: most * 4].rsplit(None, 1) or [""])[0]  # half a secret would not be recognized
    text = "\n".join(plain(line) for line in redact(text).split("\n"))
    return text if len(text) <= most else text[: most - 1] + "…"


def _line(value: Any, most: int = MAX_LINE_CHARS) -> str:
    """A text as one line of a row."""
    return "–" if value is None else " ".join(clean(str(value), most).split())


def _linked(value: Any, most: int = MAX_LINE_CHARS) -> Markup:
    """A text as one line, in which the ids of workers lead to their pages."""
    text = html.escape(_line(value, most))
    return Markup(WORKER_ID.sub(r'<a class="id" href="/workers/\g<0>">\g<0></a>', text))  # noqa: S704 - escaped


def _brief(seconds: float) -> str:
    """`0.4 s`, `6m02s`: of what is usually short."""
    return f"{seconds:.1f} s" if seconds < BRIEF_S else amounts.span(seconds)


def _part_id(text: str) -> str:
    """A name as the id of a part: names that differ have ids that differ."""
    safe = re.sub(r"[^A-Za-z0-9_.:-]", "_", text)[:150]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@pass_context
def _since(context: Context, value: Any, after: str = " ago") -> Any:
    """`6m02s ago`, which an open page counts on; the moment stands in its title."""
    then = amounts.moment(value)
    if then is None:
        return "–"
    seconds = (context["now"] - then).total_seconds()
    text = amounts.span(seconds) + after if seconds >= 0 else f"in {amounts.span(-seconds)}"
    return _time(then, text, f' data-ago="{html.escape(after)}"')


@pass_context
def _until(context: Context, value: Any) -> Any:
    """`in 6m02s`; `any moment` for an end that was expected by now."""
    then = amounts.moment(value)
    if then is None or then > context["now"]:
        return _since(context, value)
    return _time(then, "any moment", "")


@pass_context
def _at(context: Context, value: Any, form: str | None = None) -> Any:
    """The time of day in UTC, with the day unless it is today. On an open page its title has the viewer's zone."""
    then = amounts.moment(value)
    if then is None:
        return "–"
    then = then.astimezone(UTC)
    is_today = then.date() == context["now"].astimezone(UTC).date()
    return _time(then, then.strftime(form or ("%H:%M:%S" if is_today else "%d %b %H:%M:%S")), "")


def _time(then: datetime, text: str, more: str) -> Markup:
    stamp = then.astimezone(UTC)
    iso, title = stamp.isoformat(timespec="seconds"), stamp.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup(f'<time datetime="{iso}" title="{title}"{more}>{html.escape(text)}</time>')  # noqa: S704 - escaped


@cache
def static_url(name: str) -> str:
    """The address of a file, which changes with its content: browsers keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{digest}/{name}"
