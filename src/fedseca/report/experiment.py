"""An experiment as plain data for the page: a table of the paper made again, beside the paper's numbers."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from fedseca.experiments.record import ExperimentRecord
from fedseca.experiments.results import Score
from fedseca.report.compact import number, text

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 5_000_000
"""Of a picture."""


def experiment_data(record: ExperimentRecord, folder: Path, name: str) -> dict[str, Any]:
    """`folder` holds its pictures; `name` is that of the folder, for people."""
    table = record.table
    return {
        "folder": name,
        "title": text(table.title),
        "setting": text(" · ".join(table.setting)),
        "command": text(record.command),
        "metric": text(table.metric),
        "row_name": text(table.row_name),
        "column_name": text(table.column_name),
        "rows": [text(row) for row in table.rows],
        "columns": [text(column) for column in table.columns],
        "coloured": table.coloured,
        "paper_setting": text(table.paper_setting),
        "cells": [_cell(score) for score in table.scores],
        # The page draws a table of scores and the courses of its runs itself.
        "figures": [] if table.coloured else _figures(record, folder),
    }


def _cell(score: Score) -> dict[str, Any]:
    return {
        "row": text(score.row),
        "column": text(score.column),
        "mean": number(score.mean),
        "std": number(score.std),
        "count": len(score.values),
        "paper": number(score.paper),
        "success": number(score.success),
        "note": text(score.note),
        "runs": [text(run) for run in score.runs],
    }


def _figures(record: ExperimentRecord, folder: Path) -> list[dict[str, str]]:
    """Its pictures, those that lie in the folder."""
    found = []
    for name in record.pictures:
        file = folder / name
        # A record may come from anywhere: it names no file outside of its folder.
        if Path(name).name != name or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            continue
        content = file.read_bytes()
        if content.startswith(_PNG):
            shown = {"name": text(name), "text": text(f"{record.table.title}: {name}")}
            found.append({**shown, "png": base64.b64encode(content).decode()})
    return found
