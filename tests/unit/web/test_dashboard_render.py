"""Templates to HTML: parts, what differs between two moments, and texts of strangers."""

from datetime import UTC, datetime, timedelta

import pytest
from jinja2 import DictLoader, Environment, UndefinedError
from markupsafe import Markup, escape

from orchestrator.web.dashboard import render

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAGE = """<!--#top--><h1 id="top">{{ title }}</h1><!--/-->
<p>{{ note }}</p>
{% for name, then in rows %}
<!--#row-{{ name|part }}--><b id="row-{{ name|part }}">{{ name }} {{ then|since }}</b><!--/-->
{% endfor %}"""


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """The environment, with a template of this test."""
    made = render.environment().overlay(loader=DictLoader({"page.html": PAGE, "x.html": "{{ x }}"}))
    monkeypatch.setattr(render, "environment", lambda: made)
    return made


def made(*rows: tuple[str, datetime], title: str = "a", note: str = "n", at: datetime = NOW) -> render.Rendered:
    """The page at a moment."""
    return render.rendered("page.html", {"title": title, "note": note, "rows": rows}, {}, at)


def test_a_page_has_its_parts_and_a_frame_without_them(templates: Environment) -> None:
    """Each part is one element with its id."""
    page = made(("a b", NOW))
    assert list(page.parts) == ["top", "row-a_b-c8687a08aa5d"]
    assert page.parts["top"] == '<h1 id="top">a</h1>'
    assert "<h1" not in page.frame
    assert "<!--#top-->" in page.frame


def test_only_what_differs_is_sent(templates: Environment) -> None:
    """A part; or all, if the frame or the title differs, or parts come, go, or change their order."""
    one, two = ("one", NOW), ("two", NOW)
    before = made(one, two)
    assert render.changes(before, made(one, two)) == {}
    changed = render.changes(before, made(one, ("two", NOW - timedelta(hours=1))))
    assert changed is not None
    assert list(changed) == ["row-two"]
    for after in (made(one, two, note="m"), made(one), made(one, two, ("three", NOW)), made(two, one)):
        assert render.changes(before, after) is None
        assert after.digest != before.digest
    assert render.changes(before, made(one, two, title="b")) is None


def test_an_age_that_counts_on_is_no_change(templates: Environment) -> None:
    """The browser counts on by itself. Another moment is a change."""
    before, later = made(("one", NOW)), made(("one", NOW), at=NOW + timedelta(minutes=5))
    assert "5m00s ago" in later.parts["row-one"]
    assert render.changes(before, later) == {}
    assert before.digest == later.digest
    assert before.digest != made(("one", NOW + timedelta(seconds=1))).digest


@pytest.mark.parametrize(
    "text", ["<script>x</script>", "<!--#top-->", "<!--/-->", '"onload="x', "&lt;b&gt;", "'", "__CSRF__"]
)
def test_a_text_is_never_markup(templates: Environment, text: str) -> None:
    """And makes no part."""
    page = made((text, NOW), title=text, note=text)
    assert len(page.parts) == 2
    assert f"<p>{escape(text)}</p>" in page.frame


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[31mb", "a·[31mb"), ("a\u202eb", "a·b"), ("a\0b", "a·b"), ("two\nlines", "two\nlines"), ("ä€", "ä€")],
)
def test_control_characters_are_shown_as_dots(text: str, shown: str) -> None:
    """So that no text changes its surroundings."""
    assert render.clean(text) == shown


def test_a_text_is_short_and_has_no_secrets() -> None:
    """Nor half of one, where it was cut; in a time that does not depend on its length."""
    secret = "gpo_" + "a" * 43
    assert secret not in render.clean(f"a token {secret} of somebody")
    assert len(render.clean("x" * 1_000_000, 100)) == 100
    assert len(render.clean("x y" * 1_000_000, 100)) == 100
    for offset in range(40):
        assert "gpo_aa" not in render.clean(" " * offset + f"{secret} " * 20, 100)


@pytest.mark.parametrize(("value", "shown"), [(None, "–"), (0, "0"), (Markup("<b>"), "<b>"), ("<b>", "&lt;b&gt;")])
def test_nothing_is_a_dash(templates: Environment, value: object, shown: str) -> None:
    """A number is itself, a text is escaped."""
    assert templates.get_template("x.html").render(x=value) == shown


def test_a_name_that_a_page_forgot_is_an_error(templates: Environment) -> None:
    """Not an empty place."""
    with pytest.raises(UndefinedError):
        templates.get_template("x.html").render()


def test_a_file_has_another_address_when_it_changes() -> None:
    """Browsers keep it forever."""
    assert render.static_url("style.css").startswith("/static/")
    assert render.static_url("style.css").endswith("/style.css")
    assert render.static_url("style.css").split("/")[2] != render.static_url("live.js").split("/")[2]


def test_names_that_differ_in_special_characters_only_have_parts_of_their_own() -> None:
    """Else a change of one would be painted over the other."""
    part = render.environment().filters["part"]
    names = ["a b", "a/b", "a_b", "a b ", "ä", "ö", "x" * 151, "x" * 152]
    assert len({part(name) for name in names}) == len(names)
    assert part("pool-1.a:b") == "pool-1.a:b"
    assert all(render.MARK.fullmatch(f"<!--#row-{part(name)}-->") for name in names)


def test_who_leads_is_a_part_of_every_page(templates: Environment) -> None:
    """So that an open page follows it."""
    nav = {"problems": 0, "leader": {"holder": "<b>one</b>", "term": 3}}
    facts = {"title": "a", "note": "n", "rows": []}
    before = render.rendered("page.html", facts, nav, NOW)
    after = render.rendered("page.html", facts, nav | {"leader": None}, NOW)
    changed = render.changes(before, after)
    assert changed == {"leader": '<span id="leader" class="s s-bad">no leader</span>'}
    assert "&lt;b&gt;one&lt;/b&gt; leads, term 3" in before.parts["leader"]
    assert before.digest != after.digest
