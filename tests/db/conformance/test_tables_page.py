"""docs/tables.md shows what the database says about its tables."""

import re
from pathlib import Path

from psycopg import AsyncConnection
from psycopg.rows import DictRow

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tables.md"
COMMENTS = """
select c.relname, coalesce(a.attname, '') as attname, d.description
  from pg_description d
  join pg_class c on d.classoid = 'pg_class'::regclass and c.oid = d.objoid
  left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.objsubid and d.objsubid > 0
 where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
"""


def documented() -> dict[tuple[str, str], str]:
    """The comment of each column, and under an empty name the text above the columns of a table."""
    found = {}
    for part in PAGE.read_text().replace("\\|", "¦").replace("&lt;", "<").split("\n## `")[1:]:
        table, _, rest = part.partition("`\n")
        found[table, ""] = rest.partition("| Column ")[0]
        for name, comment in re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", rest, re.MULTILINE):
            found[table, name] = comment
    return found


async def test_every_comment_of_the_database_is_on_the_page(hand: AsyncConnection[DictRow]) -> None:
    """Of tables and of columns, whatever a column was called before."""
    rows = await (await hand.execute(COMMENTS.encode())).fetchall()
    said = {(row["relname"], row["attname"]): row["description"].replace("|", "¦") for row in rows}
    shown = documented()
    assert said, "the database has comments"
    assert [name for name, text in said.items() if text not in shown.get(name, "")] == []
