"""The paper's results as tables of runs."""

import csv
import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedseca.errors import UnknownName
from fedseca.experiments import experiment as experiments
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import Experiment, Score
from fedseca.experiments.outputs import outputs
from fedseca.experiments.paper import read_table, verdict
from fedseca.experiments.plots import heat_map, trajectories
from fedseca.experiments.similarity import Similarity
from fedseca.experiments.store import Store
from fedseca.federation import simulate


def test_the_tables_have_the_paper_s_size():
    sizes = {name: (len(each.rows), len(each.columns)) for name, each in EXPERIMENTS.items()}
    assert sizes == {
        "main": (12, 8),
        "ablation": (10, 8),
        "sensitivity": (12, 8),
        "byzantine-count": (5, 8),
        "client-count": (6, 2),
        "concordance": (1, 8),
        "similarity": (1, 1),
    }
    assert EXPERIMENTS["main"].paper["fedseca", "minmax"] > 0.5 > EXPERIMENTS["main"].paper["krum", "alie"]
    for each in EXPERIMENTS.values():
        places = {(row, column) for row in each.rows for column in each.columns}
        assert each.paper.keys() <= places, f"{each.name} lacks a row or column of the paper"


@pytest.mark.parametrize("preset", experiments.PRESETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_place_is_a_scenario_of_its_own_with_its_seed(name, preset):
    cells = EXPERIMENTS[name].cells(preset, (0, 7))
    assert all([run.seed for run in cell.scenarios] == [0, 7] for cell in cells)
    runs = EXPERIMENTS[name].runs(cells)
    # Both scans of the sensitivity hold the default, which is run once.
    assert len(runs) == 2 * (len(cells) - (8 if name == "sensitivity" else 0))
    assert [run.seed for run in runs[: len(runs) // 2]] == [0] * (len(runs) // 2)
    with pytest.raises(UnknownName, match="unknown preset 'digit'; did you mean 'digits'"):
        EXPERIMENTS[name].cells("digit")


def test_the_ablations_remove_what_they_say():
    rules = {cell.row: cell.scenarios[0].aggregator for cell in EXPERIMENTS["ablation"].cells()}
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


def test_the_colours_are_the_paper_s():
    """As its table of ablations has them: red, orange and yellow."""
    rows = read_table("ablation_f1_cifar10")
    best = max(float(row["f1"]) for row in rows)
    found = {(row["component_removed"], row["attack"]): verdict(float(row["f1"]), best) for row in rows}
    expected = {
        ("no_concordance_ratio", "ipm"): "collapsed",
        ("no_concordance_ratio", "labelflip"): "noticeable",
        ("no_coordinatewise_aggregation", "alie"): "severe",
        ("no_coordinatewise_aggregation", "labelflip"): "noticeable",
        ("no_coordinatewise_aggregation", "none"): "noticeable",
        ("no_vrs", "fang"): "severe",
        ("no_vrs", "scaling"): "collapsed",
        ("no_clipping", "none"): "fine",
        ("full", "alie"): "fine",
        ("no_sparsification", "alie"): "collapsed",
    }
    assert {place: found[place] for place in expected} == expected


TINY = Experiment(
    name="tiny",
    title="two by two",
    row_name="aggregator",
    column_name="attack",
    rows={"fedavg": {"aggregator": "fedavg"}, "cwmed": {"aggregator": "cwmed"}},
    columns={"ipm": {"attack": "ipm"}, "none": {"attack": "none"}},
    base={"rounds": 2, "train_images": 60, "test_images": 40},
    paper={("fedavg", "ipm"): 0.02},
)


def test_scores_are_read_off_the_runs_and_stand_beside_the_paper_s(tmp_path):
    store = Store(tmp_path)
    cells = TINY.cells(seeds=(0, 1))
    for cell in cells:
        for run in cell.scenarios:
            if (cell.row, run.seed) != ("cwmed", 1):  # two are missing
                simulate(run, folder=store.folder(run))
    scores = TINY.scores(cells, store)
    assert [len(score.values) for score in scores] == [2, 2, 1, 1]
    expected = [simulate(run).f1_last5 for run in cells[0].scenarios]
    assert list(scores[0].values) == expected
    assert scores[0].mean == pytest.approx(np.mean(expected)) and scores[2].std is None
    assert scores[0].std == pytest.approx(np.std(expected, ddof=1))
    rows = list(csv.DictReader(io.StringIO(TINY.as_csv(scores))))
    assert [row["seeds"] for row in rows] == ["2", "2", "1", "1"] and rows[0]["paper"] == "0.02"
    assert float(rows[0]["f1"]) == pytest.approx(np.mean(expected), abs=1e-4) and rows[3]["paper"] == ""
    picture = np.asarray(Image.open(io.BytesIO(trajectories(TINY, cells, store))).convert("RGB"))
    assert (np.asarray([31, 119, 180]) == picture).all(axis=-1).any(), "there is no line of the first colour"


def test_trust_over_the_rounds(tmp_path):
    concordance = dataclasses.replace(EXPERIMENTS["concordance"], base=TINY.base)
    store, cells = Store(tmp_path), concordance.cells()
    run = cells[1].scenarios[0]
    simulate(run, folder=store.folder(run))
    files = outputs(concordance, cells, concordance.scores(cells, store), store)
    rows = list(csv.DictReader(files["concordance.csv"].decode().splitlines()))
    assert {row["attack"] for row in rows} == {"ipm"} and len(rows) == 2 * 5
    assert [row["byzantine"] for row in rows[:5]] == ["False"] * 3 + ["True"] * 2
    picture = np.asarray(Image.open(io.BytesIO(files["concordance.png"])).convert("RGB")).astype(int)
    assert (picture[..., 0] - picture[..., 1] > 80).any() and (picture[..., 1] - picture[..., 0] > 60).any()


def test_similarity_by_hand():
    honest, byzantine = torch.tensor([1.0, -2.0, 3.0, 0.0]), torch.tensor([-2.0, 4.0, 1.0, 5.0])
    found = Similarity("mine", honest, byzantine).measures()
    assert found["norm_honest"] == pytest.approx(14**0.5) and found["norm_byzantine"] == pytest.approx(46**0.5)
    assert found["cosine"] == pytest.approx((-2 - 8 + 3) / (14 * 46) ** 0.5)
    assert found["pearson"] == pytest.approx(np.corrcoef(honest, byzantine)[0, 1])
    # Six pairs of coordinates: one is ordered alike, five are not.
    h, b = honest.tolist(), byzantine.tolist()
    order = [np.sign((h[i] - h[j]) * (b[i] - b[j])) for i in range(4) for j in range(i)]
    assert found["kendall"] == pytest.approx(sum(order) / 6)
    assert found["concordance"] == pytest.approx((-1 - 1 + 1 + 0) / 4)


def test_similarity_of_real_updates(tmp_path):
    experiment = dataclasses.replace(EXPERIMENTS["similarity"], base={**TINY.base, "rounds": 1})
    store, cells = Store(tmp_path), experiment.cells()
    run = cells[0].scenarios[0]
    simulate(run, folder=store.folder(run))
    files = outputs(experiment, cells, experiment.scores(cells, store), store)
    rows = {row["attack"]: row for row in csv.DictReader(files["similarity.csv"].decode().splitlines())}
    assert rows.keys() == {"alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax"}
    assert float(rows["ipm"]["cosine"]) == pytest.approx(-1, abs=1e-4)
    assert float(rows["scaling"]["norm_byzantine"]) == pytest.approx(
        10 * float(rows["scaling"]["norm_honest"]), rel=1e-3
    )
    assert float(rows["fang"]["concordance"]) < -0.7 < 0.3 < float(rows["mimic"]["concordance"])
    assert len({row["norm_honest"] for row in rows.values()}) == 1  # the same honest updates in each
    assert files["similarity.png"][:4] == b"\x89PNG"


def test_the_heat_map_shows_collapse_in_red():
    def red(mean: float) -> int:
        scores = [Score("fedavg", "ipm", (mean,), None), Score("cwmed", "none", (0.9,), None)]
        picture = np.asarray(Image.open(io.BytesIO(heat_map(TINY, scores))).convert("RGB"))
        return int((picture == np.asarray([0xD9, 0x4D, 0x4D])).all(axis=-1).sum())

    assert red(0.05) > 500 and red(0.88) == 0
