"""What is mutated, and with which tests: the modules that decide something, each with the fast tests of its part."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fedseca"


@dataclass(frozen=True)
class Part:
    """Some modules of the package and the test files that must notice a fault in them."""

    modules: str
    """A pattern of paths below the package."""
    tests: tuple[str, ...]
    """Paths below tests/."""
    share: float = 1.0
    """How many of the mutants are tried: all, or a sample that is the same each time."""


SAMPLE = 0.3
"""Of the large parts: trying all their mutants takes hours on two cores."""

_OF_EVERY_RULE = ("contract/test_aggregators.py", "unit/test_declare.py")

PARTS = (
    Part("screening.py", ("unit/test_screening.py", "unit/test_hostile.py", "unit/test_server.py")),
    Part("suspicion.py", ("unit/test_suspicion.py", "unit/test_server.py")),
    Part("rounds.py", ("unit/test_rounds.py", "unit/test_flower.py")),
    Part("verdict.py", ("unit/test_rounds.py", "unit/test_suspicion.py", "unit/test_audit.py")),
    Part("checkpoint.py", ("unit/test_checkpoint.py", "unit/test_server.py")),
    Part(
        "server.py",
        (
            "unit/test_server.py",
            "unit/test_screening.py",
            "unit/test_suspicion.py",
            "unit/test_checkpoint.py",
            "unit/test_hostile.py",
        ),
        SAMPLE,
    ),
    Part("book.py", ("unit/test_flower.py", "unit/test_rounds.py", "unit/test_anchor.py")),
    Part("audit/*.py", ("unit/test_audit.py", "unit/test_flower.py", "unit/test_anchor.py"), SAMPLE),
    Part("flower/*.py", ("unit/test_flower.py",)),
    *(
        Part(f"attacks/{name}.py", ("unit/test_backdoor.py", "contract/test_attacks.py", "oracle/test_controls.py"))
        for name in ("backdoor", "trigger")
    ),
    Part("attacks/strongest.py", ("unit/test_strongest.py", "contract/test_attacks.py", "oracle/test_controls.py")),
    Part(
        "attacks/*.py",
        (
            "oracle/test_attacks.py",
            "oracle/test_field_attacks.py",
            "contract/test_attacks.py",
        ),
    ),
    Part(
        "aggregators/_chain.py",
        ("oracle/test_steps.py", "contract/test_steps.py", "unit/test_declare.py", "unit/test_server.py"),
        SAMPLE,
    ),
    *(
        Part(f"aggregators/{name}.py", ("oracle/test_selection.py", *_OF_EVERY_RULE), SAMPLE)
        for name in ("bulyan", "cge", "foundationfl", "mda", "meamed", "signsgd_mv")
    ),
    *(
        Part(f"aggregators/{name}.py", ("oracle/test_clusters.py", *_OF_EVERY_RULE), SAMPLE)
        for name in (
            "caf",
            "clipped_clustering",
            "clustering",
            "dnc",
            "flame",
            "signguard",
            "_angles",
            "_drawn",
            "_ordered",
        )
    ),
    *(
        Part(f"aggregators/{name}.py", ("oracle/test_memory_rules.py", *_OF_EVERY_RULE), SAMPLE)
        for name in ("foolsgold", "lasa", "rffl", "standing", "_memory")
    ),
    Part("aggregators/fltrust.py", ("oracle/test_memory_rules.py", "unit/test_root_data.py", *_OF_EVERY_RULE), SAMPLE),
    Part(
        "aggregators/*.py",
        ("oracle/test_rules.py", "oracle/test_fedseca.py", "contract/test_aggregators.py", "unit/test_declare.py"),
        SAMPLE,
    ),
    Part(
        "ops/reference.py",
        ("unit/test_ops.py", "unit/test_near_median.py", "oracle/test_clusters.py", "oracle/test_selection.py"),
        SAMPLE,
    ),
    Part("steps/*.py", ("oracle/test_steps.py", "contract/test_steps.py"), SAMPLE),
)

LEFT_OUT = {
    "flower/engine.py": "runs on Ray, which takes seconds to begin: tests/deployment plays it",
}


SLOW_TESTS = (
    "test_contract_of_every_rule_with_every_step",
    "test_fldetector_scores",
    "test_every_changed_byte_shows_also_in_the_last_line",
    "test_every_changed_byte_of_a_run_shows",
)
"""Left out: each takes longer than the rest of its file."""


def part_of(module: str) -> Part | None:
    """The first part that the module belongs to."""
    return next((part for part in PARTS if fnmatch(module, part.modules)), None)


def modules() -> list[str]:
    """All that are mutated, in the order of the parts."""
    found = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return [module for part in PARTS for module in found if part_of(module) is part and module not in LEFT_OUT]
