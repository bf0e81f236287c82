"""Numbers that were published stay: a change of the code is no change of the mathematics.

`kept_numbers.json` has the digits cells of `fedseca reproduce main`, 10 rounds, seed 0, as they were before rules were
made of parts: the id of each scenario, the digest of its last model and the F1 of every round, on each of two machines.
"""

import hashlib
import json
from pathlib import Path

import numba
import pytest
import torch
from llvmlite import binding

import fedseca

KEPT = json.loads((Path(__file__).parent / "kept_numbers.json").read_text())
HERE = {
    "processor": binding.get_host_cpu_name(),
    "capability": torch.backends.cpu.get_cpu_capability(),
    "torch": torch.__version__.partition("+")[0],
    "numba": numba.__version__,
}


def digest(model: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, value in sorted(model.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def test_every_rule_of_the_paper_is_kept_and_its_scenarios_have_their_ids():
    for machine in KEPT:
        assert len(machine["cells"]) == 14 * 4
        for name, kept in machine["cells"].items():
            rule, attack = name.split()
            assert fedseca.Scenario(aggregator=rule, attack=attack, rounds=10).id == kept["id"], name


@pytest.mark.parametrize("cell", ["fedseca ipm", "cc_randbucket none", "cc_seqbucket mimic", "cwmed minmax"])
def test_the_numbers_are_those_that_were_kept(cell):
    rule, attack = cell.split()
    same = next((machine["cells"][cell] for machine in KEPT if machine["made_on"] == HERE), None)
    history = fedseca.simulate(fedseca.Scenario(aggregator=rule, attack=attack, rounds=10))
    assert history.model is not None
    if same is not None:
        assert digest(history.model) == same["model"], "not the same bits"
        assert [round(value, 6) for value in history.f1] == same["f1"]
    else:  # another processor or library rounds otherwise; the course is the same
        assert history.f1 == pytest.approx(KEPT[0]["cells"][cell]["f1"], abs=0.08)
