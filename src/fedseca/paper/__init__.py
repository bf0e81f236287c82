"""The paper's numbers, to stand beside ours."""

from __future__ import annotations

import csv
from importlib import resources

COLLAPSED, SEVERE, NOTICEABLE = 0.19, 0.55, 0.79
"""The paper's colours on CIFAR-10, as shares of the best score of a table: red, orange and yellow lie below these."""


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of one of the paper's tables (`main_f1`, `ablation_f1_cifar10`, `client_count_cifar10_iid` …)."""
    content = (resources.files(__name__) / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(content.splitlines()))


def verdict(score: float, best: float) -> str:
    """What a score means in a table whose best is `best`: collapsed, severe, noticeable or fine."""
    if best <= 0:
        return "collapsed"
    for limit, word in ((COLLAPSED, "collapsed"), (SEVERE, "severe"), (NOTICEABLE, "noticeable")):
        if score < limit * best:
            return word
    return "fine"
