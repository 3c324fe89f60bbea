"""Write .env.example and docs/settings.md from the declared settings: `.venv/bin/python .ci/settings_pages.py`."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from orchestrator.config.setting import Setting, settings_of
from orchestrator.config.settings import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 119
EXAMPLE_HEAD = """\
# This file lists every environment variable that the orchestrator reads, with its default. Copy it to .env and fill
# in the values that you need. You can delete every line that keeps its default.
#
# Every command reads .env of the current directory. The environment takes precedence. A shell loads the file with:
# set -a; . ./.env; set +a
# docker run --env-file .env loads it too, if each value is on one line. `doctor ssh --repair` prints the private key
# in that form.
#
# If settings are misspelt, unusable or contradictory, the orchestrator reports all of them at once and exits with 4.
"""
PAGE_HEAD = """\
# Settings

All settings are environment variables. [.env.example](../.env.example) has the same list as a file to fill in.
`python -m orchestrator doctor settings` checks what is set. It also names variables that no setting reads, although
their name begins like a setting or is similar to one.

Values are read as other tools write them. Quotes, spaces and line ends around a value are no part of it.
`DATABASE_URL` may have the driver of SQLAlchemy (`postgresql+asyncpg://`) and the parameters of Prisma and Supabase
(`?pgbouncer=true`). A placeholder such as `[YOUR-PASSWORD]`, or a reference that nothing has expanded such as
`${{Postgres.DATABASE_URL}}`, is refused. So are invisible characters, and a comment after a value, which
`docker --env-file` makes a part of it.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` have the meaning that
they have for curl: a name in `NO_PROXY` stands for its subdomains too, and networks such as `10.0.0.0/8` are possible.
A SOCKS proxy is refused.

`POOLS_FILE` describes further pools. A pool has the value of the environment, unless the file sets the key that the
column "Pool key" names. The limits are the same. For `WORKER_HANDLERS` and `WORKER_ENV`, a pool names the part of them
that its workers get. Only a pool has the keys `task_types`, `gpu_count` (1 to 8), `kind` (`queue`, or `cluster` for the
nodes of a Slurm cluster) and `install_slurm` (`true` allows to install Slurm on pods whose image has none).
"""


def example() -> str:
    """Return the text of .env.example."""
    return EXAMPLE_HEAD + "".join(_example_section(section.__doc__, settings_of(section)) for section in SECTIONS)


def _example_section(title: str | None, declared: Iterator[Setting]) -> str:
    heading = f"# --- {_heading(title)} "
    lines = [f"\n{heading:-<{WIDTH}}\n"]
    for one in declared:
        unit = f" Unit: {one.unit}." if one.unit else ""
        lines += textwrap.wrap(
            f"{one.field.description}{unit}",
            WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if one.limits:
            lines.append(f"# Limits: {one.limits}.")
        value = _default(one)
        lines.append(f'{one.name.upper()}="{value}"' if " " in value else f"{one.name.upper()}={value}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the text of docs/settings.md."""
    return PAGE_HEAD + "".join(_table(section.__doc__, settings_of(section)) for section in SECTIONS)


def _table(title: str | None, declared: Iterator[Setting]) -> str:
    rows = [f"\n## {_heading(title)}\n", "| Setting | Default | Limits | Unit | Pool key | Meaning |"]
    rows.append("|---|---|---|---|---|---|")
    for one in declared:
        default, key = (f"`{text}`" if text else "" for text in (_default(one), one.pool_key))
        limits, unit = one.limits or "", one.unit or ""
        rows.append(f"| `{one.name.upper()}` | {default} | {limits} | {unit} | {key} | {one.field.description} |")
    return "\n".join(rows) + "\n"


def _heading(title: str | None) -> str:
    return (title or "").rstrip(".")


def _default(one: Setting) -> str:
    value = one.field.default
    return ",".join(value) if isinstance(value, tuple) else "" if value is None else f"{value}"


PAGES: Mapping[str, Callable[[], str]] = {".env.example": example, "docs/settings.md": page}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (ROOT / name).write_text(text())
