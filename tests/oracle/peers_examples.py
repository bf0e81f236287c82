"""The examples that other packages publish with their answers, what the rules here answer, and why they differ.

A published answer is a fact to check against, not a truth: the rules here follow the equations of their papers. Each
example names the file that it was read in, at one commit. `docs/conformance.md` shows all of it as a table.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from tests.oracle import (
    attack_equations,
    cluster_equations,
    equations,
    field_attack_equations,
    selection_equations,
    step_equations,
)
from tests.oracle.equations import Rows, Vector

Verdict = Literal["agrees", "convention", "wrong"]
Equation = Callable[[Rows], Rows]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One published example. Answers are lists of rows: of one row for a rule or an attack."""

    package: str
    source: str
    """The file it is published in, as an address."""
    call: str
    """Their rule with its hyperparameters, and what it is given."""
    rows: Rows
    published: Rows
    ours: str
    """The name of our rule, step or attack."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    weights: Vector | None = None
    seed: int = 0
    verdict: Verdict
    why: str
    """One sentence."""
    equation: Equation
    """The paper's equation as plain loops, for our hyperparameters; the scores to choose by where ours refuses."""
    answer: Rows | None = None
    """What ours answers, to eight decimals, where that is not what is published."""
    refuses: bool = False
    """Ours answers with an error: there are too few clients for the equation."""
    same_as: Mapping[str, Any] | None = None
    """Our hyperparameters that give the published answer."""
    reproduces: Equation | None = None
    """What gives the published answer, where no hyperparameters of ours do."""
    stated: Equation | None = None
    """The equation on their own page, where it does not give the answer on that page."""


# ---------------------------------------------------------------- what they do otherwise


def byzfl_server(rows: Rows, ids: str = "0123") -> Vector:
    """The server of ByzFL's two optimal attacks: NNM(1), Clipping(2), TrMean(1); `ids` decide ties of NNM."""
    mixed, _ = step_equations.nnm(rows, list(ids), 1)
    return equations.cwtm([step_equations.shortened(row, 2.0) for row in mixed], 0.25)


def damage(row: Vector, ids: str = "0123") -> float:
    """How far that server is from the honest mean if a fourth client sends this row."""
    return math.dist(byzfl_server([*X, row], ids), equations.mean_row(X))


def worst_of_grid(line: Callable[[Rows, float], Vector]) -> Equation:
    """The row of the first of 16 strengths in equal ratios from 0.1 to 10 that does most damage."""

    def equation(rows: Rows) -> Rows:
        grid = [0.1 * 100 ** (i / 15) for i in range(16)]
        done = field_attack_equations.damages(rows, 1, line, byzfl_server, grid)
        return [line(rows, grid[done.index(max(done))])]

    return equation


def sample_deviation(rows: Rows) -> Vector:
    """σ with 1/(n − 1) in the place of 1/n."""
    return [math.sqrt(len(rows) / (len(rows) - 1)) * s for s in field_attack_equations.deviation(rows)]


def shifted_mean(rows: Rows, strength: float, deviation: Vector) -> Rows:
    """μ + τ·σ."""
    return [[m + strength * s for m, s in zip(equations.mean_row(rows), deviation, strict=True)]]


def worst_shift(rows: Rows) -> Rows:
    """μ + τ·σ with the τ of 0.05, 0.15 … 9.95 that does most damage (at 3 a tie of NNM decides)."""
    sigma = sample_deviation(rows)
    return max((shifted_mean(rows, (i + 0.5) / 10, sigma) for i in range(100)), key=lambda found: damage(found[0]))


def weiszfeld_from_zero(rows: Rows) -> Rows:
    """Three smoothed Weiszfeld iterations from 0, ν = 0.1."""
    z = [0.0] * len(rows[0])
    for _ in range(3):
        beta = [1 / max(0.1, equations.distance(z, row)) for row in rows]
        z = equations.combine(rows, [b / math.fsum(beta) for b in beta])
    return [z]


def mimicked(rows: Rows) -> Rows:
    """The client that the equations of mimic choose, from the direction that the seed 1 draws."""
    start = torch.randn(len(rows[0]), generator=torch.Generator().manual_seed(1)).double().numpy()
    return [rows[attack_equations.Mimic().step(np.array(rows), start / np.linalg.norm(start))]]


def averaged(rows: Rows, alpha: Vector | None = None) -> Rows:
    return [equations.fedavg(rows, alpha)]


def filtered(rows: Rows) -> Rows:
    return [equations.combine(rows, cluster_equations.caf(rows, 1).weights)]


def against_the_mean(strength: float) -> Equation:
    return lambda rows: [field_attack_equations.opt_ipm_row(rows, strength)]


# ---------------------------------------------------------------- the examples

_BYZFL = "https://github.com/LPD-EPFL/byzfl/blob/"
AGGREGATORS = _BYZFL + "0393b669cafbb7ad51e549c287e458be3ee7e654/byzfl/aggregators/aggregators.py"
PREAGGREGATORS = _BYZFL + "2bada518852597f3d1cb5b6ee68f902ed59f6783/byzfl/aggregators/preaggregators.py"
ATTACKS = _BYZFL + "16cd795bd730736c59fab8d2a86d4e8ab146f02f/byzfl/attacks/attacks.py"
ATTACK_TESTS = _BYZFL + "07b85e46bbc292dd7067dfdf3d795002131e4ebe/tests/unit_test_attacks.py"
CAF_PAGE = _BYZFL + "b0a46f72c6a6ea5e4e2988883e394123b65b39e0/docs/_build/html/aggregators/classes/caf.html"
OPTIMAL = _BYZFL + "1d0595b62b1f5d797a8dd07137835520c03fd31c/docs/_build/html/attacks/classes/"
README = _BYZFL + "070c6184d4eda5544609eb14d1f077a2f55a2462/README.md"

_FLOWER = "https://github.com/adap/flower/blob/"
AGGREGATE_TEST = (
    _FLOWER + "aa9582d7a8f80e2dc56915d31918cbcedfda6d45/framework/py/flwr/server/strategy/aggregate_test.py"
)
BULYAN_TEST = _FLOWER + "0cb7993a0d98a38120341e4cbd05a54d1324d085/framework/py/flwr/server/strategy/bulyan_test.py"
CLOSEST_TEST = _FLOWER + "a14200558aa9004fa64ec6caa7785cd631d51574/framework/py/flwr/serverapp/strategy/bulyan_test.py"
MEDIAN_TEST = (
    _FLOWER + "1d5f78d99abce6ad921905301458a2d16a75d3e7/framework/py/flwr/serverapp/strategy/fedmedian_test.py"
)
OLDER_MEDIAN_TEST = _FLOWER + "09ee2dc1f39db18662d7ca37fcf5e971171996a3/src/py/flwr/server/strategy/fedmedian_test.py"
TRIMMED_TEST = (
    _FLOWER + "6e2d953b33d5466b99c69ae235170b18f8323c09/framework/py/flwr/serverapp/strategy/fedtrimmedavg_test.py"
)
KRUM_TEST = _FLOWER + "7226514be9a3c4e39a883ddec7922a6ca28a449f/framework/py/flwr/serverapp/strategy/multikrum_test.py"
MEAMED_TEST = _FLOWER + "52c97f97bdb637191be221de13d52b7ab2eac977/src/py/flwr/server/strategy/meamed_test.py"

X: Rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
"""What nearly all examples of ByzFL are given."""
MIDDLE: Rows = [[4.0, 5.0, 6.0]]
FIRST_TWO: Rows = [[2.5, 3.5, 4.5]]
"""The mean of the first two rows of X."""


def alike(*values: float) -> Rows:
    """A row of four times the same number for each client, as in Flower's tests."""
    return [[value] * 4 for value in values]


EXAMPLES = [
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="Average() of X",
        rows=X,
        published=MIDDLE,
        ours="fedavg",
        verdict="agrees",
        why="the mean",
        equation=averaged,
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="Median() of X",
        rows=X,
        published=MIDDLE,
        ours="cwmed",
        verdict="agrees",
        why="three clients have one middle value",
        equation=lambda rows: [equations.cwmed(rows)],
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="TrMean(f=1) of X",
        rows=X,
        published=MIDDLE,
        ours="cwtm",
        hyperparameters={"trim": 1 / 3},
        verdict="agrees",
        why="they give a number of clients, ours a share: f/K",
        equation=lambda rows: [equations.cwtm(rows, 1 / 3)],
    ),
    Example(
        package="ByzFL",
        source=README,
        call="TrMean(f=1) of X and SignFlipping() of X",
        rows=[*X, [-4.0, -5.0, -6.0]],
        published=FIRST_TWO,
        ours="cwtm",
        hyperparameters={"trim": 0.25},
        verdict="agrees",
        why="the quick start: an attack and a rule against it",
        equation=lambda rows: [equations.cwtm(rows, 0.25)],
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="GeometricMedian(nu=0.1, T=3) of X",
        rows=X,
        published=[[3.78788764, 4.78788764, 5.78788764]],
        ours="rfa",
        hyperparameters={"smoothing": 0.1},
        verdict="convention",
        why="their three iterations start from zero, ours from the mean; the geometric median itself is [4 5 6]",
        equation=lambda rows: [equations.rfa(rows, 3, 0.1)],
        answer=MIDDLE,
        reproduces=weiszfeld_from_zero,
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="Krum(f=1) of X",
        rows=X,
        published=[[1.0, 2.0, 3.0]],
        ours="krum",
        hyperparameters={"num_byzantine": 1},
        verdict="convention",
        why=(
            "they sum over K − f − 1 others, the paper that they cite over K − f − 2, of which 3 clients leave none; "
            "their f = 1 is our num_byzantine=0"
        ),
        equation=lambda rows: [equations.krum_scores(rows, 1)],
        refuses=True,
        same_as={"num_byzantine": 0},
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="MultiKrum(f=1) of X",
        rows=X,
        published=FIRST_TWO,
        ours="multi_krum",
        hyperparameters={"num_byzantine": 1},
        verdict="convention",
        why="as Krum: their f = 1 is our num_byzantine=0 with select=2",
        equation=lambda rows: [equations.krum_scores(rows, 1)],
        refuses=True,
        same_as={"num_byzantine": 0, "select": 2},
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="CenteredClipping(L=1, tau=100) of X",
        rows=X,
        published=MIDDLE,
        ours="cclip",
        hyperparameters={"radius": 100.0, "iterations": 1},
        verdict="agrees",
        why="both start from zero; no row is as long as 100",
        equation=lambda rows: [equations.cclip(rows, [0.0] * 3, 100.0, 1)],
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="MDA(f=1) of X",
        rows=X,
        published=FIRST_TWO,
        ours="mda",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="two subsets are equally narrow; both packages take the first",
        equation=lambda rows: [selection_equations.mda(rows, 1)],
    ),
    Example(
        package="ByzFL",
        source=AGGREGATORS,
        call="Meamed(f=1) of X",
        rows=X,
        published=FIRST_TWO,
        ours="meamed",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="two values are equally near to the median; both packages take the lower one",
        equation=lambda rows: [selection_equations.meamed(rows, 1)],
    ),
    Example(
        package="ByzFL",
        source=CAF_PAGE,
        call="CAF(f=1) of X",
        rows=X,
        published=MIDDLE,
        ours="caf",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="the rows lie on a line, so that one power iteration is the eigenvector",
        equation=filtered,
    ),
    Example(
        package="ByzFL",
        source=PREAGGREGATORS,
        call="NNM(f=1) of X",
        rows=X,
        published=[[2.5, 3.5, 4.5], [2.5, 3.5, 4.5], [5.5, 6.5, 7.5]],
        ours="nnm",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="the second row has two neighbours at the same distance; both packages take the first",
        equation=lambda rows: step_equations.nnm(rows, ["0", "1", "2"], 1)[0],
    ),
    Example(
        package="ByzFL",
        source=PREAGGREGATORS,
        call="Bucketing(s=2) of X, an array",
        rows=X,
        published=[[4.0, 5.0, 6.0], [4.0, 5.0, 6.0]],
        ours="bucketing",
        hyperparameters={"size": 2},
        seed=0,
        verdict="agrees",
        why="one of three draws, ours with seed 0; the last bucket is averaged over its own",
        equation=lambda rows: step_equations.buckets(rows, [[0, 2], [1]])[0],
    ),
    Example(
        package="ByzFL",
        source=PREAGGREGATORS,
        call="Bucketing(s=2) of X, a tensor",
        rows=X,
        published=[[5.5, 6.5, 7.5], [1.0, 2.0, 3.0]],
        ours="bucketing",
        hyperparameters={"size": 2},
        seed=1,
        verdict="agrees",
        why="another of the three draws, ours with seed 1",
        equation=lambda rows: step_equations.buckets(rows, [[1, 2], [0]])[0],
    ),
    Example(
        package="ByzFL",
        source=PREAGGREGATORS,
        call="Clipping(c=2) of X",
        rows=X,
        published=[
            [0.53452248, 1.06904497, 1.60356745],
            [0.91168461, 1.13960576, 1.36752692],
            [1.00514142, 1.14873305, 1.29232469],
        ],
        ours="clipping",
        hyperparameters={"factor": 2.0},
        verdict="convention",
        why="their c is a length, ours a multiple of the median norm √77; their c = 2 is our factor=2/√77",
        equation=lambda rows: step_equations.clipping(rows, 2.0)[0],
        answer=X,
        same_as={"factor": 2 / math.sqrt(77)},
    ),
    Example(
        package="ByzFL",
        source=PREAGGREGATORS,
        call="ARC(f=1) of X",
        rows=X,
        published=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [4.41004009, 5.04004582, 5.67005155]],
        ours="arc",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="⌊2·(1/3)·2⌋ = 1 row is shortened to the next longest",
        equation=lambda rows: step_equations.arc(rows, 1)[0],
    ),
    Example(
        package="ByzFL",
        source=ATTACKS,
        call="SignFlipping() of X",
        rows=X,
        published=[[-4.0, -5.0, -6.0]],
        ours="ipm",
        hyperparameters={"strength": 1.0, "jitter": 0.0},
        verdict="agrees",
        why="−μ is ipm with strength 1; signflip here turns the attacker's own update, which theirs is not given",
        equation=against_the_mean(1.0),
    ),
    Example(
        package="ByzFL",
        source=ATTACK_TESTS,
        call="InnerProductManipulation(tau=2) of X",
        rows=X,
        published=[[-8.0, -10.0, -12.0]],
        ours="ipm",
        hyperparameters={"strength": 2.0, "jitter": 0.0},
        verdict="agrees",
        why="−τ·μ",
        equation=against_the_mean(2.0),
    ),
    Example(
        package="ByzFL",
        source=ATTACKS,
        call="FallOfEmpires(tau=3) of X",
        rows=X,
        published=[[-8.0, -10.0, -12.0]],
        ours="ipm",
        hyperparameters={"strength": 3.0, "jitter": 0.0},
        verdict="convention",
        why="they write (1 − τ)·μ, the paper −ε·μ; their τ = 3 is our strength=2",
        equation=against_the_mean(3.0),
        answer=[[-12.0, -15.0, -18.0]],
        same_as={"strength": 2.0, "jitter": 0.0},
    ),
    Example(
        package="ByzFL",
        source=ATTACKS,
        call="ALittleIsEnough(tau=1.5) of X",
        rows=X,
        published=[[8.5, 9.5, 10.5]],
        ours="alie",
        hyperparameters={"strength": 1.5, "jitter": 0.0},
        verdict="wrong",
        why=(
            "their page defines σ with 1/n, which gives [7.67 8.67 9.67]; the answer has 1/(n − 1). "
            "Beside that they add τ·σ where ours subtracts it"
        ),
        equation=lambda rows: [attack_equations.alie(np.array(rows), 1.5).tolist()],
        answer=[[0.32576539, 1.32576539, 2.32576539]],
        same_as={"strength": -1.5 * math.sqrt(1.5), "jitter": 0.0},
        stated=lambda rows: shifted_mean(rows, 1.5, field_attack_equations.deviation(rows)),
    ),
    Example(
        package="ByzFL",
        source=OPTIMAL + "optimal_ipm.html",
        call="Optimal_InnerProductManipulation(TrMean(f=1), [NNM(f=1), Clipping()], f=1) of X",
        rows=X,
        published=[[-2.98949673, -3.73687091, -4.48424509]],
        ours="opt_ipm",
        verdict="convention",
        why=(
            "another search for τ: theirs came to 0.747 and moves the aggregate by 6.799, "
            "ours takes 0.631 of its grid and moves it by 6.783"
        ),
        equation=worst_of_grid(field_attack_equations.opt_ipm_row),
        answer=[[-2.52382938, -3.15478672, -3.78574407]],
        reproduces=against_the_mean(4.48424509 / 6),
    ),
    Example(
        package="ByzFL",
        source=OPTIMAL + "optimal_alie.html",
        call="Optimal_ALittleIsEnough(TrMean(f=1), [NNM(f=1), Clipping()], f=1) of X",
        rows=X,
        published=[[6.0615843, 7.0615843, 8.0615843]],
        ours="opt_alie",
        verdict="wrong",
        why=(
            "not the τ that moves the aggregate farthest, as their page defines it: 0.687 is published, "
            "2.95 on the same line moves it farther. Ours subtracts, with σ of 1/n"
        ),
        equation=worst_of_grid(field_attack_equations.opt_alie_row),
        answer=[[-3.17368482, -2.17368482, -1.17368482]],
        reproduces=lambda rows: shifted_mean(rows, 10 * 0.8**12, sample_deviation(rows)),
        stated=worst_shift,
    ),
    Example(
        package="ByzFL",
        source=ATTACKS,
        call="Mimic(epsilon=0) of X",
        rows=X,
        published=[[1.0, 2.0, 3.0]],
        ours="mimic",
        seed=1,
        verdict="convention",
        why="the client to copy is told to theirs; ours looks for one that stands out, as the paper does (seed 1)",
        equation=mimicked,
        answer=[[7.0, 8.0, 9.0]],
        reproduces=lambda rows: [rows[0]],
    ),
    Example(
        package="ByzFL",
        source=ATTACKS,
        call="Inf() of X",
        rows=X,
        published=[[math.inf] * 3],
        ours="nonfinite",
        hyperparameters={"value": "inf", "count": 3},
        verdict="agrees",
        why="all coordinates, which is count=3 here",
        equation=lambda rows: [[math.inf for _ in rows[0]]],
    ),
    Example(
        package="Flower",
        source=AGGREGATE_TEST,
        call="aggregate of 1 2 … 10 twice, with 1 and 2 examples",
        rows=[[float(i) for i in range(1, 11)]] * 2,
        weights=[1.0, 2.0],
        published=[[float(i) for i in range(1, 11)]],
        ours="fedavg",
        verdict="agrees",
        why="the weighted mean; the clients are equal, so that any weights would pass",
        equation=lambda rows: averaged(rows, [1 / 3, 2 / 3]),
    ),
    Example(
        package="Flower",
        source=AGGREGATE_TEST,
        call="weighted_loss_avg of 2, 1, 2 with 1, 2, 1 examples",
        rows=[[2.0], [1.0], [2.0]],
        weights=[1.0, 2.0, 1.0],
        published=[[1.5]],
        ours="fedavg",
        verdict="agrees",
        why="the same weighted mean, of losses; here the weights count",
        equation=lambda rows: averaged(rows, [0.25, 0.5, 0.25]),
    ),
    Example(
        package="Flower",
        source=MEDIAN_TEST,
        call="FedMedian() of [1 0.2 0.5 1], [0.2 0.5 1 0.2], [0.5 1 0.2 0.5]",
        rows=[[1.0, 0.2, 0.5, 1.0], [0.2, 0.5, 1.0, 0.2], [0.5, 1.0, 0.2, 0.5]],
        published=alike(0.5),
        ours="cwmed",
        verdict="agrees",
        why="three clients have one middle value",
        equation=lambda rows: [equations.cwmed(rows)],
    ),
    Example(
        package="Flower",
        source=OLDER_MEDIAN_TEST,
        call="FedMedian() of 0.2, 1, 0.5, four times each",
        rows=alike(0.2, 1.0, 0.5),
        published=alike(0.5),
        ours="cwmed",
        verdict="agrees",
        why="three clients have one middle value",
        equation=lambda rows: [equations.cwmed(rows)],
    ),
    Example(
        package="Flower",
        source=TRIMMED_TEST,
        call="FedTrimmedAvg(beta=0.25) of [0.5 0.5 0.5 0.5], [1 0.2 0.5 1], [0.2 0.5 1 0.2], [0.5 1 0.2 0.5]",
        rows=[[0.5] * 4, [1.0, 0.2, 0.5, 1.0], [0.2, 0.5, 1.0, 0.2], [0.5, 1.0, 0.2, 0.5]],
        published=alike(0.5),
        ours="cwtm",
        hyperparameters={"trim": 0.25},
        verdict="agrees",
        why="one value is dropped at each end",
        equation=lambda rows: [equations.cwtm(rows, 0.25)],
    ),
    Example(
        package="Flower",
        source=TRIMMED_TEST,
        call="FedTrimmedAvg(beta=0.25) of 0.5, 1, 2, 100",
        rows=[[0.5], [1.0], [2.0], [100.0]],
        published=[[1.5]],
        ours="cwtm",
        hyperparameters={"trim": 0.25},
        verdict="agrees",
        why="one value is dropped at each end",
        equation=lambda rows: [equations.cwtm(rows, 0.25)],
    ),
    Example(
        package="Flower",
        source=KRUM_TEST,
        call="Krum(num_malicious_nodes=1) of 0.2, 0.7, 1, four times each",
        rows=alike(0.2, 0.7, 1.0),
        published=alike(0.7),
        ours="krum",
        hyperparameters={"num_byzantine": 1},
        verdict="convention",
        why="the paper's K − B − 2 leaves no neighbour of 3 clients; theirs takes one all the same, as B = 0 does",
        equation=lambda rows: [equations.krum_scores(rows, 1)],
        refuses=True,
        same_as={"num_byzantine": 0},
    ),
    Example(
        package="Flower",
        source=KRUM_TEST,
        call="MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2) of 0.2, 0.5, 1, four times each",
        rows=alike(0.2, 0.5, 1.0),
        published=alike(0.35),
        ours="multi_krum",
        hyperparameters={"num_byzantine": 1, "select": 2},
        verdict="convention",
        why="as Krum: no neighbour is left, theirs takes one, as B = 0 does",
        equation=lambda rows: [equations.krum_scores(rows, 1)],
        refuses=True,
        same_as={"num_byzantine": 0, "select": 2},
    ),
    Example(
        package="Flower",
        source=BULYAN_TEST,
        call="Bulyan(num_malicious_clients=0) of 0.2, 0.5, 0.7, 12, 0.1, 0.1, four times each",
        rows=alike(0.2, 0.5, 0.7, 12.0, 0.1, 0.1),
        published=alike((0.2 + 0.5 + 0.7 + 12.0 + 0.1 + 0.1) / 6),
        ours="bulyan",
        hyperparameters={"num_byzantine": 0},
        verdict="agrees",
        why="without malicious clients Bulyan is the mean, which is all that this example shows",
        equation=lambda rows: [selection_equations.bulyan(rows, 0)],
    ),
    Example(
        package="Flower",
        source=CLOSEST_TEST,
        call="aggregate_n_closest_weights of 1, 2, 0.5 to 1, beta=2",
        rows=[[1.0], [2.0], [0.5]],
        published=[[0.75]],
        ours="meamed",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="the second half of Bulyan; 1 is the median of the three, so that it is meamed",
        equation=lambda rows: [selection_equations.meamed(rows, 1)],
    ),
    Example(
        package="Flower",
        source=MEAMED_TEST,
        call="MeaMed(num_clients_to_exclude=1) of 0.2, 1, 0.5, four times each",
        rows=alike(0.2, 1.0, 0.5),
        published=alike(0.35),
        ours="meamed",
        hyperparameters={"num_byzantine": 1},
        verdict="agrees",
        why="a rule in the history of the repository",
        equation=lambda rows: [selection_equations.meamed(rows, 1)],
    ),
]


# ---------------------------------------------------------------- as the document shows them

HEADER = ["| package and where | rule | their answer | ours | verdict and why |", "|---|---|---|---|---|"]


def shown(rows: Rows) -> str:
    return " ".join("[" + " ".join(f"{x:.9g}" for x in row) + "]" for row in rows)


def asked(example: Example) -> str:
    """Our name and hyperparameters."""
    given = [f"{name}={f'{value:.3g}' if isinstance(value, float) else value}" for name, value in named(example)]
    return " ".join([example.ours, *given])


def named(example: Example) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in example.hyperparameters.items() if (name, value) != ("jitter", 0.0)]


def line(example: Example) -> str:
    """Its row of the table."""
    answer = "refused" if example.refuses else shown(example.answer or example.published)
    cells = [
        f"{example.package}, [{example.source.rpartition('/')[2]}]({example.source})",
        f"`{example.call}`",
        shown(example.published),
        f"`{asked(example)}`: {answer}",
        f"**{example.verdict}**: {example.why}",
    ]
    return "| " + " | ".join(cells) + " |"


def table() -> list[str]:
    return [*HEADER, *map(line, EXAMPLES)]


def summary() -> str:
    """How many there are of each verdict, in a sentence."""
    number = Counter(example.verdict for example in EXAMPLES)
    return (
        f"Of {len(EXAMPLES)} examples {number['agrees']} agree, {number['convention']} follow another convention "
        f"and {number['wrong']} are wrong."
    )
