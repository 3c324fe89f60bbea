"""Texts that are cut say so, with the number of characters that are left out."""

from __future__ import annotations

CONTROLS = {number: "�" for number in (*range(32), 127) if chr(number) not in "\t\n\r"}


def shortened(text: str, most_chars: int) -> str:
    """Return a text without its middle, if it is longer: a quarter of its beginning stays, and more of its end."""
    if len(text) <= most_chars:
        return text
    kept = most_chars // 4
    return f"{text[:kept]}\n[… {len(text) - most_chars} characters left out …]\n{text[kept - most_chars :]}"


def end_of(text: str, most_chars: int) -> str:
    """Return the end of a text, if it is longer."""
    if len(text) <= most_chars:
        return text
    return f"[… {len(text) - most_chars} characters left out …]\n{text[-most_chars:]}"


def in_short(text: str, most_chars: int) -> str:
    """Return the beginning of a short text, with an ellipsis if there is more."""
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"


def storable(text: str) -> str:
    """Return a text that PostgreSQL and terminals take: no control character, and no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode().translate(CONTROLS)
