"""What a node sent, read without trusting a byte of it and without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedseca.errors import printable
from fedseca.layout import Malformed
from fedseca.npy import read_sent
from fedseca.rounds import Failed, NoAnswer, Unreadable

_UNREACHED = (3, 4, 5)
"""Flower's codes, with which the SuperLink itself answers: a message, an answer or a node could not be reached."""
Arrays = dict[str, "np.ndarray[Any, Any]"]
AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]


def read_answer(message: Message, names: Sequence[str]) -> Arrays | NoAnswer | Failed | Unreadable:
    """The arrays of a reply, or why there are none: no faulty answer may end the run."""
    if message.has_error():
        reason = printable(str(message.error.reason), limit=120)
        if message.error.code in _UNREACHED:
            return NoAnswer(reason)
        return Failed(f"answered with error {message.error.code}: {reason}")
    try:
        return read_reply(message, names)
    except Malformed as problem:
        return Unreadable(printable(str(problem), limit=200))
    except Exception as problem:
        return Unreadable(printable(f"{type(problem).__name__}: {problem}", limit=200))


def read_reply(message: Message, names: Sequence[str]) -> Arrays:
    """The arrays of a reply, in the order in which they were sent out; `Malformed` says why there are none.

    A record is known by its names: their order does not matter.
    """
    if not message.has_content():
        raise Malformed("answered with nothing")
    arrays = read_arrays(_record(message.content))
    return {name: arrays[name] for name in names} if arrays.keys() == set(names) else arrays


def _record(content: RecordDict) -> ArrayRecord:
    found = content.array_records
    if len(found) != 1:
        names = ", ".join(printable(str(name), limit=40) for name in list(found)[:3]) or "none"
        raise Malformed(f"expected one record of arrays; found {names}{' …' * (len(found) > 3)}")
    return next(iter(found.values()))


def read_arrays(record: Mapping[str, Array]) -> Arrays:
    """The arrays by name, each on the bytes it came in."""
    return {name: _read_array(name, array) for name, array in record.items()}


def _read_array(name: str, array: Array) -> np.ndarray[Any, Any]:
    try:
        return read_sent(array)
    except Malformed as problem:
        raise Malformed(f"{printable(name, limit=60)!r} {problem}") from None


def read_number(message: Message, key: str) -> Any:
    """What the metrics of a reply say under a name; None if they say nothing."""
    records = message.content.metric_records.values() if message.has_content() else ()
    return next((record[key] for record in records if key in record), None)


def combine_metrics(
    contents: Sequence[RecordDict], aggregate: AggregateMetrics, weighted_by: str, *, trust_weights: bool
) -> MetricRecord | None:
    """What the nodes report of themselves, as a strategy's function combines it; None if nothing can be combined.

    Only those count whose metrics are finite and named as most nodes name them. Unless the weights are trusted, each
    weighs the same: the number that a node declares would let it decide alone.
    """
    metrics = [record for content in contents if (record := _metrics(content)) is not None]
    shapes = [_shape(record) for record in metrics]
    if not shapes:
        return None
    usual = max(shapes, key=shapes.count)
    alike = [record for record, shape in zip(metrics, shapes, strict=True) if shape == usual]
    if not trust_weights:
        alike = [MetricRecord({**record, weighted_by: 1}) for record in alike]
    return aggregate([RecordDict({"metrics": record}) for record in alike], weighted_by)


def _metrics(content: RecordDict) -> MetricRecord | None:
    records = list(content.metric_records.values())
    return records[0] if len(records) == 1 and all(map(_is_finite, records[0].values())) else None


def _is_finite(value: Any) -> bool:
    try:
        return all(math.isfinite(float(each)) for each in (value if isinstance(value, list) else [value]))
    except OverflowError:  # an integer beyond every float
        return False


def _shape(record: MetricRecord) -> list[tuple[str, int]]:
    """What metrics must have in common to be combined."""
    return sorted((name, len(value) if isinstance(value, list) else -1) for name, value in record.items())
