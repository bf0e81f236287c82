"""Puts faults into the modules that decide something; fails if the tests of their part do not notice (`make mutate`).

Stopped and started again it goes on: what was found is kept in .mutation/ as long as the module stays the same, and a
survivor also as long as the tests do. `survivors.toml` says of each known survivor why it may stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.mutation import trials
from tests.mutation.mutants import GENERATION, Mutant, mutants_of
from tests.mutation.parts import PACKAGE, PARTS, ROOT, Part, modules, part_of

KEPT = ROOT / ".mutation"
KNOWN = Path(__file__).with_name("survivors.toml")
ENOUGH = 0.9


def main() -> int:
    """Try them all; 0 if enough are caught and each survivor is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="modules below src/fedseca, like 'attacks/*.py'; all if not given")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    parser.add_argument("--list", action="store_true", help="say which survived, and try none")
    options = parser.parse_args()
    chosen = [m for m in modules() if not options.patterns or any(fnmatch(m, p) for p in options.patterns)]
    KEPT.mkdir(exist_ok=True)
    console = Console(stderr=not sys.stdout.isatty())
    if options.list:
        missing = [module for module in chosen if not _mutants_file(module).exists()]
        if missing:
            raise SystemExit(f"of {', '.join(missing)} nothing was tried as it is now: leave --list out to try it")
    else:
        sys.path.insert(0, str(ROOT / "src"))
        # Every mutant imports the package and tests anew: what is compiled is kept, here and nowhere else.
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(KEPT / "compiled")
        console.print("importing what the package stands on …")
        trials.warm_up(_files(chosen))
        _generate(chosen, options.jobs, console)
        records = _watch(chosen, options.jobs, console)
        _try(chosen, records, options.jobs, console)
    return _report(chosen, whole=not options.patterns)


def _side_by_side(jobs: int, work: Iterable[tuple[Any, Any, float]]) -> Iterator[tuple[Any, trials.Child]]:
    """Forks one process for each (key, function, seconds), some at a time; gives them as they end."""
    running: dict[Any, trials.Child] = {}
    waiting = iter(work)
    while True:
        while len(running) < jobs and (task := next(waiting, None)) is not None:
            running[task[0]] = trials.Child(task[1], task[2])
        if not running:
            return
        for key in [key for key, child in running.items() if child.ended()]:
            yield key, running.pop(key)
        time.sleep(0.01)


# ---------------------------------------------------------------- what is kept


def _mutants_file(module: str) -> Path:
    return KEPT / f"{module.replace('/', '.')}.{trials.digest(PACKAGE / module)}.mutants-{GENERATION}.json"


def _generate(chosen: list[str], jobs: int, console: Console) -> None:
    missing = [module for module in chosen if not _mutants_file(module).exists()]

    def write(module: str) -> None:
        found = [asdict(mutant) for mutant in mutants_of(module, (PACKAGE / module).read_text())]
        _mutants_file(module).write_text(json.dumps(found))

    if missing:
        console.print(f"making the mutants of {len(missing)} modules …")
    for module, child in _side_by_side(jobs, ((m, lambda m=m: write(m), 600.0) for m in missing)):
        child.answer()
        if not _mutants_file(module).exists():
            raise SystemExit(f"{module}: no mutants could be made")


def _mutants(module: str) -> list[Mutant]:
    """Those that are tried: all, or the sample of the part."""
    part = part_of(module)
    assert part is not None
    found = [
        Mutant(**{**each, "lines": tuple(each["lines"])}) for each in json.loads(_mutants_file(module).read_text())
    ]
    return [mutant for mutant in found if int(mutant.identity, 16) < part.share * 16**16]


def _files(chosen: list[str]) -> list[str]:
    """The test files of their parts."""
    return list(dict.fromkeys(file for module in chosen if (part := part_of(module)) for file in part.tests))


def _watch(chosen: list[str], jobs: int, console: Console) -> dict[str, dict[str, Any]]:
    """Of each test file: which tests run through which lines."""
    files = _files(chosen)
    sources = [PACKAGE / module for module in modules()]
    kept = {
        file: KEPT / f"{file.replace('/', '.')}.{trials.digest(ROOT / 'tests' / file, *sources)}.lines.json"
        for file in files
    }
    missing = [file for file, path in kept.items() if not path.exists()]
    if missing:
        console.print(f"watching {len(missing)} test files …")
    work = ((file, lambda file=file: trials.watch(file, modules()), 1800.0) for file in missing)
    for file, child in _side_by_side(jobs, work):
        found = child.answer()
        if found is None or found["broken"]:
            raise SystemExit(f"{child.output[-3000:]}\ntests/{file}: must pass before anything is mutated")
        kept[file].write_text(json.dumps(found))
    return {file: json.loads(path.read_text()) for file, path in kept.items()}


def _results() -> dict[str, dict[str, Any]]:
    path = KEPT / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {found["identity"]: found for found in map(json.loads, lines)}


def _tests_digest(part: Part) -> str:
    return trials.digest(*(ROOT / "tests" / file for file in part.tests))


def _stands(found: dict[str, Any] | None, part: Part) -> bool:
    return found is not None and (found["outcome"] != "survived" or found["tests"] == _tests_digest(part))


# ---------------------------------------------------------------- trying


def _try(chosen: list[str], records: dict[str, dict[str, Any]], jobs: int, console: Console) -> None:
    kept = _results()
    todo: dict[str, tuple[Mutant, Part]] = {}
    for module in chosen:
        part = part_of(module)
        assert part is not None
        todo |= {m.identity: (m, part) for m in _mutants(module) if not _stands(kept.get(m.identity), part)}
    killers: dict[str, dict[str, int]] = {}
    for found in kept.values():
        killers.setdefault(found["module"], {}).setdefault(found["by"], 0)
        killers[found["module"]][found["by"]] += 1

    def work() -> Iterator[tuple[Any, Any, float]]:
        for identity, (mutant, part) in todo.items():
            tests = trials.choose(mutant, part, records)
            took = {test: spent for file in part.tests for test, spent in records[file]["seconds"].items()}
            # Those first that caught others in this module, and quickly: the order decides how long it takes, no more.
            useful = killers.get(mutant.module, {})
            tests.sort(key=lambda test: -useful.get(test, 0) / (took[test] + 0.1))
            seconds = sum(took[test] for test in tests)
            if not tests:
                yield identity, lambda: {"outcome": "survived", "by": "no test runs through it"}, 5.0
            else:
                yield identity, lambda m=mutant, t=tests: trials.attempt(m, t), 4.0 + 2 * seconds

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, (KEPT / "results.jsonl").open("a") as file:
        task = progress.add_task("mutants", total=len(todo))
        for identity, child in _side_by_side(jobs, work()):
            mutant, part = todo[identity]
            found = child.answer() or {"outcome": "caught", "by": "no end, or the process died"}
            took = round(time.monotonic() - child.begun, 2)
            shown = {name: getattr(mutant, name) for name in ("identity", "module", "operator", "lines", "was", "now")}
            file.write(json.dumps({**shown, **found, "seconds": took, "tests": _tests_digest(part)}) + "\n")
            file.flush()
            caught = killers.setdefault(mutant.module, {})
            caught[found["by"]] = caught.get(found["by"], 0) + 1
            progress.update(task, advance=1, description=mutant.module)


# ---------------------------------------------------------------- telling


def _report(chosen: list[str], *, whole: bool) -> int:
    kept = _results()
    known = {(e["module"], e["was"], e["now"]): e["why"] for e in tomllib.loads(KNOWN.read_text()).get("survivor", [])}
    table = Table("module")
    for header in ("mutants", "caught", "survived", "share"):
        table.add_column(header, justify="right")
    sums = [0, 0]
    new, untried = [], 0
    met: set[tuple[str, str, str]] = set()
    for module in chosen:
        part = part_of(module)
        assert part is not None
        results = []
        for mutant in _mutants(module):
            found = kept.get(mutant.identity)
            if found is None or not _stands(found, part):
                untried += 1
                continue
            results.append(found["outcome"])
            if found["outcome"] == "survived":
                key = (mutant.module, mutant.was, mutant.now)
                met.add(key)
                if key not in known:
                    new.append((mutant, found["by"]))
        caught = results.count("caught")
        sums[0], sums[1] = sums[0] + len(results), sums[1] + caught
        if results:
            table.add_row(module, *_numbers(len(results), caught))
    table.add_section()
    table.add_row("all", *_numbers(*sums))
    out = Console(width=120)
    for mutant, by in new:
        out.print(
            f"survived: {mutant.module}:{mutant.lines[1]} {mutant.operator} {by}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        out.print(f"    was  {mutant.was}\n    now  {mutant.now}", markup=False, highlight=False, soft_wrap=True)
    stale = [key for key in known if whole and not untried and key not in met]
    for module, was, now in stale:
        out.print(
            f"no longer survives, take it out of {KNOWN.name}: {module}\n    was  {was}\n    now  {now}", markup=False
        )
    out.print(table)
    share = sums[1] / sums[0] if sums[0] else 0.0
    for part in PARTS:
        if part.share < 1:
            out.print(f"of {part.modules} a sample of {part.share:.0%}", highlight=False)
    out.print(
        f"{len(new)} survivors that {KNOWN.name} does not explain; {untried} mutants were not tried", highlight=False
    )
    return 0 if not new and not stale and not untried and share >= ENOUGH else 1


def _numbers(tried: int, caught: int) -> tuple[str, str, str, str]:
    return str(tried), str(caught), str(tried - caught), f"{caught / tried:.1%}" if tried else "–"


if __name__ == "__main__":
    sys.exit(main())
