"""The example app in a federation as it is deployed: malicious sites, a server that is killed, a site that vanishes.

Each message to a site starts a new process that imports torch, so a round takes seconds: the runs are short, and all
tests look at the same four. The second is the first one once more, killed; the third and fourth go on from there.
"""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedseca import Server
from fedseca.audit import AuditError, Record, read_audit
from tests.deployment.federation import HOST, Config, Federation, Run
from tests.deployment.processes import Address, Process, listening, running
from tests.e2e.command import run_cold

APP = Path(__file__).parents[2] / "examples" / "flower-app"
SITES = ("", "nan", "", "backwards")
"""What each of them does; the honest have nothing to say about it."""
HONEST, NAN, BACKWARDS = (0, 2), 1, 3
ROUNDS, MORE_ROUNDS = 2, 4
PATIENCE, IMPATIENCE = 120.0, 30.0
"""Seconds for the answers of a round: where all will come, and where one will not, on a machine that is quick."""
LONGEST = 900
"""Seconds that a run may take on a machine with other work."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    configs: list[Config] = [
        {"partition-id": site, "num-partitions": len(SITES), "byzantine": word} for site, word in enumerate(SITES)
    ]
    with Federation(tmp_path_factory.mktemp("federation"), configs) as federation:
        yield federation


class Outcome(NamedTuple):
    """What a run left behind, read before another goes on with its folder."""

    run: Run
    seconds: float
    audit: list[Record]
    f1: dict[int, float]
    model: dict[str, Tensor]

    def lines(self, node: str) -> list[Record]:
        return [record for record in self.audit if record["client"] == node]


def start(federation: Federation, name: str, folder: Path, rounds: int, timeout: float = PATIENCE) -> Run:
    """The folder is that of audit and checkpoint; what comes out at the end is in one for each run."""
    folders = {"audit_dir": str(folder), "checkpoint_dir": str(folder), "output_dir": str(folder / name)}
    return federation.run(APP, name, num_server_rounds=rounds, timeout=timeout, **folders)


def outcome(run: Run, folder: Path) -> Outcome:
    began = time.monotonic()
    run.until_ended(LONGEST)
    output = folder / run.name
    assert (output / "model.safetensors").exists(), run.log
    f1 = json.loads((output / "f1.json").read_text())
    return Outcome(
        run=run,
        seconds=time.monotonic() - began,
        audit=read_audit(folder / "audit.jsonl"),
        f1={int(number): score for number, score in f1.items()},
        model=load_file(output / "model.safetensors"),
    )


@pytest.fixture(scope="module")
def unbroken(federation: Federation) -> Outcome:
    folder = federation.folder / "first"
    return outcome(start(federation, "unbroken", folder, ROUNDS), folder)


class Killed(NamedTuple):
    run: Run
    folder: Path
    audit: list[Record]
    """At the moment when its ServerApp was killed."""
    addresses: set[Address]
    """Where all that ran just before listened."""


@pytest.fixture(scope="module")
def killed(federation: Federation, unbroken: Outcome) -> Killed:
    """The unbroken run once more, but its ServerApp is killed while the sites work on the second round."""
    folder = federation.folder / "second"
    run = start(federation, "killed", folder, ROUNDS)
    run.until_said(f"[ROUND 2/{ROUNDS}]", LONGEST)
    federation.until(lambda: federation.processes("flwr-clientapp"), LONGEST, "the sites to be at work")
    addresses = listening([process.pid for process in federation.processes()])
    federation.kill_serverapp()
    federation.kill(run.name)  # it would wait a minute for more to be said
    return Killed(run, folder, read_audit(folder / "audit.jsonl"), addresses)


@pytest.fixture(scope="module")
def resumed(federation: Federation, killed: Killed) -> Outcome:
    return outcome(start(federation, "resumed", killed.folder, ROUNDS), killed.folder)


@pytest.fixture(scope="module")
def bereft(federation: Federation, unbroken: Outcome, killed: Killed, resumed: Outcome) -> Outcome:
    """Two rounds more; in the first of them the power fails at a site."""
    patience = max(IMPATIENCE, 1.2 * unbroken.seconds / ROUNDS)  # the others must come, however busy the machine is
    run = start(federation, "bereft", killed.folder, MORE_ROUNDS, patience)
    run.until_said(f"[ROUND 1/{MORE_ROUNDS - ROUNDS}]", LONGEST)
    federation.kill(f"supernode{BACKWARDS}")
    return outcome(run, killed.folder)


def test_the_superlink_is_known_by_its_certificate_alone(federation):
    assert federation.handshake(ssl.create_default_context(cafile=federation.certificate)) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        federation.handshake(ssl.create_default_context())


def test_malicious_sites_are_named_and_the_model_is_good(federation, unbroken):
    nan, backwards = (unbroken.lines(federation.node_ids[site]) for site in (NAN, BACKWARDS))
    assert [line["round"] for line in nan] == [line["round"] for line in backwards] == [*range(1, ROUNDS + 1)]
    assert all(line["verdict"] == "left out" and "NaN" in line["reason"] for line in nan)
    assert all(line["verdict"] == "suspect" for line in backwards)
    for site in HONEST:
        lines = unbroken.lines(federation.node_ids[site])
        assert len(lines) == ROUNDS and all(line["verdict"] == "used" for line in lines)
    assert unbroken.f1[ROUNDS] >= 0.7


def test_the_audit_on_the_disk_is_whole_and_shows_what_was_changed(federation, unbroken, tmp_path):
    audit = federation.folder / "first" / "audit.jsonl"
    verified = run_cold("audit", "verify", audit)
    assert verified.returncode == 0, verified.stderr
    changed = tmp_path / "audit.jsonl"
    changed.write_text(audit.read_text().replace('"verdict":"suspect"', '"verdict":"used"', 1))
    with pytest.raises(AuditError):
        read_audit(changed)


def test_the_model_is_that_of_a_plain_loop_and_fedavg_would_have_lost_it(federation, unbroken, monkeypatch):
    monkeypatch.syspath_prepend(APP)
    expected, f1 = plain_loop("fedseca", federation.node_ids)
    assert_same(unbroken.model, expected)
    assert f1 == pytest.approx(unbroken.f1[ROUNDS])
    _, f1_of_fedavg = plain_loop("fedavg", federation.node_ids)
    assert f1_of_fedavg < 0.2


def plain_loop(rule: str, node_ids: list[str]) -> tuple[dict[str, Tensor], float]:
    """The model after the unbroken run and its F1, from the app's own parts and without Flower."""
    from robustapp import byzantine, task

    server = Server(rule)
    model = task.make_model()
    sites = sorted(range(len(SITES)), key=lambda site: int(node_ids[site]))
    for _ in range(ROUNDS):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        sent = []
        for site in sites:
            model.load_state_dict(before)
            task.train(model, *task.load_training(site, len(SITES)))
            after = {name: value.clone() for name, value in model.state_dict().items()}
            sent.append(byzantine.DEEDS[SITES[site]](before, after))
        model.load_state_dict(server.aggregate(sent, [node_ids[site] for site in sites], before=before).model)
    return model.state_dict(), task.macro_f1(model)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_a_killed_server_goes_on_with_the_next_round_to_the_same_model(unbroken, killed, resumed):
    assert {line["round"] for line in killed.audit} == {1}
    assert resumed.audit[: len(killed.audit)] == killed.audit  # the first round was not played again
    assert_same(resumed.model, unbroken.model)
    assert verdicts(resumed) == verdicts(unbroken)


def verdicts(outcome: Outcome) -> list[Record]:
    """The audit but for when it was written, and by which run."""
    return [{key: value for key, value in line.items() if key not in ("time", "run")} for line in outcome.audit]


def test_the_run_goes_on_without_a_site_that_vanishes(federation, resumed, bereft):
    assert bereft.audit[: len(resumed.audit)] == resumed.audit
    lost = [line for line in bereft.lines(federation.node_ids[BACKWARDS]) if line["round"] > ROUNDS]
    # It is asked, and nothing comes, until the SuperLink itself misses it; from then on it is not asked.
    assert lost and lost[0]["round"] == ROUNDS + 1
    assert all(line["verdict"] == "no answer" and line["reason"] for line in lost)
    for site in HONEST:
        lines = bereft.lines(federation.node_ids[site])
        assert len(lines) == MORE_ROUNDS and all(line["verdict"] in ("used", "suspect") for line in lines)
    assert not any("void" in line for line in bereft.audit)
    assert bereft.f1[MORE_ROUNDS] >= 0.8


def test_what_flower_itself_says_of_the_runs(federation, unbroken, killed, resumed, bereft):
    statuses = federation.statuses()
    assert [statuses[each.run.id] for each in (unbroken, resumed, bereft)] == ["finished:completed"] * 3
    assert statuses[killed.run.id] == "finished:failed"


def test_nothing_listens_but_on_loopback(killed):
    assert len(killed.addresses) == 1 + len(SITES)
    assert all(address.is_loopback for address, _ in killed.addresses), killed.addresses


def test_nothing_is_left(federation, bereft):
    assert marked(federation)
    federation.end()
    assert not marked(federation)


def marked(federation: Federation) -> list[Process]:
    """All that runs with an address or a folder of this federation on its command line, whoever started it."""
    marks = [str(federation.folder), *(f"{HOST}:{port}" for port in federation.ports)]
    return [process for process in running() if any(mark in process.command for mark in marks)]
