"""Every compiled primitive equals its twin in reference.py: bit for bit where values are selected or counted."""

import copy
import itertools
import os
import pickle
import subprocess
import sys

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedseca
from fedseca import ops
from fedseca.ops import cpu, intrinsics, kernels, network, reference, rows
from fedseca.updates import ArrayRow, Updates

CLIENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 130])
DIMS = st.sampled_from([1, 2, 3, 31, 63, 64, 65, 127, 129, 500, 2047, 2048, 2049, 5003])
KINDS = st.sampled_from(["normal", "zeros", "ties", "signed zeros", "denormal", "huge", "constant", "mixed", "sparse"])
SEEDS = st.integers(0, 1000)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def values(kind: str, clients: int, dim: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(clients, dim))
    made = {
        "normal": normal,
        "zeros": normal * (rng.random((clients, dim)) > 0.3),
        "ties": rng.integers(-2, 3, (clients, dim)).astype(float),
        "signed zeros": np.where(rng.random((clients, dim)) > 0.5, 0.0, -0.0),
        "denormal": normal * 1e-42,
        "huge": np.clip(normal, -3, 3) * 1e38,
        "constant": np.sign(normal) * 0.25,
        "mixed": normal * 10.0 ** rng.integers(-30, 30, (clients, 1)),
        "sparse": normal * (rng.random((clients, dim)) > 0.95),
    }[kind]
    if dtype == torch.float64:
        return torch.from_numpy(made * {"denormal": 1e-276, "huge": 1e100}.get(kind, 1.0))
    return torch.from_numpy(made.astype(np.float32))


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch):
    """Tasks so small that there are several, threads for all of them, and a sample that can mislead."""
    monkeypatch.setattr(cpu, "TASK", 1500)
    monkeypatch.setattr(cpu, "_WORTH_A_THREAD", 0)
    monkeypatch.setattr(cpu, "_SAMPLE", 200)


def close(found: torch.Tensor, expected: torch.Tensor, scale: float | torch.Tensor = 0.0) -> bool:
    """To 1e-6, relative to the number or to the scale that it was summed from."""
    bound = 1e-6 * torch.maximum(expected.double().abs(), torch.as_tensor(scale, dtype=torch.float64)) + 1e-37
    return bool(((found.double() - expected.double()).abs() <= bound).all())


@given(clients=CLIENTS, dim=DIMS, kind=KINDS, seed=SEEDS, dtype=DTYPES)
def test_selections_and_counts_are_exact(clients, dim, kind, seed, dtype):
    updates = Updates.collect(values(kind, clients, dim, seed, dtype))
    assert cpu.takes(updates)
    assert torch.equal(cpu.median(updates).update, reference.median(updates).update)
    assert torch.equal(cpu.median(updates).share, reference.median(updates).share)
    assert torch.equal(cpu.sign_agreement(updates), reference.sign_agreement(updates))
    for quantile in (0.0, 0.3, 0.9, 0.999, 1.0):
        exact = reference.magnitude_quantiles(updates, quantile)
        assert torch.equal(cpu.magnitude_quantiles(updates, quantile), exact)
        survey = cpu.survey(updates, quantile)
        assert survey.quantiles is not None and torch.equal(survey.quantiles, exact)
        assert torch.equal(survey.agreement, reference.sign_agreement(updates))
    norms, largest = cpu.extent(updates)
    assert torch.equal(largest, reference.extent(updates)[1])
    assert torch.allclose(norms, reference.extent(updates)[0], rtol=1e-12)
    for backend in (cpu, reference):  # no maximum is looked for: the norm bounds it
        alone, bound = backend.extent(updates, exactly=False)
        assert torch.equal(alone, backend.extent(updates)[0]) and torch.equal(bound, alone)


@given(clients=CLIENTS, dim=DIMS, kind=KINDS, seed=SEEDS, dtype=DTYPES)
def test_sums_are_close(clients, dim, kind, seed, dtype):
    matrix = values(kind, clients, dim, seed, dtype)
    updates = Updates.collect(matrix)
    weights = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(clients)))
    columns, size = matrix.double().abs().amax(dim=0), float(matrix.double().abs().max()) * dim
    assert close(cpu.weighted_sum(updates, weights), reference.weighted_sum(updates, weights), columns)
    assert close(cpu.residual_norms(updates, weights), reference.residual_norms(updates, weights), size * 1e-6)
    assert close(cpu.squared_distances(updates), reference.squared_distances(updates))
    scale = 1 / torch.where(updates_norms(matrix) > 0, updates_norms(matrix), 1.0)
    assert close(cpu.squared_distances(updates, scale), reference.squared_distances(updates, scale), 1e-9)
    for trim in {0, (clients - 1) // 2, (clients - 1) // 4}:
        ours, plain = cpu.trimmed_mean(updates, trim), reference.trimmed_mean(updates, trim)
        assert close(ours.update, plain.update, columns) and torch.equal(ours.share, plain.share)


def updates_norms(matrix: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(matrix.double(), dim=1)
    return norms


@settings(max_examples=120)
@given(
    clients=CLIENTS,
    dim=DIMS,
    kind=KINDS,
    seed=SEEDS,
    dtype=DTYPES,
    switches=st.tuples(*[st.booleans()] * 4),
    data=st.data(),
)
def test_elect_and_merge(clients, dim, kind, seed, dtype, switches, data):
    matrix = values(kind, clients, dim, seed, dtype)
    updates = Updates.collect(matrix)
    clamp, clamp_clipped, at_threshold, survivors_vote = switches
    norms = updates_norms(matrix)
    threshold = reference.magnitude_quantiles(updates, data.draw(st.sampled_from([0.1, 0.5, 0.9])))
    plan = ops.MergePlan(
        clip_factor=ops.clip_factors(float(norms.median()), norms),
        threshold=data.draw(st.sampled_from([threshold, None])),
        ballots=reference.sign_agreement(updates).sign().sum(dim=1).clamp(min=0),
        clamp=clamp,
        clamp_clipped=clamp_clipped,
        survives_at_threshold=at_threshold,
        survivors_vote=survivors_vote,
    )
    ours, plain = cpu.elect_and_merge(updates, plan), reference.elect_and_merge(updates, plan)
    assert close(ours.update, plain.update)
    assert torch.equal(ours.survived, plain.survived) and torch.equal(ours.adopted, plain.adopted)
    assert torch.equal(ours.share, plain.share)


def everything(updates: Updates) -> list[torch.Tensor]:
    weights = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
    survey = ops.survey(updates, 0.8)
    plan = ops.MergePlan(clip_factor=weights, threshold=survey.quantiles, ballots=survey.agreement.sign().sum(dim=1))
    merge = ops.elect_and_merge(updates, plan)
    assert survey.quantiles is not None
    return [
        *ops.extent(updates),
        survey.agreement,
        survey.quantiles,
        merge.update,
        merge.adopted,
        ops.weighted_sum(updates, weights),
        ops.residual_norms(updates, weights),
        ops.squared_distances(updates),
        ops.median(updates).update,
        ops.trimmed_mean(updates, 1).update,
    ]


def mixed(updates: Updates, seed: int) -> Updates:
    """Each row a mean or a weighted sum of some, or a row as it is."""
    rng, clients = np.random.default_rng(seed), len(updates)
    members: list[list[int]] = [
        rng.permutation(clients)[: rng.integers(1, clients + 1)].tolist() for _ in range(clients)
    ]
    weights = [[1 / len(m)] * len(m) if k % 2 else rng.normal(size=len(m)).tolist() for k, m in enumerate(members)]
    members[0], weights[0] = [0], [1.0]
    return updates.mixed(members, weights, [str(k) for k in range(clients)])


@given(clients=CLIENTS, dim=DIMS, kind=KINDS, seed=SEEDS, dtype=DTYPES)
def test_mixed_rows_are_those_of_the_reference_to_the_last_bit(clients, dim, kind, seed, dtype):
    if kind in ("huge", "mixed"):
        kind = "normal"  # a sum of such rows may overflow
    updates = mixed(Updates.collect(values(kind, clients, dim, seed, dtype)), seed)
    assert cpu.takes(updates)
    plain = Updates.collect(torch.stack(updates.read(0, dim)))
    assert torch.equal(cpu.sign_agreement(updates), reference.sign_agreement(plain))
    assert torch.equal(cpu.median(updates).update, reference.median(plain).update)
    assert torch.equal(cpu.magnitude_quantiles(updates, 0.9), reference.magnitude_quantiles(plain, 0.9))
    assert torch.equal(cpu.extent(updates)[1], reference.extent(plain)[1])
    assert torch.allclose(cpu.extent(updates)[0], reference.extent(plain)[0], rtol=1e-12)


@pytest.mark.parametrize("mix", [False, True])
def test_the_number_of_threads_changes_nothing(mix):
    updates = Updates.collect(values("zeros", 9, 20_011, 1))
    updates = mixed(updates, 3) if mix else updates
    answers = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        answers.append(everything(updates))
    torch.set_num_threads(1)
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


def test_rows_are_read_where_they_lie():
    matrix = values("normal", 5, 4001, 2)
    expected = everything(Updates.collect(matrix))
    pieces = [{"a": row[:17], "b": row[17:2017].view(40, 50), "c": row[2017:]} for row in matrix]
    columns = [p | {"b": p["b"].T.contiguous().T} for p in pieces]
    before = torch.zeros(4001)
    forms = [
        Updates.collect(matrix.T.contiguous().T),  # rows with a stride
        Updates.collect(list(matrix)),
        Updates.collect(pieces),
        Updates.collect(columns),
        Updates.collect(-matrix, before=before),
        Updates.collect(torch.cat([torch.zeros(5, 1), matrix], dim=1)[:, 1:]),  # not aligned
    ]
    for form in forms:
        for a, b in zip(everything(form), expected, strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_numbers_are_computed_in_float32(dtype):
    matrix = values("normal", 6, 3001, 3).to(dtype)
    narrow, wide = Updates.collect(matrix), Updates.collect(matrix.float())
    for a, b in zip(everything(narrow), everything(wide), strict=True):
        assert torch.equal(a, b.to(a.dtype))


# Rows that are brought into a buffer


@pytest.fixture
def not_read_at_once(monkeypatch):
    """Small updates are otherwise read once, and lie there as they are worked on."""
    monkeypatch.setattr("fedseca.updates.BLOCK_ELEMENTS", 3000)
    monkeypatch.setattr(rows, "_PIECE", 5 * 3000)


SIZES = (17, 0, 9_000, 1, 1, 10_992)  # one array is empty, one is longer than a piece, some lie in one piece together


def arrays(row: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"array {k}": part.clone() for k, part in enumerate(row.split(SIZES))}


WRITTEN = [
    (torch.float32,),
    (torch.float64,),
    (torch.float16,),
    (torch.bfloat16,),
    (torch.float32, torch.float32, torch.bfloat16),  # clients that differ
]


@pytest.mark.parametrize("written", WRITTEN, ids=str)
@pytest.mark.parametrize("with_before", [False, True])
@pytest.mark.parametrize("mix", [False, True])
def test_every_form_is_worked_on_as_the_rows_it_stands_for(not_read_at_once, written, with_before, mix):
    matrix = values("zeros", 6, sum(SIZES), 4)
    sent = [arrays(row.to(written[k % len(written)])) for k, row in enumerate(matrix)]
    before = arrays(values("normal", 1, sum(SIZES), 5)[0].to(written[0])) if with_before else None
    found = Updates.collect(sent, before=before)
    wide = found.compute_dtype
    dense = torch.stack([torch.cat([part.to(wide) for part in each.values()]) for each in sent])
    if before is not None:
        dense = torch.cat([part.to(wide) for part in before.values()]) - dense
    expected = Updates.collect(dense)
    if mix:
        found, expected = mixed(found, 3), mixed(expected, 3)
    assert cpu.takes(found) and rows.Rows.of(found).table is not None
    for a, b in zip(everything(found), everything(expected), strict=True):
        last_bit = {torch.float64: 1e-9, torch.float32: 1e-6, torch.int64: 0}.get(a.dtype, 1e-2)
        assert torch.allclose(a, b.to(a.dtype), rtol=last_bit, atol=last_bit / 10)
    assert torch.equal(ops.median(found).update, ops.median(expected).update.to(found.dtype))
    mine, theirs = (ops.survey(each, 0.9) for each in (found, expected))
    assert torch.equal(mine.agreement, theirs.agreement)
    assert mine.quantiles is not None and theirs.quantiles is not None and torch.equal(mine.quantiles, theirs.quantiles)


@pytest.mark.parametrize("with_before", [False, True])
def test_products_of_every_form(not_read_at_once, with_before):
    """Many clients, some of them halves; and a row that is no difference, as a centre is."""
    matrix = values("normal", 30, sum(SIZES), 4)
    sent = [arrays(row.to(torch.bfloat16 if k % 2 else torch.float32)) for k, row in enumerate(matrix)]
    before = arrays(values("normal", 1, sum(SIZES), 5)[0]) if with_before else None
    found = Updates.collect(sent, before=before)
    centre = found.vector_row(matrix[0])
    found = found.with_rows([*found.rows, centre], [*found.client_ids, "centre"])
    assert rows.Rows.of(found).table is not None
    expected = Updates.collect(torch.stack([row.read(0, found.dim) for row in found.rows]))
    for a, b in zip(everything(found), everything(expected), strict=True):
        assert torch.allclose(a, b.to(a.dtype), rtol=1e-6, atol=1e-7)
    assert torch.equal(ops.magnitude_quantiles(found, 0.9), ops.magnitude_quantiles(expected, 0.9))
    assert torch.allclose(ops.squared_distances(found), reference.squared_distances(expected), rtol=1e-9)


def test_a_half_is_what_torch_makes_of_it(not_read_at_once):
    """All 65,536 of them, as the sum of one row: Inf and NaN too."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    found = cpu.weighted_sum(Updates.collect(every[None]), torch.ones(1, dtype=torch.float64), torch.float32)
    assert torch.equal(found.nan_to_num(nan=7e4), every.float().nan_to_num(nan=7e4))
    assert torch.equal(found.isnan(), every.isnan())


def test_clients_cut_into_other_arrays_are_read_by_torch(not_read_at_once):
    matrix = values("normal", 2, 2000, 1)
    made = Updates.collect([{"a": row[:60], "b": row[60:]} for row in matrix])
    other = made.with_rows(
        [*made.rows, ArrayRow((matrix[0, :10], matrix[0, 10:]), (0, 10, 2000), torch.float32, made.device)], "abc"
    )
    assert rows.Rows.of(other).table is None
    plain = Updates.collect(matrix[[0, 1, 0]])
    assert torch.equal(ops.median(other).update, reference.median(plain).update)
    assert torch.equal(ops.magnitude_quantiles(other, 0.9), reference.magnitude_quantiles(plain, 0.9))


def test_a_client_that_misleads_the_sample_gets_the_exact_quantile_all_the_same():
    row = torch.full((6000,), 5.0)
    row[::100] = 1e-3  # just what the sample looks at, a hundredth
    updates = Updates.collect(torch.stack([row, row.flip(0)]))
    assert torch.equal(cpu.magnitude_quantiles(updates, 0.9), reference.magnitude_quantiles(updates, 0.9))


def apply(steps, rows):
    """What the compiled kernel does, comparison by comparison; of a pair only what is kept is written."""
    for step in steps.tolist():
        for lower, upper in network.comparisons(step):
            x, y = rows[lower].copy(), rows[upper].copy()
            if step[1] & network.KEEP_LOWER:
                rows[lower] = np.minimum(x, y)
            if step[1] & network.KEEP_UPPER:
                rows[upper] = np.maximum(x, y)
    return rows


def wanted_ranks(count):
    return {(0, count - 1), ((count - 1) // 2,) * 2, (count // 4, count - 1 - count // 4)}


@pytest.mark.parametrize("dim", [100, 2_000, 20_000, 300_000])
def test_the_quantile_is_found_without_a_second_read(dim, monkeypatch):
    """Whatever the size of the sample, there is room for what lies around the quantile."""
    monkeypatch.setattr(kernels, "count_magnitudes", None)
    updates = Updates.collect(values("normal", 4, dim, 7))
    quantiles = cpu.magnitude_quantiles(updates, 0.9)
    assert torch.equal(quantiles, reference.magnitude_quantiles(updates, 0.9))


@pytest.mark.parametrize("count", range(1, 18))
def test_networks_sort(count):
    """A network that sorts all rows of 0 and 1 sorts everything; what is left of it finds the wanted ranks."""
    rows = np.array(list(itertools.product([0, 1], repeat=count)), dtype=np.int8).T
    for first, last in wanted_ranks(count):
        work = apply(network.selection_network(count, first, last), rows.copy())
        assert np.array_equal(work[first : last + 1], np.sort(rows, axis=0)[first : last + 1])


@pytest.mark.parametrize("count", [31, 64, 100, 257])
def test_large_networks_sort(count):
    rows = np.random.default_rng(count).integers(0, 60, (count, 2000))
    for first, last in wanted_ranks(count):
        work = apply(network.selection_network(count, first, last), rows.copy())
        assert np.array_equal(work[first : last + 1], np.sort(rows, axis=0)[first : last + 1])


@pytest.mark.parametrize("count", [24, 33, 70])
@pytest.mark.parametrize("common", [0.0, 1e4])
def test_distances_of_many_clients(count, common):
    """Products must not lose what tells clients apart: not beside a long common part, not of clients that are close."""
    matrix = values("normal", count, 3000, 5) + common * values("normal", 1, 3000, 6)
    matrix[3] = matrix[4]
    matrix[5] = matrix[4] * (1 + 1e-6)
    matrix[6] = 0
    scale = torch.linspace(0.5, 2, count, dtype=torch.float64)
    for factors in (None, scale):
        updates = Updates.collect(matrix)
        found, expected = cpu.squared_distances(updates, factors), reference.squared_distances(updates, factors)
        assert torch.equal(found, found.T) and not found.diagonal().any()
        assert torch.allclose(found, expected, rtol=1e-9, atol=0)
    assert cpu.squared_distances(updates)[3, 4] == 0


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_one_client_cannot_spoil_the_distances_of_the_others(factor, monkeypatch):
    """Neither one that is far too long nor one that is far too short: only its own pairs need their differences."""
    matrix = values("normal", 40, 3000, 5)
    matrix[7] *= factor
    matrix[9] = matrix[8]
    asked, exactly = [], cpu._of_pairs

    def of_pairs(updates, factors, pairs):
        asked.extend(pairs.tolist())
        return exactly(updates, factors, pairs)

    monkeypatch.setattr(cpu, "_of_pairs", of_pairs)
    updates = Updates.collect(matrix)
    for scale in (None, 1 / updates_norms(matrix)):
        found, expected = cpu.squared_distances(updates, scale), reference.squared_distances(updates, scale)
        assert torch.allclose(found, expected, rtol=1e-9, atol=0)
    assert [8, 9] in asked and all(pair == [8, 9] or 7 in pair for pair in asked)


@pytest.mark.parametrize("outlier", [1.0, 30.0, 1700.0, 30_000.0])
def test_a_tie_among_many_clients_is_a_tie(outlier):
    """Clients that are all equally far from each other: rounding must not rank them."""
    matrix = torch.cat([3 * torch.eye(40), torch.full((40, 40), 0.3)], dim=1)
    matrix[39] *= outlier
    ranks = ops.ranks(cpu.squared_distances(Updates.collect(matrix))[:39, :39])
    assert torch.equal(ranks, 1 - torch.eye(39, dtype=torch.int64))
    krum = fedseca.make_aggregator("krum", num_byzantine=1)
    chosen = krum.aggregate(Updates.collect(matrix[:39]), {}, torch.Generator()).diagnostics["weight"]
    assert chosen.argmax() == 0


def test_a_copy_of_updates_knows_nothing_of_where_the_others_lie():
    matrix = torch.ones(3, 50)
    updates = Updates.collect(matrix)
    norms = ops.extent(updates)[0]
    copies = [copy.deepcopy(updates), pickle.loads(pickle.dumps(updates))]  # noqa: S301
    matrix.fill_(7)
    assert all(torch.equal(ops.extent(each)[0], norms) for each in copies)


def test_what_is_compiled_is_kept_under_a_name_that_tells_what_it_was_built_from():
    names = {kernel.__qualname__ for kernel in (kernels.measure, kernels.survey, kernels.gram)}
    assert all(name.endswith(kernels._BUILT_FROM[:8]) for name in names)


def test_products_that_are_too_small_are_not_taken_for_zero():
    matrix = values("normal", 30, 500, 5).double() * 1e-170
    updates = Updates.collect(matrix)
    scale = 1e170 * torch.linspace(0.5, 2, 30, dtype=torch.float64)
    expected = reference.squared_distances(updates, scale)
    assert torch.allclose(cpu.squared_distances(updates, scale), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("clients", [5, 43])
def test_signs_are_counted_over_many_groups(clients):
    """Zeros in one group of a chunk, in a tail, in some clients only."""
    matrix = values("normal", clients, 9 * kernels.GROUP + 77, 2)
    matrix[1, 3 * kernels.GROUP + 5] = 0
    matrix[clients - 1, -3:] = 0
    signs = matrix.sign()
    assert torch.equal(cpu.sign_agreement(Updates.collect(matrix)), (signs @ signs.T).long())


def test_a_median_needs_far_fewer_comparisons_than_a_sort_and_far_fewer_reads():
    median, everything = (network.selection_network(64, *ranks).tolist() for ranks in ((31, 31), (0, 63)))
    counts = [sum(len(network.comparisons(step)) for step in steps) for steps in (median, everything)]
    assert counts[0] < 0.9 * counts[1]
    assert sum(network.ROWS[step[0]] for step in median) < 0.8 * counts[0]  # a comparison alone reads two rows


@pytest.mark.parametrize("converts", [True, False], ids=["by the processor", "by hand"])
def test_every_half_has_its_value(monkeypatch, converts):
    """With the processor's own conversion, where it has one, and without."""
    monkeypatch.setattr(intrinsics, "_CONVERTS", converts and intrinsics._CONVERTS)

    @numba.njit
    def widened(words, values):
        for i in range(words.size):
            values[i] = intrinsics.from_half(words[i])  # type: ignore[call-arg]

    words, values = np.arange(1 << 16, dtype=np.uint16), np.zeros(1 << 16, np.float32)
    widened(words, values)
    expected = words.view(np.float16).astype(np.float32)
    assert np.array_equal(values, expected, equal_nan=True)
    assert np.array_equal(np.signbit(values), np.signbit(expected))


def test_for_another_processor_than_this_one_nothing_is_compiled_that_it_lacks():
    """An instruction that is not there would be a call of a library that is not there, and the end of the process."""
    code = """
import torch, fedseca
rows = [torch.ones(3000) * k for k in range(4)] + [torch.ones(3000).double(), torch.ones(3000).half()]
print(float(fedseca.aggregate(rows, rule="cwmed")[0]))
"""
    settings = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr[-500:]
