"""A planted bug: a small change of the product, which the simulation or a test must catch.

A mutant names a file, a function in it, a text that occurs once there, the text that replaces it, and the law that the
change breaks. It is caught if a seed ends with a violation of this law. A mutant that survives its seeds shows that the
simulated world lacks a fault, or that nothing needs the rule. Parts that the simulation does not run, such as SQL and
the agent, are caught by a test; its id then takes the place of the law. Without a text, the whole body of the function
is replaced; without a function, the text occurs once in the file. A place that is not found is an error: the mutant has
to follow the code. Mutants of SQL functions that break a law change the model of these functions; the drift test
compares the model with the migrations.
"""

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    law: str  # the law that it breaks, or several with spaces between; a violation of another one does not count. Or a test
    path: str
    old: str
    new: str
    function: str = ""  # Class.method, function or SQL function that contains the text
    simulation: str = "fleet"  # "fleet" or "clusters"

    @property
    def has_test(self) -> bool:
        """Whether a test must fail, in place of a law."""
        return self.law.startswith("tests/")

    def planted(self, text: str) -> str:
        """Return the file's text with the bug in it. Raises ValueError if its place is not found, or found twice."""
        lines_of = _lines_of_sql if self.path.endswith(".sql") else _lines_of
        first, last = lines_of(text, self.function) if self.function else (0, len(text.splitlines()))
        lines = text.splitlines(keepends=True)
        body = "".join(lines[first:last])
        if not self.old and self.function:
            return "".join(lines[:first]) + self.new + "".join(lines[last:])
        if body.count(self.old) != 1:
            where = f"{self.path}, {self.function}" if self.function else self.path
            raise ValueError(f"{self.name!r}: its text occurs {body.count(self.old)} times in {where}")
        return "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[last:])


def _lines_of(text: str, function: str) -> tuple[int, int]:
    """Return the lines of a function's body without its docstring: the first one, and the one after the last."""
    scope: list[ast.stmt] = ast.parse(text).body
    *outer, name = function.split(".")
    for one in outer:
        scope = next((node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == one), [])
    found = [n for n in scope if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    if len(found) != 1:
        raise ValueError(f"there are {len(found)} functions {function}")
    body = found[0].body[1:] if ast.get_docstring(found[0]) is not None else found[0].body
    return body[0].lineno - 1, body[-1].end_lineno or body[-1].lineno


def _lines_of_sql(text: str, function: str) -> tuple[int, int]:
    """Return the lines of a SQL function, up to the end of its body."""
    lines = text.splitlines()
    heads = tuple(f"create or replace function {schema}.{function}(" for schema in ("public", "orchestrator"))
    first = [at for at, line in enumerate(lines) if line.startswith(heads)]
    if len(first) != 1:
        raise ValueError(f"there are {len(first)} functions {function}")
    return first[0], lines.index("$$;", first[0])
