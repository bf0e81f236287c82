"""Small tables in CSV files: the columns that are needed, and whole numbers in them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedseca.data.base import reading
from fedseca.errors import InputError, printable


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Row after row: where it stands, for messages, and what stands in `columns`; other columns are left alone."""
    with reading(path), open(path, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        header = table.fieldnames or []
        if missing := [column for column in columns if column not in header]:
            found = printable(", ".join(header) or "nothing", limit=120)
            raise InputError(f"{path}: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; found {found}")
        for row in table:
            place = f"{path}: line {table.line_num}"
            if any(row[column] is None for column in columns):
                raise InputError(f"{place} must have {len(header)} columns, as the first line; found fewer")
            yield place, {column: row[column].strip() for column in columns}


def whole(row: dict[str, str], column: str, below: int, place: str) -> int:
    """The whole number from 0 to `below` − 1 in a column."""
    text = row[column]
    # int() would read the digits of every script, and refuses thousands of them in another way.
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) < below):
        raise InputError(f"{place}: {column} must be a whole number from 0 to {below - 1:,}; found {text[:40]!r}")
    return int(text)
