"""`fedseca run` as people and programs use it; what the rules and attacks do to a real training."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedseca
from fedseca.federation import read_history
from tests.e2e.command import PATIENCE, Command, run, run_each
from tests.unit.run_folders import as_format_1

ROOT = Path(__file__).parents[2]
QUICK = ("--rounds", 3, "--train-images", 100, "--test-images", 60)
# A training that is done in seconds: fewer and larger steps than the default.
FAST: dict[str, Any] = {"rounds": 14, "learning_rate": 4e-3, "batch_size": 16}
ATTACKS = ("alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax", "none")


@pytest.mark.parametrize("attack", ATTACKS)
def test_fedseca_learns_the_digits_under_every_attack_of_the_paper(attack):
    history = fedseca.simulate(fedseca.Scenario(aggregator="fedseca", attack=attack, **FAST))
    assert history.f1_last5 >= (0.65 if attack == "mimic" else 0.85)


@pytest.mark.parametrize("attack", ["fang", "minmax"])
def test_negative_control_fedavg_collapses(attack):
    history = fedseca.simulate(fedseca.Scenario(aggregator="fedavg", attack=attack, **FAST))
    assert history.f1_last5 < 0.2


def test_negative_control_fedavg_learns_when_nobody_attacks():
    assert fedseca.simulate(fedseca.Scenario(aggregator="fedavg", attack="none", **FAST)).f1_last5 >= 0.85


def test_what_a_person_sees(tmp_path):
    done = run("run", *QUICK, "-o", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "is guaranteed against" not in shown
    assert "fedseca under ipm on digits: 5 clients, 2 of them Byzantine (3, 4), 3 rounds" in shown
    assert "who has how many samples of each class" in shown
    assert headings(done.stdout) == ["client", "truth", "suspect", "norm", "weight", "trust ρ", "clip", "adopted"]
    assert shown.count("Byzantine │") == 2 and shown.count("honest │") == 3
    score = read_history(tmp_path / "mine").f1_last5
    assert f"{score:.3f} (mean of the last 3 rounds)" in shown
    assert f"written to {tmp_path / 'mine'}" in shown
    assert any(bar in done.stdout for bar in "▁▂▃▄▅▆▇")


def headings(shown: str) -> list[str]:
    """Over the columns of the table of clients."""
    line = next(line for line in shown.splitlines() if line.startswith("┃ client"))
    return [heading.strip() for heading in line.strip("┃").split("┃")]


def test_what_a_program_reads(tmp_path):
    done = run("run", *QUICK, "-o", tmp_path / "mine", "--json")
    report = json.loads(done.stdout)
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert result.items() <= report.items() and report["folder"] == str(tmp_path / "mine")
    assert [client["byzantine"] for client in report["clients"]] == [False] * 3 + [True] * 2
    assert all(client["rejected"] == 0 and client["rho"] is not None for client in report["clients"])


def test_every_option_arrives(tmp_path):
    options = {
        "aggregator": "krum",
        "attack": "alie",
        "dataset": "digits",
        "partition": "shards",
        "model": "cnn",
        "clients": 7,
        "byzantine": 1,
        "byzantine_clients": "3",
        "rounds": 2,
        "local_epochs": 2,
        "batch_size": 16,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "server_learning_rate": 0.5,
        "participation": 0.9,
        "dropout": 0.1,
        "buffers": "aggregate",
        "precision": "fp16",
        "train_images": 90,
        "test_images": 30,
        "root_samples": 10,
        "seed": 5,
    }
    assert options.keys() == fedseca.Scenario.hyperparameters().keys()
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    parts = ["--set", "attack.strength=0.5", "--set", "partition.per_client=3", "--set", "model.batch_norm=true"]
    done = run("run", *words, *parts, "-o", tmp_path / "mine", ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
    assert done.returncode == 0, done.stderr
    expected = fedseca.Scenario.of(
        options
        | {
            "attack": {"name": "alie", "strength": 0.5},
            "partition": {"name": "shards", "per_client": 3},
            "model": {"name": "cnn", "batch_norm": True},
        }
    )
    assert read_history(tmp_path / "mine").scenario == expected


def test_short_names_and_chains_arrive(tmp_path):
    parts = ("--set", "nnm.num_byzantine=1", "--set", "strength=2", "--set", "rule.momentum.beta=0.25")
    done = run("run", *QUICK, "--rule", "nnm+cwmed+momentum", *parts, "-o", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    assert "nnm+cwmed+momentum under ipm on digits" in done.stdout and "neighbours" in done.stdout
    scenario = read_history(tmp_path / "mine").scenario
    assert scenario.aggregator.values() == {"nnm.num_byzantine": 1, "momentum.beta": 0.25}
    assert scenario.attack.strength == 2.0
    config = tmp_path / "mine.toml"
    config.write_text('rule = "nnm+cwmed+momentum"\nrounds = 1\ntrain_images = 100\n')
    done = run("run", "--config", config, *parts, "-o", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert read_history(tmp_path / "again").scenario.aggregator == scenario.aggregator
    config.write_text(
        'rounds = 1\ntrain_images = 100\n[aggregator]\nname = "nnm+cwmed+momentum"\n'
        "nnm.num_byzantine = 1\nmomentum = { beta = 0.25 }\n"
    )
    done = run("run", "--config", config, "-o", tmp_path / "table")
    assert done.returncode == 0, done.stderr
    assert read_history(tmp_path / "table").scenario.aggregator == scenario.aggregator


def test_a_config_file_and_what_is_put_over_it(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('rounds = 2\ntrain_images = 100\nlearning_rate = 1\n[attack]\nname = "ipm"\nstrength = 2\n')
    done = run("run", "--config", config, "--rounds", 1, "--set", "attack.jitter=0", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    scenario = read_history(tmp_path / "run").scenario
    assert (scenario.rounds, scenario.train_images, scenario.learning_rate) == (1, 100, 1.0)
    assert (scenario.attack.strength, scenario.attack.jitter) == (2.0, 0.0)
    # The same name on the command line leaves the file's table as it is; without a name it refines the default.
    config.write_text(
        'rounds = 1\ntrain_images = 100\n[attack]\nstrength = 2\n[aggregator]\nname = "cwtm"\ntrim = 0.4\n'
    )
    assert run("run", "--config", config, "--aggregator", "cwtm", "-o", tmp_path / "same").returncode == 0
    scenario = read_history(tmp_path / "same").scenario
    assert (scenario.aggregator.trim, scenario.attack.name, scenario.attack.strength) == (0.4, "ipm", 2.0)
    # The config that a run wrote is a config again; another attack on the command line leaves the file's behind.
    again = run("run", "--config", tmp_path / "run" / "config.json", "--attack", "none", "-o", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert read_history(tmp_path / "again").scenario.attack.name == "none"


def test_without_a_name_a_run_names_itself(tmp_path):
    done = run("run", *QUICK, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == read_history(folder).scenario.title and folder.name.startswith("digits-fedseca-ipm-")


def test_a_client_that_sends_nan_is_named(tmp_path):
    done = run("run", *QUICK, "--attack", "nonfinite", "-o", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    for client in (3, 4):
        assert f"client {client} was left out in 3 of 3 rounds: 1 NaN and 2 Inf, first at " in done.stdout
    assert headings(done.stdout)[:4] == ["client", "truth", "left out", "suspect"]
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[:4] for row in rows] == [
        *([str(k), "honest", "0/3", "0/3"] for k in range(3)),
        *([str(k), "Byzantine", "3/3", "0/3"] for k in (3, 4)),
    ]


TOML = {
    "broken.toml": "rounds = \n",
    "binary.toml": "\x00\x01",
    "list.json": "[1, 2]",
    "nested.json": "[" * 100_000,
    "unknown.toml": "round = 3\n",
    "rounds.toml": "rounds = 0\n",
    "twice.toml": 'aggregator = "krum"\nrule = "cwmed"\n',
}
BAD: dict[str, tuple[list[object], str]] = {
    "unknown rule": (["--aggregator", "fedsecca"], "unknown rule 'fedsecca'; did you mean 'fedseca'? Known: bulyan"),
    "unknown attack": (["--attack", "imp"], "unknown attack 'imp'; did you mean 'ipm'? Known: alie"),
    "unknown data": (["--dataset", "digit"], "unknown data set 'digit'; did you mean 'digits'? Known: arrays"),
    "unknown model": (["--model", "resnet"], "unknown model 'resnet'; did you mean 'resnet18'?"),
    "unknown partition": (["--partition", "iidd"], "unknown partition 'iidd'; did you mean 'iid'?"),
    "all Byzantine": (
        ["--byzantine", 5],
        "byzantine must be below clients, at least one is honest; found byzantine=5 of",
    ),
    "negative α": (["--alpha", "-1"], "dirichlet: alpha must be float > 0; found -1.0"),
    "negative α set": (["--set", "partition.alpha=-1"], "dirichlet: alpha must be float > 0; found -1.0"),
    "α of iid": (["--partition", "iid", "--alpha", "1"], "unknown hyperparameter of iid 'alpha'"),
    "missing data folder": (["--data-dir", "/no/such/folder"], "data folder /no/such/folder: no such folder"),
    "missing data": (["--dataset", "cifar10", "--data-dir", "."], "cifar10 is not in"),
    "missing config": (["--config", "nowhere.toml"], "nowhere.toml: No such file or directory"),
    "broken config": (["--config", "broken.toml"], "broken.toml: cannot be read as a scenario: Invalid value"),
    "binary config": (["--config", "binary.toml"], "binary.toml: cannot be read as a scenario"),
    "nested config": (["--config", "nested.json"], "nested.json: cannot be read as a scenario"),
    "a list": (["--config", "list.json"], "list.json: cannot be read as a scenario"),
    "unknown in config": (
        ["--config", "unknown.toml"],
        "unknown.toml: unknown hyperparameter of scenario 'round'; did you mean 'rounds'?",
    ),
    "bad in config": (["--config", "rounds.toml"], "rounds.toml: scenario: rounds must be integer ≥ 1; found 0"),
    "no number": (["--rounds", "many"], "scenario: rounds must be integer ≥ 1; found 'many'"),
    "no rounds": (["--rounds", 0], "scenario: rounds must be integer ≥ 1; found 0"),
    "unknown engine": (["--engine", "flowr"], "unknown engine 'flowr'; did you mean 'flower'? Known: loop, flower"),
    "a cluster for nothing": (["--ray", "auto"], "--ray is for --engine flower alone; found --engine loop"),
    "no cluster": (["--engine", "flower", "--ray", "127.0.0.1:1"], "no Ray cluster at '127.0.0.1:1'"),
    "unknown part": (
        ["--set", "atack.strength=1"],
        "'atack.strength': unknown part of this scenario 'atack'; did you mean 'attack'?",
    ),
    "no part": (["--set", "stength=1"], "unknown hyperparameter of scenario 'stength'; did you mean 'strength'?"),
    "two parts": (
        ["--rule", "huber", "--attack", "minmax", "--set", "threshold=1"],
        "'threshold' is a hyperparameter of more than one part; say which: aggregator.threshold, attack.threshold",
    ),
    "no part of the chain": (
        ["--rule", "nnm+cwmed", "--set", "rule.krum.num_byzantine=1"],
        "nnm+cwmed has no part 'krum'; its parts are nnm, cwmed",
    ),
    "a step alone": (["--rule", "nnm"], "'nnm' has no rule; a chain is steps before, one rule, steps after"),
    "two rules": (["--rule", "krum+cwmed"], "chain 'krum+cwmed': krum and cwmed are both rules; a chain is steps"),
    "a step in the wrong place": (["--rule", "cwmed+nnm"], "chain 'cwmed+nnm': nnm is a step before a rule, and"),
    "half a chain": (["--rule", "nnm+"], "chain 'nnm+': a part is empty; write steps and a rule with + between"),
    "given twice": (["--config", "twice.toml"], "scenario: aggregator is given twice, as 'rule' too; give it once"),
    "unknown name": (["--set", "attack.size=1"], "unknown hyperparameter of ipm 'size'. Known: strength, jitter"),
    "no value": (["--set", "attack.strength"], "--set takes PART.NAME=VALUE; found 'attack.strength'"),
    "how many and which": (
        ["--byzantine", 2, "--byzantine-clients", "0"],
        "--byzantine-clients are 1 already: leave out --byzantine",
    ),
    "too many images": (["--train-images", 9999], "digits has 1437 training samples; 9999 requested"),
    "too many clients": (["--clients", 9999, "--byzantine", 0], "clients cannot share 100 samples"),
    "no site": (["--partition", "site"], "site: this data set does not say where its samples came from"),
    "rule too large": (
        ["--aggregator", "krum", "--clients", 4],
        "krum needs at least 5 clients in a round; found 4",
    ),
    "both": (["--resume", "--overwrite"], "--resume goes on and --overwrite starts again: give one of them"),
    "no device": (["--device", "toaster"], "device 'toaster' cannot be used here"),
    "no real device": (["--device", "meta"], "device 'meta' cannot be used here"),
    "a huge model": (["--set", "model.width=100000000"], "cannot be made here"),
    "no checkpoint": (["--checkpoint-every", 0], "checkpoint_every must be an integer ≥ 1; found 0"),
    "negative seed": (["--seed", -1], "scenario: seed must be integer ≥ 0; found -1"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, subprocess.CompletedProcess[str]]:
    folders = {fault: tmp_path_factory.mktemp("bad") for fault in BAD}
    cases: dict[str, tuple[Path, list[object]]] = {}
    for fault, (arguments, _) in BAD.items():
        for name, content in TOML.items():
            (folders[fault] / name).write_text(content)
        images: list[object] = [] if "--train-images" in arguments else ["--train-images", 100]
        cases[fault] = (folders[fault], ["run", *images, *arguments, "-o", "sub/run"])
    done = run_each(cases)
    assert all(sorted(path.name for path in folder.iterdir()) == sorted(TOML) for folder in folders.values())
    return done


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(refusals, fault):
    done, message = refusals[fault], BAD[fault][1]
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_the_folder_of_another_config_is_refused_and_stays(tmp_path):
    folder = tmp_path / "mine"
    assert run("run", *QUICK, "-o", folder).returncode == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = run("run", *QUICK, "--seed", 1, "-o", folder, "--resume")
    assert done.returncode == 2 and "holds a run of another config (seed is 0 there and 1 here)" in done.stderr
    assert done.stderr.count("\n") == 1 and {path: path.read_bytes() for path in folder.iterdir()} == before
    done = run("run", *QUICK, "-o", folder)
    assert (
        done.returncode == 2 and "holds this run already, which is finished; resume (--resume) shows it" in done.stderr
    )
    assert run("run", *QUICK, "-o", folder, "--resume").returncode == 0
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        new = run("run", *QUICK, "-o", tmp_path / name, "--resume")
        assert new.returncode == 0 and f"nothing to resume in {tmp_path / name}: starting anew" in new.stderr


def test_a_folder_that_cannot_be_used_is_told_before_the_data_are_read(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "notes.txt").write_text("mine")
    missing = ("run", "--dataset", "cifar10", "--data-dir", tmp_path)  # which would be told too, if it came to that
    for folder, message in (
        ("file", "is a file; a run is a folder"),
        ("file/below", f"{tmp_path / 'file'} is a file; a run is a folder"),
        ("strange", "holds other files (notes.txt) and no run"),
    ):
        done = run(*missing, "-o", tmp_path / folder)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert "cifar10 is not in" in run(*missing, "-o", tmp_path / "new").stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "strange"]


LONG = ("--rounds", 12, "--train-images", 200, "--test-images", 60, "--attack", "mimic", "--checkpoint-every", 3)


def lines(folder):
    def told(name):
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]

    rounds = [{k: v for k, v in record.items() if k != "seconds"} for record in told("rounds.jsonl")]
    return rounds, told("clients.jsonl"), told("pairs.jsonl")


def test_killed_at_any_moment_and_resumed_it_gives_the_numbers_of_an_unbroken_run(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run("run", *LONG, "-o", whole).returncode == 0
    command = ("run", *LONG, "-o", broken, "--resume")
    killed = 0
    for count in (1, 2, 5, 7, 11):
        process = Command(*command)
        if process.until(lambda count=count: _rounds_in(broken / "rounds.jsonl") >= count):  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
        killed += process.wait().returncode == -signal.SIGKILL
        assert not (broken / "result.json").exists() or count == 11
    assert killed >= 4  # the last may have been too quick
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert lines(broken) == lines(whole)
    results = [json.loads((folder / "result.json").read_text()) for folder in (broken, whole)]
    assert results[0]["f1_last5"] == results[1]["f1_last5"]


def _rounds_in(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def test_ctrl_c_says_how_to_go_on(tmp_path):
    endless = Command("run", "--rounds", 10_000, "-o", tmp_path / "mine")
    assert endless.until(lambda: _rounds_in(tmp_path / "mine" / "rounds.jsonl") >= 1)
    endless.send_signal(signal.SIGINT)
    done = endless.wait()
    assert done.returncode == 130 and "the same command with --resume goes on from" in done.stderr
    assert "stopped" not in done.stdout


def test_tensorboard(tmp_path):
    done = run("run", *QUICK, "--tensorboard", "-o", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    read = (
        "import sys; from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E;"
        "e = E(sys.argv[1]); e.Reload();"
        "print([s.value for s in e.Scalars('f1')], 'rho/client 3' in e.Tags()['scalars'])"
    )
    folder = tmp_path / "mine" / "tensorboard"
    shown = subprocess.run([sys.executable, "-c", read, str(folder)], capture_output=True, text=True, timeout=PATIENCE)
    logged, _, known = shown.stdout.strip().rpartition(" ")
    assert json.loads(logged) == pytest.approx(read_history(tmp_path / "mine").f1) and known == "True"


def test_an_attack_in_one_file_is_an_attack_like_any_other(tmp_path):
    plugin = ROOT / "examples" / "attacks" / "top_flip.py"
    options = ("--attack", "top_flip", "--set", "attack.share=0.5", "-o", tmp_path / "mine")
    done = run("--plugin", plugin, "run", *QUICK, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "mine" / "config.json").read_text())["scenario"]["attack"]["share"] == 0.5
    assert "top_flip" in json.loads(run("--plugin", plugin, "list", "--json").stdout)["attacks"]
    assert len(plugin.read_text().splitlines()) <= 45


def test_the_audit_of_a_run_is_one(tmp_path):
    folder = tmp_path / "mine"
    assert run("run", *QUICK, "--attack", "nonfinite", "-o", folder).returncode == 0
    verified = run("audit", "verify", folder)
    assert verified.returncode == 0 and "whole, each line follows from the one before it" in verified.stdout
    assert "lines 15 · rounds 3 · clients 5" in verified.stdout
    shown = json.loads(run("audit", "show", folder, "--json").stdout)
    assert {c["client"]: (c["standing"], c["left_out"], c["asked"]) for c in shown["clients"]} == {
        **dict.fromkeys("012", ("fine", 0, 3)),
        **dict.fromkeys("34", ("suspicious", 3, 3)),
    }
    audit = folder / "clients.jsonl"
    audit.write_bytes(audit.read_bytes().replace(b'"verdict":"left out"', b'"verdict":"used"    ', 1))
    for command in (("audit", "verify", folder), ("audit", "show", folder)):
        done = run(*command)
        assert done.returncode == 2 and "line 4 was changed after it was written" in done.stderr
        assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_run_of_the_version_before_is_shown_and_not_resumed(tmp_path):
    folder = tmp_path / "mine"
    assert run("run", *QUICK, "--attack", "nonfinite", "-o", folder).returncode == 0
    now = [run("audit", "show", folder, *more).stdout for more in ((), ("--json",))]
    as_format_1(folder)
    shown = [run("audit", "show", folder, *more) for more in ((), ("--json",))]
    assert [done.returncode for done in shown] == [0, 0], shown[0].stderr
    unverified = "not verified: an earlier version wrote it, without hashes\n"
    assert shown[0].stdout == now[0] + unverified and "3       suspicious" in now[0]
    assert json.loads(shown[1].stdout)["clients"] == json.loads(now[1])["clients"]
    page = run("audit", "show", folder, "-o", tmp_path / "audit.html")
    assert page.returncode == 0 and (tmp_path / "audit.html").stat().st_size > 1e6
    report = run("report", folder, "-o", tmp_path / "report.html")
    assert report.returncode == 0, report.stderr
    for command, message in (
        (("audit", "verify", folder), "was written by an earlier version, whose runs have no hashes; audit show reads"),
        (
            ("run", *QUICK, "--attack", "nonfinite", "-o", folder, "--resume"),
            "was written by an earlier version, which",
        ),
    ):
        done = run(*command)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_the_demo_shows_one_collapse_and_one_survival(tmp_path):
    done = run("demo", "-o", tmp_path / "demo", "--rounds", 25)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[1]: line for line in done.stdout.splitlines() if "│" in line}
    assert "collapsed" in rows["fedavg"] and "survived" in rows["fedseca"]
    assert str(tmp_path / "demo" / "fedseca") in done.stdout
    assert read_history(tmp_path / "demo" / "fedavg").f1_last5 < 0.2
    again = run("demo", "-o", tmp_path / "demo", "--rounds", 1)
    assert again.returncode == 0, again.stderr
    assert "over 1 round " in again.stdout and again.stdout.count("too early to say") == 2
    assert "collapsed" not in again.stdout and "last five" not in again.stdout
