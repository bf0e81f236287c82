"""The paper's results as tables of runs."""

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

from fedseca.aggregators.fedseca import RHO
from fedseca.errors import InputError, UnknownName
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import Experiment, Request, TableOfRuns
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import Curve, Histogram, curves, distributions, heat_map, png, trajectories, trust
from fedseca.experiments.results import About, Outcome, ResultTable, Score, as_csv, counted
from fedseca.experiments.similarity import Similarity
from fedseca.experiments.store import Store
from fedseca.experiments.timing import Timing, coordinates
from fedseca.federation import simulate
from fedseca.federation.presets import PRESETS
from fedseca.paper import read_table, verdict

RESULTS = Path(__file__).parents[2] / "results"
TABLES = {name: each for name, each in EXPERIMENTS.items() if isinstance(each, TableOfRuns)}


OF_THE_PAPER = {name: each for name, each in TABLES.items() if name not in ("field", "cost")}
"""What is the package's own has tests of its own."""


def outcome(experiment: Experiment, store: Store, request: Request | None = None) -> Outcome:
    return experiment.outcome(request or Request(), store, Machine(), lambda what, done, total: None)


def test_the_tables_have_the_paper_s_size():
    sizes = {name: (len(each.rows), len(each.columns)) for name, each in OF_THE_PAPER.items()}
    assert sizes == {
        "main": (12, 8),
        "ablation": (10, 8),
        "sensitivity": (12, 8),
        "byzantine-count": (5, 8),
        "client-count": (6, 2),
        "concordance": (1, 8),
        "similarity": (1, 1),
    }
    assert EXPERIMENTS.keys() == {*sizes, "timing", "field", "cost"}
    assert TABLES["main"].paper["fedseca", "minmax"] > 0.5 > TABLES["main"].paper["krum", "alie"]
    for each in OF_THE_PAPER.values():
        places = {(row, column) for row in each.rows for column in each.columns}
        assert each.paper.keys() <= places, f"{each.name} lacks a row or column of the paper"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_every_place_is_a_scenario_of_its_own_with_its_seed(name, preset):
    request, experiment = Request(preset, (0, 7)), TABLES[name].at(preset)
    cells = experiment.cells(request)
    assert all([run.seed for run in cell.scenarios] == [0, 7] for cell in cells)
    runs = experiment.runs(request)
    # Both scans of the sensitivity hold the default, which is run once.
    assert len(runs) == 2 * (len(cells) - (8 if name == "sensitivity" else 0))
    assert [run.seed for run in runs[: len(runs) // 2]] == [0] * (len(runs) // 2)
    with pytest.raises(UnknownName, match="unknown preset 'digit'; did you mean 'digits'"):
        experiment.cells(Request("digit"))


def test_the_paper_s_own_setting():
    (run,) = {
        run for run in TABLES["main"].runs(Request("paper-cifar10")) if (run.aggregator.name, run.attack.name) == IPM
    }
    assert (run.clients, run.byzantine, run.rounds, run.batch_size, run.local_epochs) == (5, 2, 50, 64, 1)
    assert (run.learning_rate, run.weight_decay, run.dataset.name) == (1e-3, 1e-6, "cifar10")
    assert (run.model.name, run.model.stem, run.model.image_size) == ("resnet18", "imagenet", 224)
    assert (run.aggregator.sparsity, run.aggregator.momentum) == (0.9, 0.5)
    many = TABLES["byzantine-count"].at("paper-cifar10")
    assert {(run.clients, run.byzantine, run.batch_size) for run in many.runs(Request("paper-cifar10"))} == {
        (64, count, 16) for count in (8, 17, 31, 34, 40)
    }
    for preset, clients in (("paper-cifar10", 64), ("digits", 16)):
        experiment = TABLES["byzantine-count"].at(preset)
        about = About.of(experiment.runs(Request(preset)), (0,))
        shown = experiment.table(about, [Score("8", "ipm", (0.5,))])
        assert f"{clients} clients" in shown.setting and "iid" in shown.setting
    assert TABLES["client-count"].last == 10


IPM = ("fedseca", "ipm")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("paper-eurosat", ("eurosat", 224, 7, 50, 1e-5, "deit_small_patch16_224.fb_in1k")),
        ("paper-fedisic", ("fedisic", 200, 6, 100, 1e-4, "convnext_nano.d1h_in1k")),
    ],
)
def test_the_paper_s_two_of_real_sites(preset, expected):
    experiment = TABLES["main"].at(preset)
    (run,) = {run for run in experiment.runs(Request(preset)) if (run.aggregator.name, run.attack.name) == IPM}
    found = (run.dataset.name, run.dataset.image_size, run.clients, run.rounds, run.learning_rate)
    assert (*found, run.model.architecture) == expected
    assert (run.batch_size, run.weight_decay, run.local_epochs, run.partition.name) == (32, 1e-6, 1, "site")
    assert [k for k in range(run.clients) if run.is_byzantine(k)] == [3, 4]
    assert run.model.weights == "imagenet" and run.model.trained == "all" and not run.dataset.augment
    # Beside it stands the column of its own data, not CIFAR-10's.
    rows = [row for row in read_table("main_f1") if row["dataset"] == run.dataset.name]
    beside = {(row["aggregator"], row["attack"]): float(row["f1"]) for row in rows}
    assert len(beside) == 96 and experiment.published(run.dataset.name).numbers == beside
    assert experiment.paper != beside and experiment.published("digits").numbers == experiment.paper
    shown = TABLES["main"].table(About.of([run], (0,)), [Score("fedseca", "ipm", (0.5,))])
    assert shown.paper_setting == {"eurosat": "EuroSAT, DeiT-S", "fedisic": "FedISIC, ConvNeXt-nano"}[run.dataset.name]


def test_a_number_of_byzantine_clients_takes_back_which_they_are():
    counts = {run.byzantine for run in TABLES["byzantine-count"].runs(Request("paper-eurosat"))}
    assert counts == {2, 4, 7, 9, 10}
    assert {run.byzantine for run in TABLES["client-count"].runs(Request("paper-fedisic"))} == {0}


def test_what_a_table_varies_cannot_be_changed():
    with pytest.raises(InputError, match=r"^main varies attack itself; run another by fedseca run or grid$"):
        TABLES["main"].runs(Request(changes={"attack": "ipm"}))
    with pytest.raises(InputError, match="byzantine-count varies byzantine_clients itself"):
        TABLES["byzantine-count"].runs(Request(changes={"byzantine_clients": "0"}))


def test_the_ablations_remove_what_they_say():
    rules = {cell.row: cell.scenarios[0].aggregator for cell in TABLES["ablation"].cells(Request())}
    full = rules.pop("full").values()
    changed = {row: {k for k, v in rule.values().items() if v != full[k]} for row, rule in rules.items()}
    assert changed == {
        "no_concordance_ratio": {"concordance"},
        "no_coordinatewise_aggregation": {"coordinatewise"},
        "no_crise": {"election"},
        "no_vrs": {"vrs"},
        "no_sparsification": {"sparsity"},
        "no_clip_and_clamp": {"clip", "clamp"},
        "no_clipping": {"clip"},
        "no_clamping": {"clamp"},
        "no_server_momentum": {"momentum"},
    }


# As the paper prints its two CIFAR-10 tables: red, orange, yellow or plain, in the order of the columns.
PAPER_COLOURS = {
    "main_f1": {
        "fedavg": "r r r y . r r .",
        "krum": "r r r . y . r .",
        "rfa": "r y r . . y r .",
        "cwtm": "r r r y . r r .",
        "huber": "r . r . y . r .",
        "cclip": "o y r . . r r .",
        "cc_randbucket": "r r r . . r r .",
        "cc_seqbucket": ". y r . . r r .",
        "copod_dos": ". o r . y r r .",
        "fldetector": "r y o r o . y .",
        "ties": ". r . . . r r .",
        "fedseca": ". . . . . . . .",
    },
    "ablation_f1_cifar10": {
        "full": ". . . . . . .",
        "no_concordance_ratio": ". r . y . . .",
        "no_coordinatewise_aggregation": "o . . y . y y",
        "no_crise": ". r . y . . .",
        "no_vrs": "r . o . y r .",
        "no_sparsification": "r . . . y . .",
        "no_clip_and_clamp": ". . . . . r .",
        "no_clipping": ". . . . . r .",
        "no_clamping": ". . . . . o .",
        "no_server_momentum": ". . . . . . .",
    },
}


@pytest.mark.parametrize("name", PAPER_COLOURS)
def test_the_colours_are_the_paper_s(name):
    rows = [row for row in read_table(name) if row.get("dataset", "cifar10") == "cifar10"]
    best = max(float(row["f1"]) for row in rows)
    letters = {"collapsed": "r", "severe": "o", "noticeable": "y", "fine": "."}
    found: dict[str, list[str]] = {}
    for row in rows:
        line = found.setdefault(row.get("aggregator") or row["component_removed"], [])
        line.append(letters[verdict(float(row["f1"]), best)])
    assert {label: " ".join(line) for label, line in found.items()} == PAPER_COLOURS[name]


def test_nothing_is_fine_where_all_is_zero():
    assert verdict(0.0, 0.0) == "collapsed"


TINY = TableOfRuns(
    name="tiny",
    title=lambda rows, columns: f"{counted(len(rows), 'rule')} × {counted(len(columns), 'attack')}",
    row_name="aggregator",
    column_name="attack",
    rows={"fedavg": {"aggregator": "fedavg"}, "cwmed": {"aggregator": "cwmed"}},
    columns={"ipm": {"attack": "ipm"}, "none": {"attack": "none"}},
    base={"rounds": 2, "train_images": 60, "test_images": 40},
    paper={("fedavg", "ipm"): 0.02},
)


def test_scores_are_read_off_the_runs_and_stand_beside_the_paper_s(tmp_path):
    store = Store(tmp_path)
    request = Request(seeds=(0, 1))
    cells = TINY.cells(request)
    for cell in cells:
        for run in cell.scenarios:
            if (cell.row, run.seed) != ("cwmed", 1):  # two are missing
                simulate(run, folder=store.folder(run))
    found = outcome(TINY, store, request)
    scores = found.table.scores
    assert [len(score.values) for score in scores] == [2, 2, 1, 1]
    expected = [simulate(run).f1_last5 for run in cells[0].scenarios]
    assert list(scores[0].values) == expected
    assert scores[0].mean == pytest.approx(np.mean(expected)) and scores[2].std is None
    assert scores[0].std == pytest.approx(np.std(expected, ddof=1))
    assert scores[0].runs == tuple(run.id for run in cells[0].scenarios) and len(scores[2].runs) == 1
    rows = list(csv.DictReader(found.files["tiny.csv"].decode().splitlines()))
    assert [row["count"] for row in rows] == ["2", "2", "1", "1"] and rows[0]["paper"] == "0.02"
    assert float(rows[0]["f1"]) == pytest.approx(np.mean(expected), abs=1e-4) and rows[3]["paper"] == ""
    picture = pixels(found.files["tiny-rounds.png"])
    assert (np.asarray([0, 0x72, 0xB2]) == picture).all(axis=-1).any(), "there is no line of the first colour"


def test_trust_over_the_rounds(tmp_path):
    concordance = dataclasses.replace(TABLES["concordance"], base=TINY.base)
    store = Store(tmp_path)
    run = concordance.cells(Request())[1].scenarios[0]
    history = simulate(run, folder=store.folder(run))
    table, files = (found := outcome(concordance, store)).table, found.files
    assert table.rows == ["honest", "Byzantine"] and not table.coloured
    by_place = table.by_place()
    honest = [line["rho"] for line in history.audit if not line["byzantine"]]
    assert by_place["honest", "ipm"].mean == pytest.approx(np.mean(honest))
    assert by_place["honest", "fang"].mean is None
    rows = list(csv.DictReader(files["concordance.csv"].decode().splitlines()))
    assert {row["attack"] for row in rows} == {"ipm"} and len(rows) == 2 * 5
    assert [row["byzantine"] for row in rows[:5]] == ["False"] * 3 + ["True"] * 2
    picture = pixels(files["concordance.png"]).astype(int)
    assert (picture[..., 0] - picture[..., 1] > 80).any() and (picture[..., 1] - picture[..., 0] > 60).any()


def test_similarity_by_hand():
    honest, byzantine = torch.tensor([1.0, -2.0, 3.0, 0.0]), torch.tensor([-2.0, 4.0, 1.0, 5.0])
    found = Similarity("mine", honest, byzantine).measures()
    assert found["norm_honest_mean"] == pytest.approx(14**0.5) and found["norm_byzantine"] == pytest.approx(46**0.5)
    assert found["cosine"] == pytest.approx((-2 - 8 + 3) / (14 * 46) ** 0.5)
    assert found["pearson"] == pytest.approx(np.corrcoef(honest, byzantine)[0, 1])
    # Six pairs of coordinates: one is ordered alike, five are not.
    h, b = honest.tolist(), byzantine.tolist()
    order = [np.sign((h[i] - h[j]) * (b[i] - b[j])) for i in range(4) for j in range(i)]
    assert found["kendall"] == pytest.approx(sum(order) / 6)
    assert found["concordance"] == pytest.approx((-1 - 1 + 1 + 0) / 4)


def test_similarity_of_real_updates(tmp_path):
    experiment = dataclasses.replace(TABLES["similarity"], base={**TINY.base, "rounds": 1})
    store = Store(tmp_path)
    nothing = outcome(experiment, store)
    assert nothing.table.scores == []
    assert nothing.files.keys() == {"similarity.json", "similarity.csv", "similarity-values.csv"}
    (run,) = experiment.runs(Request())
    simulate(run, folder=store.folder(run))
    found = outcome(experiment, store)
    files = found.files
    assert found.table.by_place()["ipm", "cosine"].mean == pytest.approx(-1, abs=1e-4)
    rows: dict[str, dict[str, str]] = {}
    for line in csv.DictReader(files["similarity.csv"].decode().splitlines()):
        rows.setdefault(line["attack"], {})[line["measure"]] = line["likeness"]
    assert rows.keys() == {"alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax"}
    assert float(rows["ipm"]["cosine"]) == pytest.approx(-1, abs=1e-4)
    assert float(rows["scaling"]["norm_byzantine"]) == pytest.approx(
        10 * float(rows["scaling"]["norm_honest_mean"]), rel=1e-3
    )
    assert float(rows["fang"]["concordance"]) < -0.7 < 0.3 < float(rows["mimic"]["concordance"])
    assert len({row["norm_honest_mean"] for row in rows.values()}) == 1  # the same honest updates in each
    assert files["similarity.png"][:4] == b"\x89PNG"
    values = list(csv.DictReader(files["similarity-values.csv"].decode().splitlines()))
    for attack in rows:
        of_attack = [line for line in values if line["attack"] == attack]
        assert all(start["to"] == end["from"] for start, end in itertools.pairwise(of_attack))
        for who in ("honest", "byzantine"):
            assert sum(int(line[who]) for line in of_attack) == coordinates("digits"), "every value is counted once"


def test_the_heat_map_shows_collapse_in_red():
    def red(mean: float) -> int:
        picture = pixels(png(heat_map(small_table([Score("a", "8", (mean,)), Score("b", "8", (0.9,))]))))
        return int((picture == np.asarray([0xD9, 0x4D, 0x4D])).all(axis=-1).sum())

    assert red(0.05) > 5000 and red(0.88) < 500  # what is left is the legend's


def small_table(scores: list[Score]) -> ResultTable:
    return ResultTable(title="small", row_name="rule", column_name="clients", metric="f1", scores=scores)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_times_of_the_rules(tmp_path):
    timing = Timing(name="timing", title=EXPERIMENTS["timing"].title, rules=("fedavg", "krum"), clients=(4, 8))
    assert timing.runs(Request()) == []
    steps: list[tuple[str, int, int]] = []
    found = timing.outcome(Request(), Store(tmp_path), Machine(), lambda *step: steps.append(step))
    assert found.table.rows == ["fedavg", "krum"] and found.table.columns == ["4", "8"] and not found.table.coloured
    assert all(score.mean is not None and 0 < score.mean < 60 for score in found.table.scores)
    assert not found.table.has_paper, "the paper's times are for another model"
    assert steps[0] == ("torch.mean, 4 clients", 0, 6) and steps[-1] == ("pictures", 6, 6)
    rows = list(csv.DictReader(found.files["timing.csv"].decode().splitlines()))
    assert [(row["aggregator"], row["clients"]) for row in rows[:2]] == [("fedavg", "4"), ("fedavg", "8")]
    assert found.files["timing.png"][:4] == b"\x89PNG"


def test_updates_are_as_long_as_the_preset_s_model():
    convolutions = (1 * 9 + 1) * 16 + (16 * 9 + 1) * 32
    assert coordinates("digits") == convolutions + (32 * 2 * 2 + 1) * 64 + (64 + 1) * 10
    # As published for a thousand classes, 11,689,512: less the 990 classes that CIFAR-10 does not have.
    assert coordinates("paper-cifar10") == 11_689_512 - 990 * 513


def words_of(figure: Any) -> str:
    """All that is written on a picture."""
    return " | ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())


def kept_of(name: str, rows: int, seeds: tuple[int, ...] = (0,), preset: str = "digits") -> dict[str, bytes]:
    """The numbers of an experiment as its folder would have them, of its first rows, without a run."""
    experiment = TABLES[name].at(preset)
    experiment = experiment.only(list(experiment.rows)[:rows])
    request = Request(preset, seeds)
    about = About.of(experiment.runs(request), seeds)
    places = list(itertools.product(experiment.rows, experiment.columns))
    scores = [
        Score(*place, tuple((index * 7 + seed) % 10 / 10 for seed in seeds), experiment.paper.get(place))
        for index, place in enumerate(places)
    ]
    heading = [experiment.row_name, experiment.column_name, "seed", "round", experiment.metric]
    courses = [
        dict(zip(heading, (*place, seed, number, number / 50), strict=True))
        for place in places
        for seed in seeds
        for number in range(1, 41)
    ]
    return {
        f"{name}.json": about.written(),
        f"{name}.csv": as_csv(list(experiment.table(about, scores).lines())),
        f"{name}-rounds.csv": as_csv(courses),
    }


def test_a_picture_says_what_it_shows_and_on_what():
    figures = TABLES["main"].figures(kept_of("main", 2, (3, 4, 5)))
    table, rounds = (words_of(figures[name]) for name in ("main.png", "main-rounds.png"))
    assert "2 rules under 8 attacks" in table and "2 rules under 8 attacks" in rounds
    for words in (table, rounds):
        assert "digits" in words and "5 clients, 2 Byzantine" in words and "dirichlet alpha=1" in words
        assert "compare the paper's Figure 3" in words
    assert "F1, mean of the last 5 of 40 rounds" in table and "mean ± standard deviation of 3 seeds" in table
    assert "mean of the last" not in rounds and "F1 after each round" in rounds and "seed 3" in rounds
    other = words_of(TABLES["main"].figures(kept_of("main", 1, preset="fashion_mnist"))["main.png"])
    assert "1 rule under" in other and "fashion_mnist, 10,000 training images" in other and "seed 0" in other
    assert "of 15 rounds" in other and "collapsed (below 19%)" in other and "noticeable (below 79%)" in other


def test_a_row_that_is_a_number_is_named():
    byzantine = TABLES["byzantine-count"].figures(kept_of("byzantine-count", 3))
    assert all("7 Byzantine" in words_of(figure) for figure in byzantine.values())
    assert "FedSECA with 2 to 7 Byzantine clients under 8 attacks" in words_of(byzantine["byzantine-count.png"])
    clients = TABLES["client-count"].figures(kept_of("client-count", 6))
    assert all("200 clients" in words_of(figure) for figure in clients.values())
    assert "2 rules with 5 to 200 clients" in words_of(clients["client-count.png"])
    assert "accuracy, mean of the last 10 of 40 rounds" in words_of(clients["client-count.png"])


def test_seeds_that_are_not_done_are_told():
    about = About((0, 1, 2), {"dataset": {"name": "digits"}, "rounds": 2})
    some = [Score("a", "x", (0.1, 0.2, 0.3)), Score("b", "x", ())]
    assert about.seeds_of(some) == "mean ± standard deviation of 0 to 3 seeds"
    assert about.seeds_of(some[1:]) == "0 seeds" and about.seeds_of([Score("a", "x", (0.1,))]) == "1 seed"
    assert about.federation == ["digits"]


def lone_panels() -> Iterator[tuple[str, Any]]:
    """Pictures with few and with many rows, long and short words."""
    for name, table in TABLES.items():
        if name not in ("concordance", "similarity"):
            for rows in {3, 12} if name == "field" else {1, 2, len(table.rows)}:
                for file, figure in table.figures(kept_of(name, rows, (0, 1))).items():
                    yield f"{file} with {rows} rows", figure
    phrases = ["a rather long phrase about how it was measured"] * 4
    for count in (1, 2, 7, 8):
        attacks = [f"attack{index}" for index in range(count)]
        lines = [
            {"attack": attack, "round": str(number), "client": client, "byzantine": client, RHO.name: "0.5"}
            for attack, number, client in itertools.product(attacks, (1, 2, 3), ("True", "False"))
        ]
        yield f"trust, {count} panels", trust("Title of some length", phrases, lines, RHO)
        text = "length: honest 10.58, Byzantine 20.67\ncosine −0.85 · Pearson −0.94 · Kendall −0.76 · signs −0.50"
        histograms = [Histogram(attack, text, [-0.01, 0.0, 0.01], [3, 40], [500, 6000]) for attack in attacks]
        yield f"distributions, {count} panels", distributions("Title of some length", phrases, histograms)
        rules = [f"a_rule_with_a_name_{index}" for index in range(4 * count)]
        of_rules = [Curve(rule, {4: 0.001, 256: 2000.0}, {4: 1.0}, bold=rule == rules[0]) for rule in rules]
        yield f"curves, {count} lines", curves("Title of some length", phrases, of_rules, "seconds", "8 cores")


def test_nothing_is_cut_off_and_nothing_meets():
    for name, figure in lone_panels():
        figure.draw_without_rendering()
        headings = [text.get_window_extent() for text in figure.texts]
        legends = [legend.get_window_extent() for legend in figure.legends]
        panels = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]  # with their words
        whole = figure.bbox.padded(1)
        for box in (*headings, *legends, *panels):
            assert whole.x0 <= box.x0 and whole.y0 <= box.y0 and box.x1 <= whole.x1 and box.y1 <= whole.y1, name
        for one, other in itertools.combinations([*headings, *legends, *panels], 2):
            assert not one.padded(-1).overlaps(other.padded(-1)), f"{name}: {one} meets {other}"


def test_every_panel_that_nothing_stands_below_has_numbers_below_it():
    figure = TABLES["client-count"].figures(kept_of("client-count", 5))["client-count-rounds.png"]
    figure.draw_without_rendering()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == 5
    numbered = [any(label.get_visible() and label.get_text() for label in panel.get_xticklabels()) for panel in panels]
    assert numbered == [False, False, True, True, True]


def test_eight_lines_differ_in_colour_and_marker():
    scores = [Score("a", f"attack{index}", (0.5,)) for index in range(8)]
    same = {("a", score.column): [0.5] * 40 for score in scores}
    (panel,) = trajectories(small_table(scores), same).axes
    assert len({line.get_color() for line in panel.lines}) == len({line.get_marker() for line in panel.lines}) == 8
    starts = [line.get_markevery() for line in panel.lines]
    assert len(set(starts)) == 8, "markers of lines that lie on each other hide each other"


def test_pictures_are_drawn_again_from_the_kept_numbers_alone(tmp_path):
    store = Store(tmp_path)
    for experiment in (TINY, dataclasses.replace(TABLES["concordance"], base=TINY.base)):
        for run in experiment.runs(Request()):
            simulate(run, folder=store.folder(run))
        files = outcome(experiment, store).files
        pictures = {name: content for name, content in files.items() if name.endswith(".png")}
        again = experiment.pictures({name: content for name, content in files.items() if name not in pictures})
        assert pictures and again == pictures
    lines = list(csv.DictReader(outcome(TINY, store).files["tiny-rounds.csv"].decode().splitlines()))
    assert len(lines) == 4 * 2 and list(lines[0]) == ["aggregator", "attack", "seed", "round", "f1"]
    history = store.done(TINY.cells(Request())[0].scenarios[0])
    assert history is not None
    assert [float(line["f1"]) for line in lines[:2]] == pytest.approx(history.f1, rel=1e-3)


KEPT = sorted(file for file in RESULTS.glob("*/*.csv") if file.stem in TABLES)


@pytest.mark.parametrize("file", KEPT, ids=[file.parent.name for file in KEPT])
def test_every_published_table_can_be_drawn_again(file):
    kept = {each.name: each.read_bytes() for each in file.parent.iterdir() if each.suffix in (".csv", ".json")}
    figures = TABLES[file.stem].figures(kept)
    preset = (
        file.parent.name.removeprefix(f"{file.stem}-")
        .removeprefix("one_voice-")
        .removesuffix("-seeds")
        .removesuffix("-600")
    )
    data = PRESETS[preset].get("dataset", "digits")
    assert all(data in words_of(figure) for figure in figures.values())
    assert file.stem == "similarity" or f"{file.stem}.png" in figures


def test_there_are_published_tables():
    assert len(KEPT) >= 9


def test_a_value_that_is_no_number_has_no_deviation():
    assert Score("fedavg", "ipm", (0.5, math.nan)).std is None and Score("fedavg", "ipm", (0.5, 0.7)).std
