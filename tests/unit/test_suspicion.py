"""Who is suspect: one pure function, and everybody who shows what it says."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fedseca
from fedseca.aggregators.fedavg import FedAvg
from fedseca.audit import read_audit
from fedseca.errors import ParameterError
from fedseca.federation import read_history
from fedseca.suspicion import Thresholds, suspicion
from tests.e2e.command import run

IDS = ("a", "b", "c")


# --- the function ------------------------------------------------------------------------------------------------


def test_nobody_stands_out():
    assert suspicion(IDS, [1.0, 2.0, 3.0], [0.3, 0.4, 0.3]) == {}


@pytest.mark.parametrize(
    ("weight", "suspect"), [(0.0, True), (0.05, True), (0.0999, True), (0.1001, False), (0.3, False), (0.9, False)]
)
def test_a_third_of_the_median_weight_or_less(weight, suspect):
    found = suspicion(IDS, [1.0] * 3, [0.3, weight, 0.3], thresholds=Thresholds(weight=1 / 3))
    assert found == ({"b": f"weight {weight:.3g}, where the median is 0.3"} if suspect else {})


def test_the_bound_on_weights_belongs_to_it():
    """In numbers that are exact: the default is a third, of a median of 3 that is 1."""
    assert list(suspicion(IDS, [1.0] * 3, [3.0, 1.0, 3.0])) == ["b"]
    assert suspicion(IDS, [1.0] * 3, [3.0, 1.0 + 2**-52, 3.0]) == {}


@pytest.mark.parametrize(("norm", "suspect"), [(0.0, False), (9.99, False), (10.0, True), (1e300, True)])
def test_five_times_the_median_norm_or_more(norm, suspect):
    found = suspicion(IDS, [2.0, 2.0, norm], None)
    assert found == ({"c": f"norm {norm:.3g}, where the median is 2"} if suspect else {})


def test_without_weights_a_low_one_says_nothing():
    assert suspicion(IDS, [1.0] * 3, [1.0, 0.0, 1.0]) != {}
    assert suspicion(IDS, [1.0] * 3, None) == {}


def test_whom_the_rule_names_is_suspect_whatever_its_numbers_are():
    assert suspicion(IDS, [1.0] * 3, [0.3] * 3, named=("c",)) == {"c": "the rule calls it malicious"}
    assert suspicion(IDS, [1.0] * 3, None, named={"a", "c"}).keys() == {"a", "c"}
    assert suspicion(IDS, [1.0, 1.0, 99.0], [0.5, 0.5, 0.0], named=("c",)) == {"c": "the rule calls it malicious"}
    assert suspicion(IDS, [1.0] * 3, None, named=("nobody",)) == {}  # it is not among the clients


def test_the_first_reason_that_holds_is_told():
    assert suspicion(IDS, [1.0, 1.0, 99.0], [0.5, 0.5, 0.0]) == {"c": "weight 0, where the median is 0.5"}


def test_the_suspects_are_in_the_order_of_the_clients():
    found = suspicion("dcba", [1.0, 9.0, 1.0, 1.0], [0.4, 0.3, 0.0, 0.4], named=("d",))
    assert list(found) == ["d", "c", "b"]


def test_of_no_clients_none_is_suspect():
    assert suspicion((), [], []) == suspicion((), [], None) == {}


def test_one_client_is_its_own_median():
    assert suspicion(("a",), [7.0], [1.0]) == {}


def test_where_the_median_is_zero_nothing_stands_out_from_it():
    """Most weigh nothing, or most sent nothing: that the others are unlike them says nothing bad of these."""
    assert suspicion(IDS, [0.0, 0.0, 5.0], [0.0, 0.0, 1.0]) == {}
    assert suspicion(IDS, [0.0] * 3, [0.0] * 3) == {}
    assert suspicion(IDS, [0.0, 0.0, 5.0], [0.5, 0.0, 0.5]) == {"b": "weight 0, where the median is 0.5"}


def test_of_an_even_number_the_median_is_the_mean_of_the_middle_two():
    assert suspicion("abcd", [1.0, 1.0, 3.0, 10.0], None) == {"d": "norm 10, where the median is 2"}
    assert suspicion("abcd", [1.0, 1.0, 3.0, 9.99], None) == {}


def test_thresholds_are_declared():
    assert Thresholds().values() == {"weight": 1 / 3, "norm": 5.0}
    for name, declared in Thresholds.hyperparameters().items():
        assert declared.help
        for bad in declared.bad_values():
            with pytest.raises(ParameterError, match=f"suspicion: {name} must be"):
                Thresholds(**{name: bad})
    for bad in ({"weight": 1.0}, {"weight": -0.1}, {"norm": 1.0}, {"norm": 0.5}, {"norm": torch.inf}):
        with pytest.raises(ParameterError):
            Thresholds(**bad)


def test_thresholds_are_given_by_name_and_stay():
    with pytest.raises(TypeError):
        Thresholds(0.5, 5.0)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        Thresholds().norm = 2.0  # type: ignore[misc]


def test_other_thresholds():
    strict = Thresholds(weight=0.9, norm=1.5)
    assert suspicion(IDS, [1.0, 1.0, 1.5], None, thresholds=strict).keys() == {"c"}
    assert suspicion(IDS, [1.0] * 3, [0.4, 0.36, 0.4], thresholds=strict).keys() == {"b"}
    never = Thresholds(weight=0.0, norm=1e300)
    assert suspicion(IDS, [1.0, 1.0, 1e9], [0.4, 1e-9, 0.4], thresholds=never) == {}
    assert suspicion(IDS, [1.0] * 3, [0.4, 0.0, 0.4], thresholds=never).keys() == {"b"}


def test_nothing_is_changed():
    norms, weights, named = [1.0, 1.0, 9.0], [0.5, 0.5, 0.0], ["a"]
    suspicion(IDS, norms, weights, named)
    assert (norms, weights, named) == ([1.0, 1.0, 9.0], [0.5, 0.5, 0.0], ["a"])


# --- the server --------------------------------------------------------------------------------------------------

BAD = "site-7"


def ten() -> dict[str, torch.Tensor]:
    """Ten clients that want about the same; one sends −20 × its update."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(400, generator=generator)
    rows = {f"site-{k}": common + 0.5 * torch.randn(400, generator=generator) for k in range(10)}
    return rows | {BAD: -20 * rows[BAD]}


@pytest.mark.parametrize("rule", ["fedseca", "fedavg", "cwmed", "krum", "nnm+cwmed", "clipping+fedavg"])
def test_a_client_that_sends_minus_twenty_times_its_update_is_suspect(rule):
    rows = ten()
    out = fedseca.Server(rule).aggregate(torch.stack([*rows.values()]), [*rows])
    assert out.suspects == (BAD,) and out.suspicions.keys() == {BAD}
    records = {record["client"]: record for record in out.records()}
    assert {client: record["verdict"] for client, record in records.items()} == dict.fromkeys(rows, "used") | {
        BAD: "suspect"
    }
    assert [client for client, record in records.items() if "reason" in record] == [BAD]
    assert "where the median is" in records[BAD]["reason"] and records[BAD]["norm"] == pytest.approx(
        float(rows[BAD].norm())
    )
    verdicts = out.verdicts
    assert verdicts[BAD].kind == "suspect" and verdicts[BAD].admitted and verdicts[BAD].reason == records[BAD]["reason"]


def test_ten_that_want_about_the_same_are_no_suspects():
    """The negative control."""
    rows = ten() | {BAD: ten()[BAD] / -20}
    for rule in ("fedseca", "fedavg", "cwmed", "krum", "nnm+cwmed", "clipping+fedavg"):
        assert fedseca.Server(rule).aggregate(torch.stack([*rows.values()]), [*rows]).suspects == (), rule


def test_a_low_weight_says_nothing_where_few_are_chosen_or_the_caller_weighs():
    matrix = torch.randn(10, 50)
    assert not fedseca.make_aggregator("krum").low_weight_is_distrust
    assert fedseca.Server("krum").aggregate(matrix).suspects == ()  # nine of ten have no weight
    out = fedseca.Server("fedavg").aggregate(matrix, weights=[100] * 9 + [1])
    assert out.suspects == () and float(out.diagnostics["weight"][9]) < 0.01


class _Accuses(FedAvg):
    def aggregate(self, updates, state, rng):
        return replace(super().aggregate(updates, state, rng), suspects=("1", "7"))


def test_whom_the_rule_names_is_a_suspect_of_the_round():
    out = fedseca.Server(_Accuses()).aggregate(torch.randn(3, 50))
    assert out.suspicions == {"1": "the rule calls it malicious"}  # "7" was not there


# --- everybody who shows it --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder: Path = tmp_path_factory.mktemp("updates")
    for client, row in ten().items():
        save_file({"w": row.reshape(20, 20)}, folder / f"{client}.safetensors")
    return sorted(folder.iterdir())


def test_the_table_of_fedseca_aggregate(files, tmp_path):
    done = run("aggregate", *files, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "10 clients admitted (1 suspect), 0 left out" in done.stdout
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines() if line.startswith("│")]
    assert {row[0]: row[1] for row in rows} == dict.fromkeys(ten(), "used") | {BAD: "suspect"}
    told = [line for line in done.stdout.splitlines() if "is suspect: " in line]
    assert len(told) == 1 and told[0].startswith(f"{BAD} is suspect: weight 0, where the median is ")
    report = json.loads(run("aggregate", *files, "-o", tmp_path / "out", "--json").stdout)
    suspects = [record for record in report["clients"] if record["verdict"] == "suspect"]
    assert [record["client"] for record in suspects] == [BAD]
    assert told[0] == f"{BAD} is suspect: {suspects[0]['reason']}"


FLIPPED = ("--clients", 10, "--byzantine", 1, "--attack", "signflip", "--set", "attack.factor=20")


@pytest.fixture(scope="module")
def flipped(tmp_path_factory) -> tuple[Path, str]:
    """A run of which one of ten clients sends −20 × its update, and what was shown of it."""
    folder: Path = tmp_path_factory.mktemp("runs") / "flipped"
    done = run("run", *FLIPPED, "--rounds", 4, "--train-images", 200, "--test-images", 40, "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_audit_of_a_run(flipped):
    folder, shown = flipped
    lines = read_audit(folder / "clients.jsonl")
    assert [json.loads(line)["verdict"] for line in (folder / "clients.jsonl").read_text().splitlines()] == [
        line["verdict"] for line in lines
    ]
    of_flipper = [line for line in lines if line["client"] == "9"]
    assert [line["byzantine"] for line in of_flipper] == [True] * 4
    assert [line["verdict"] for line in of_flipper] == ["suspect"] * 4
    assert all("where the median is" in line["reason"] for line in of_flipper)
    history = read_history(folder)
    assert history.by_client()[9]["suspected"] == 4
    suspects = [sum(line["verdict"] == "suspect" for line in lines if line["round"] == n) for n in (1, 2, 3, 4)]
    assert [record["suspects"] for record in history.rounds] == suspects
    row = next(line for line in shown.splitlines() if line.startswith("│") and " 9 │ Byzantine" in line)
    assert "4/4" in row


def test_audit_show_of_a_run(flipped):
    folder, _ = flipped
    done = run("audit", "show", folder)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line]
    first = next(row for row in rows if row[0] == "9")
    assert first[:7] == ["9", "suspicious", "1", "4", "0", "0", "4"]
    assert any(
        line.startswith("9 ") and "suspicious since round 1; last reason: " in line for line in done.stdout.splitlines()
    )
    report = json.loads(run("audit", "show", folder, "--json").stdout)
    clients = {client["client"]: client for client in report["clients"]}
    assert clients["9"]["suspicious"] and clients["9"]["suspect"] == 4 and len(clients) == 10
    assert not any(clients[str(k)]["suspicious"] for k in range(9))
    assert run("audit", "verify", folder).returncode == 0


@pytest.mark.parametrize("rule", ["fedseca", "rfa", "cwmed", "huber"])
def test_honest_clients_that_share_a_voice_are_not_suspect_for_it(rule):
    """Each has a fourth of its voice's weight; a client that no voice is like still stands out."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(400, generator=generator)
    honest = common + 0.9 * torch.randn(10, 400, generator=generator)
    honest[:4] = honest[0] + 1e-3 * torch.randn(4, 400, generator=generator)
    out = fedseca.Server(f"one_voice+{rule}").aggregate(honest)
    assert len(set(out.diagnostics["voice"][:4].tolist())) == 1 and out.suspects == ()
    out = fedseca.Server(f"one_voice+{rule}").aggregate(torch.cat([honest, -20 * honest[5:6]]))
    assert out.suspects == ("10",)


class _ClaimsANorm(FedAvg):
    def aggregate(self, updates, state, rng):
        answer = super().aggregate(updates, state, rng)
        return replace(answer, diagnostics={**answer.diagnostics, "norm": torch.full((len(updates),), 9.0)})


def test_the_norm_that_was_measured_counts_whatever_a_rule_says():
    rows = torch.ones(5, 3)
    rows[4] *= -20
    out = fedseca.Server(_ClaimsANorm()).aggregate(rows)
    assert out.suspects == ("4",) and out.diagnostics["norm"][4] == pytest.approx(20 * 3**0.5)


def test_an_answer_in_the_name_of_a_client_does_not_change_its_verdict():
    rows = torch.ones(4, 3)
    rows[3] = torch.nan
    out = fedseca.Server("cwmed").aggregate(rows, client_ids=["a", "b", "c", "a"])
    assert out.verdicts["a"].kind == "used" and [i for i, _ in out.answers] == ["a", "b", "c", "a"]
