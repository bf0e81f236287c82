"""Each step, and each rule behind each step, against float64 oracles in plain loops."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedseca
from fedseca import STEPS, Mix, StepBefore
from fedseca.updates import Updates
from tests.oracle import equations, step_equations
from tests.oracle.matrices import assert_close, generic
from tests.paper_rules import PAPER

BEFORE = [
    name for name in STEPS if issubclass(STEPS[name], StepBefore) and STEPS[name].__module__.startswith("fedseca.")
]
SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 23, 33, 64]
KINDS = ["generic", "few values", "signs", "scales"]


def rows_of(kind: str, clients: int, dim: int, seed: int) -> torch.Tensor:
    """Float32 values: generic ones; or ties, duplicates and zeros; or signs times 0.1; or rows of all lengths."""
    rng = np.random.default_rng([seed, clients, dim])
    if kind == "signs":  # equal distances, whose sums are not exact
        return torch.from_numpy(rng.choice([-1, 1], size=(clients, dim)) * 0.1).float().double()
    if kind == "few values":
        few = rng.integers(-2, 3, size=(clients, dim)).astype(np.float64)
        for k in range(1, clients, 3):
            few[k] = few[rng.integers(k)]
        few[rng.random(clients) < 0.15] = 0.0
        return torch.from_numpy(few)
    rows = generic(clients, dim, int(rng.integers(1 << 30))).float().double()
    if kind == "scales":
        rows *= torch.from_numpy(10.0 ** rng.integers(-20, 18, size=(clients, 1)))
    return rows.float().double()


def collect(matrix: torch.Tensor, dtype: torch.dtype) -> tuple[Updates, list[str]]:
    ids = [f"{(7 * k) % len(matrix):03d}-{k}" for k in range(len(matrix))]  # not in the order of the rows
    return Updates.collect(matrix.to(dtype), ids), ids


def expected(step: StepBefore, mix: Mix, matrix: torch.Tensor, ids: list[str]) -> step_equations.Mixed:
    rows = matrix.tolist()
    if step.name == "nnm":
        return step_equations.nnm(rows, ids, step.num_byzantine)  # type: ignore[attr-defined]
    if step.name == "bucketing":
        return step_equations.buckets(rows, [list(group) for group in mix.members])
    if step.name == "one_voice":
        return step_equations.one_voice(rows, str(step.threshold))  # type: ignore[attr-defined]
    if step.name == "arc":
        return step_equations.arc(rows, step.num_byzantine)  # type: ignore[attr-defined]
    if step.name == "clipping":
        return step_equations.clipping(rows, step.factor)  # type: ignore[attr-defined]
    assert step.name == "normalising", f"there is no oracle of {step.name}"
    return step_equations.normalising(rows)


def steps_for(name: str, clients: int) -> list[StepBefore]:
    values: dict[str, list[dict[str, Any]]] = {
        "nnm": [{"num_byzantine": b} for b in {0, 1, clients // 3, (clients - 1) // 2} if b < clients],
        "arc": [{"num_byzantine": b} for b in {0, 1, clients // 3, (clients - 1) // 2} if b < clients],
        "bucketing": [{"size": 1}, {"size": 2}, {"size": 3}],
        "clipping": [{}, {"factor": 0.3}, {"factor": 2.0}],
        "one_voice": [{}, {"threshold": 0.0}, {"threshold": 0.5}, {"threshold": 0.7}],
    }
    return [STEPS.make(name, **each) for each in values.get(name, [{}])]  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BEFORE)
def test_a_step_gives_the_rows_of_its_equation(name, kind):
    for clients in SIZES:
        matrix = rows_of(kind, clients, 1 + clients % 11, seed=clients)
        if kind == "scales" and name == "nnm":  # beside a row of 1e18 all small ones are equally far
            matrix = matrix / matrix.norm(dim=1, keepdim=True) * torch.linspace(0.1, 10, clients)[:, None]
            matrix = matrix.float().double()
        for step in steps_for(name, clients):
            for dtype, relative in ((torch.float32, 3e-7), (torch.float64, 1e-14)):
                updates, ids = collect(matrix, dtype)
                mix = step.mix(updates, {}, torch.Generator().manual_seed(clients))
                want, members = expected(step, mix, matrix, ids)
                assert sorted(map(sorted, mix.members)) == sorted(map(sorted, members)), (clients, step)
                rows = mix.rows(updates)
                found = {tuple(sorted(group)): rows.row(m) for m, group in enumerate(mix.members)}
                for row, group in zip(want, members, strict=True):
                    scale = max(abs(float(matrix[k].abs().max())) for k in group)
                    assert_close(found[tuple(sorted(group))], row, relative, max(scale, max(map(abs, row))))


@pytest.mark.parametrize("clients", range(1, 65))
def test_buckets_are_a_random_partition(clients):
    updates, ids = collect(rows_of("generic", clients, 3, seed=0), torch.float64)
    for size in (1, 2, 3, 5):
        mix = STEPS.make("bucketing", size=size).mix(updates, {}, torch.Generator().manual_seed(1))  # type: ignore[attr-defined]
        assert sorted(k for group in mix.members for k in group) == list(range(clients))
        assert [len(group) for group in mix.members[:-1]] == [size] * (math.ceil(clients / size) - 1)
        order = torch.randperm(clients, generator=torch.Generator().manual_seed(1)).tolist()
        by_id = sorted(range(clients), key=ids.__getitem__)
        assert [k for group in mix.members for k in group] == [by_id[i] for i in order]


def test_a_tie_at_the_threshold_is_not_above_it():
    """Nine of ten signs agree: (9 − 1)/10 = 0.8 exactly; and 0.29·200 is less than 58 in floating point."""
    for count, differing, threshold in ((10, 1, 0.8), (10, 2, 0.6), (10, 3, 0.4), (200, 71, 0.29)):
        base = torch.ones(count, dtype=torch.float64)
        other = base.clone()
        other[:differing] = -1
        updates, _ = collect(torch.stack([base, other]), torch.float64)
        for shift, joined in ((0.0, False), (-1e-3, True), (1e-3, False)):
            step = STEPS.make("one_voice", threshold=round(threshold + shift, 6))
            assert (len(step.mix(updates, {}, torch.Generator()).members) == 1) == joined  # type: ignore[attr-defined]
    base = torch.ones(10, dtype=torch.float64)
    zeros = base.clone()
    zeros[:3] = 0  # cos = 7/√(10·7) = √0.7
    updates, _ = collect(torch.stack([base, zeros]), torch.float64)
    for threshold, joined in ((0.83666, True), (0.8366601, False)):
        mix = STEPS.make("one_voice", threshold=threshold).mix(updates, {}, torch.Generator())  # type: ignore[attr-defined]
        assert (len(mix.members) == 1) == joined


RULES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fedavg": (lambda rows: equations.fedavg(rows), {}),
    "cwmed": (lambda rows: equations.cwmed(rows), {}),
    "cwtm": (lambda rows: equations.cwtm(rows), {}),
    "krum": (lambda rows: equations.krum(rows, 1, 1), {"krum.num_byzantine": 1}),
    "multi_krum": (lambda rows: equations.krum(rows, 1, len(rows) - 1), {"multi_krum.num_byzantine": 1}),
    "rfa": (lambda rows: equations.rfa(rows), {}),
    "huber": (lambda rows: equations.huber(rows), {}),
    "cclip": (lambda rows: equations.cclip(rows, [0.0] * len(rows[0])), {}),
    "copod_dos": (lambda rows: equations.copod_dos(rows)[0], {}),
    "ties": (lambda rows: equations.ties(rows), {}),
    "fedseca": (lambda rows: equations.fedseca(rows).update, {"fedseca.momentum": 0.0}),
    "fldetector": (lambda rows: equations.fedavg(rows), {}),  # in the first round all are averaged
}


def test_every_rule_of_the_paper_has_an_oracle_behind_a_step():
    """Rows are mixed below the rules, in the primitives: these rules use each of them that is compiled for mixes."""
    buckets_of_their_own = {"cc_randbucket", "cc_seqbucket"}  # random ones; see test_rules
    assert set(PAPER) - buckets_of_their_own == set(RULES)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", BEFORE)
def test_a_chain_is_the_rule_of_the_mixed_rows(name, rule):
    oracle, parameters = RULES[rule]
    for clients in (1, 2, 3, 5, 8, 13, 21, 64):
        # Rules that pick by a comparison of sums are not asked about ties, which rounding decides; nor is float32.
        kinds = (
            ["generic"] if rule in ("krum", "multi_krum", "copod_dos", "rfa", "huber") else ["generic", "few values"]
        )
        for kind, dtype in [(kind, torch.float64) for kind in kinds] + [("generic", torch.float32)]:
            matrix = rows_of(kind, clients, 9, seed=3)
            made = fedseca.make_aggregator(f"{name}+{rule}", **parameters)
            if clients < made.min_clients():
                continue
            updates, ids = collect(matrix, dtype)
            step = STEPS.make(name)
            mix = step.mix(updates, {}, torch.Generator().manual_seed(5))  # type: ignore[attr-defined]
            want, members = expected(step, mix, matrix, ids)  # type: ignore[arg-type]
            plain = {path.split(".")[1]: value for path, value in parameters.items()}
            if len(want) < fedseca.AGGREGATORS[rule](**plain).min_clients():
                continue
            in_order = {tuple(sorted(group)): row for row, group in zip(want, members, strict=True)}
            rows = [in_order[tuple(sorted(group))] for group in mix.members]  # nnm: several may have the same
            answer = made.aggregate(updates, made.init(9), torch.Generator().manual_seed(5))
            close = 1e-6 if dtype == torch.float64 else 1e-5
            assert_close(answer.update, oracle(rows), close, float(matrix.abs().max()))
            weight = answer.diagnostics["weight"]
            assert weight.shape == (clients,) and float(weight.sum()) <= 1 + 1e-9


def test_a_clients_weight_is_its_share_in_the_mixes_times_theirs():
    matrix = rows_of("generic", 7, 5, seed=1)
    updates, _ = collect(matrix, torch.float64)
    for name in BEFORE:
        mix = STEPS.make(name).mix(updates, {}, torch.Generator().manual_seed(5))  # type: ignore[attr-defined]
        behind = fedseca.make_aggregator("krum").aggregate(mix.rows(updates), {}, torch.Generator())
        answer = fedseca.make_aggregator(f"{name}+krum").aggregate(updates, {}, torch.Generator().manual_seed(5))
        want = [0.0] * 7
        for m, group in enumerate(mix.members):
            for k, part in zip(group, mix.weights[m], strict=True):
                want[k] += abs(part) / sum(map(abs, mix.weights[m])) * float(behind.diagnostics["weight"][m])
        assert_close(answer.diagnostics["weight"], want, 1e-12)
        score = [float(behind.diagnostics["score"][m]) for m in mix.row_of]
        assert_close(answer.diagnostics["score"], score, 1e-12)


def test_momentum_after_a_rule():
    server = fedseca.Server("cwmed+momentum", beta=0.75)
    average = [0.0] * 6
    for seed in range(5):
        matrix = rows_of("generic", 5, 6, seed=seed)
        median = equations.cwmed(matrix.tolist())
        average = [0.75 * old + 0.25 * new for old, new in zip(average, median, strict=True)]
        assert_close(server.aggregate(matrix).update, average, 1e-12, 1.0)


def test_several_steps_are_composed_from_left_to_right():
    matrix = rows_of("scales", 9, 6, seed=4)
    updates, ids = collect(matrix, torch.float64)
    clipped, _ = step_equations.clipping(matrix.tolist(), 1.0)
    mixed, _ = step_equations.nnm(clipped, ids, 2)
    answer = fedseca.make_aggregator("clipping+nnm+cwmed", num_byzantine=2).aggregate(updates, {}, torch.Generator())
    assert_close(answer.update, equations.cwmed(mixed), 1e-12, float(torch.tensor(clipped).abs().max()))
