"""A table whose cursor stays on its row when the rows change."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.widgets import DataTable


class Rows(DataTable[Text]):
    """A table; enter explains the row under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "app.explain", "Explain"),
        ("tab", "app.other_table", "Table"),
    ]

    @property
    def under(self) -> str | None:
        """The id of the row under the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def replace(self, names: Sequence[str], ids: Sequence[str], lines: Iterable[Sequence[Text]]) -> None:
        """Show these rows. The cursor stays on its id."""
        under = self.under
        changed = [column.value for column in self.columns] != list(names)
        self.clear(columns=changed)
        for name in names if changed else ():
            self.add_column(name, key=name)
        for row_id, line in zip(ids, lines, strict=True):
            self.add_row(*line, key=row_id)
        if under in ids:
            self.move_cursor(row=ids.index(under))
