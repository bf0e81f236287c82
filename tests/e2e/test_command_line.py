"""The command line as people and programs use it: real processes, real files."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedseca
from tests.e2e.command import run, run_cold, run_each

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "rules" / "norm_median.py"
EXAMPLES = sorted((ROOT / "examples" / "models").glob("*.safetensors"))
BEFORE = ROOT / "examples" / "before.safetensors"


@pytest.fixture
def files(tmp_path) -> list[Path]:
    generator = torch.Generator().manual_seed(0)
    for k in range(5):
        save_file({"w": torch.randn(4, 5, generator=generator)}, tmp_path / f"site-{k}.safetensors")
    return sorted(tmp_path.iterdir())


def test_the_examples_as_make_run_does(tmp_path):
    out = tmp_path / "new" / "after.safetensors"
    done = run("aggregate", *EXAMPLES, "--global", BEFORE, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "6 clients admitted (1 suspect), 1 left out" in done.stdout
    assert "broken was left out: 4 NaN, first at 0.weight[3, 5]" in done.stdout
    assert "malicious is suspect: weight 0.0368, where the median is 0.196" in done.stdout
    expected = fedseca.aggregate(EXAMPLES, before=BEFORE)
    written = load_file(out)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in written)


def test_the_table_shows_who_is_trusted(tmp_path):
    done = run("aggregate", *EXAMPLES, "--global", BEFORE, "-o", tmp_path / "out", "--json")
    clients = {record["client"]: record for record in json.loads(done.stdout)["clients"]}
    assert clients["malicious"]["rho"] == 0 and clients["malicious"]["clip_factor"] < 0.2
    assert all(clients[site]["rho"] > 0.5 for site in ("amber", "birch", "cedar", "dune", "elm"))
    assert clients["broken"] == {"client": "broken", "verdict": "left out", "reason": "4 NaN, first at 0.weight[3, 5]"}
    verdicts = {client: record["verdict"] for client, record in clients.items()}
    sites = dict.fromkeys(("amber", "birch", "cedar", "dune", "elm"), "used")
    assert verdicts == sites | {"malicious": "suspect", "broken": "left out"}


def test_updates_and_hyperparameters(files, tmp_path):
    out = tmp_path / "out.safetensors"
    done = run("aggregate", *files, "--rule", "cwtm", "--set", "trim=0.4", "-o", out, "--json")
    report = json.loads(done.stdout)
    assert report["rule"] == "cwtm" and report["hyperparameters"] == {"trim": 0.4}
    matrix = torch.stack([load_file(file)["w"] for file in files])
    assert torch.allclose(load_file(out)["w"], matrix.sort(dim=0).values[2])


def test_no_memory_means_no_momentum(files, tmp_path):
    done = run("aggregate", *files, "-o", tmp_path / "out", "--json")
    assert json.loads(done.stdout)["hyperparameters"]["momentum"] == 0


def test_a_chain_and_a_hyperparameter_of_one_part(files, tmp_path):
    out = tmp_path / "out.safetensors"
    done = run("aggregate", *files, "--rule", "nnm+cwtm", "--set", "nnm.num_byzantine=2", "-o", out, "--json")
    report = json.loads(done.stdout)
    assert report["rule"] == "nnm+cwtm"
    assert report["hyperparameters"] == {
        "nnm.num_byzantine": 2,
        "cwtm.trim": fedseca.make_aggregator("cwtm").values()["trim"],
    }
    assert all({"weight", "neighbours", "norm"} <= record.keys() for record in report["clients"])
    given: dict[str, Any] = {"nnm.num_byzantine": 2}
    expected = fedseca.aggregate(files, rule="nnm+cwtm", **given)
    assert torch.equal(load_file(out)["w"], expected["w"])
    done = run("aggregate", *files, "--aggregator", "nnm+cwtm", "--set", "num_byzantine=2", "-o", out)
    assert done.returncode == 0 and torch.equal(load_file(out)["w"], expected["w"])
    shown = " ".join(done.stdout.split())  # a title as long as this is folded
    assert "nnm+cwtm: 5 clients admitted (0 suspect), 0 left out" in shown and "┃ neighbours ┃" in shown


BAD = {
    "no such part": (["--rule", "nmm+cwmed"], "chain 'nmm+cwmed': unknown part 'nmm'; did you mean 'nnm'?"),
    "a step alone": (["--rule", "nnm"], "'nnm' has no rule; a chain is steps before, one rule, steps after"),
    "unknown parameter of a chain": (
        ["--rule", "nnm+cwtm", "--set", "nnm.trim=0.1"],
        "unknown hyperparameter of nnm 'trim'. Known: num_byzantine",
    ),
    "unknown rule": (["--rule", "fedsecca"], "unknown rule 'fedsecca'; did you mean 'fedseca'?"),
    "unknown parameter": (["--set", "sparsty=0.9"], "unknown hyperparameter of fedseca 'sparsty'; did you mean 'spars"),
    "out of bounds": (["--set", "sparsity=1.5"], "fedseca: sparsity must be float ≥ 0, < 1; found 1.5"),
    "no value": (["--set", "sparsity"], "--set takes NAME=VALUE; found 'sparsity'"),
    "too few": (
        ["--rule", "krum", "--set", "num_byzantine=9"],
        "krum needs at least 12 clients, 5 of 5 were admitted; with 5 clients num_byzantine can be at most 2, and",
    ),
    "no such file": (["nowhere.safetensors"], "nowhere.safetensors: no such file"),
    "a folder": (["."], "is a folder, give its files"),
    "bad rate": (["--learning-rate", "nan", "--global", str(BEFORE)], "learning_rate must be a finite number above 0"),
    "rate alone": (["--learning-rate", "0.5"], "--learning-rate is the step from the global model: give --global too"),
    "no number": (["--learning-rate", "fast"], "Invalid value for '--learning-rate'"),
    "bad seed": (["--seed", "-1"], "seed must be an integer ≥ 0; found -1"),
    "bad buffers": (["--buffers", "mean"], "Invalid value for '--buffers'"),
    "unknown option": (["--colour"], "No such option '--colour'"),
    "another format": (
        ["-o", "a.pt"],
        "a.pt: a safetensors file is written, and .pt names another format; call it a.s",
    ),
    "another format in capitals": (["-o", "a.PT"], "a.PT: a safetensors file is written"),
    "missing global": (["--global", "nowhere"], "nowhere: no such file"),
    "broken global": (
        ["--global", str(PLUGIN)],
        f"{PLUGIN}: the global model before the round: not a readable safetensors file",
    ),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, subprocess.CompletedProcess[str]]:
    folders = {fault: tmp_path_factory.mktemp("bad") for fault in BAD}
    for folder in folders.values():
        for k in range(5):
            save_file({"w": torch.ones(4, 5) * k}, folder / f"site-{k}.safetensors")
    sites = [f"site-{k}.safetensors" for k in range(5)]
    cases = {
        fault: (folders[fault], ["aggregate", "-o", "sub/out", *sites, *arguments])
        for fault, (arguments, _) in BAD.items()
    }
    done = run_each(cases)
    assert all(sorted(path.name for path in folder.iterdir()) == sites for folder in folders.values())
    return done


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(refusals, fault):
    done, message = refusals[fault], BAD[fault][1]
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_an_output_that_would_destroy_an_input_is_refused(files):
    content = files[2].read_bytes()
    done = run("aggregate", *files, "-o", files[2])
    assert done.returncode == 2 and "is one of the inputs" in done.stderr and files[2].read_bytes() == content


def test_an_output_that_cannot_be_written(files, tmp_path):
    done = run("aggregate", *files, "-o", tmp_path)
    assert done.returncode == 2 and "is a folder; --output takes the name of a file" in done.stderr
    done = run("aggregate", *files, "-o", files[0] / "out")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_a_reason_is_told_once(files, tmp_path):
    bad = [tmp_path / f"bad-{k}.safetensors" for k in range(3)]
    for path in bad:
        path.write_bytes(b"no")
    done = run("aggregate", *files, *bad, "-o", tmp_path / "out")
    assert done.returncode == 0 and done.stdout.count("not a readable safetensors file") == 1
    assert "bad-0, bad-1 and bad-2 were left out: not a readable safetensors file" in done.stdout


def test_a_missing_option_is_one_line(files):
    done = run("aggregate", *files)
    assert done.returncode == 2 and "Missing option '--output'" in done.stderr and done.stderr.count("\n") == 1


def test_an_old_terminal_is_no_reason_to_fail():
    done = run_cold("list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "fedseca" in done.stdout


def test_help_and_version():
    assert "aggregate" in run_cold().stdout and "aggregate" in run("--help").stdout
    assert run("--version").stdout.startswith("fedseca 0.")


def test_a_file_name_or_key_cannot_paint_the_terminal(files, tmp_path):
    nasty = tmp_path / "[red]x[nope]\x1b[2J.safetensors"
    save_file({"[/]\x1b[2J": torch.ones(3)}, nasty)
    done = run("aggregate", *files, nasty, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert r"[red]x[nope]\x1b[2J was left out: missing key 'w'" in done.stdout and "\x1b" not in done.stdout
    done = run("aggregate", tmp_path / "no\x1b[2J", "-o", tmp_path / "out")
    assert done.returncode == 2 and "\x1b" not in done.stderr


def test_list_is_derived_from_the_declarations():
    told = json.loads(run("list", "--json").stdout)
    assert set(told["rules"]) >= {"fedseca", "fedavg", "krum"} and set(told["steps"]) >= {
        "nnm",
        "bucketing",
        "momentum",
    }
    registries: dict[str, Any] = {"rules": fedseca.AGGREGATORS, "steps": fedseca.STEPS, "attacks": fedseca.ATTACKS}
    shown = run("list").stdout
    for kind, registry in registries.items():
        for name, about in told[kind].items():
            declared = registry[name].hyperparameters()
            assert [p["name"] for p in about["hyperparameters"]] == list(declared)
            said = getattr(registry[name], "diagnostics", ())
            assert [(d["name"], d["help"]) for d in about["diagnostics"]] == [(d.name, d.help) for d in said]
            assert f"{name}  {about['summary'][:40]}" in shown
        assert f"{len(told[kind])} {kind}" in shown
    assert {name: about["place"] for name, about in told["steps"].items()} == {
        name: "before" if issubclass(fedseca.STEPS[name], fedseca.StepBefore) else "after" for name in told["steps"]
    }
    assert "γ: share of each client's smallest gradients that is dropped" in shown
    assert json.loads(run("list", "steps", "--json").stdout) == {"steps": told["steps"]}
    assert json.loads(run("list", "aggregators", "--json").stdout) == {"rules": told["rules"]}
    done = run("list", "stpes")
    assert done.returncode == 2 and "unknown kind 'stpes'; did you mean 'steps'?" in done.stderr


def test_a_rule_in_one_file_is_a_rule_like_any_other(files, tmp_path):
    ways: list[tuple[tuple[object, ...], dict[str, Any]]] = [
        ((), {"FEDSECA_PLUGINS": str(PLUGIN)}),
        (("--plugin", PLUGIN), {}),
    ]
    for arguments, environment in ways:
        assert "norm_median" in json.loads(run(*arguments, "list", "--json", **environment).stdout)["rules"]
        out = tmp_path / "out"
        done = run(*arguments, "aggregate", *files, "--rule", "norm_median", "-o", out, **environment)
        assert done.returncode == 0, done.stderr
    assert "norm_median" not in json.loads(run("list", "--json").stdout)["rules"]
    lines = PLUGIN.read_text().splitlines()
    assert len(lines) <= 45


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("raise ValueError('oops')", "ValueError: oops"),
        ("import nothing_like_it", "ModuleNotFoundError"),
        ("(", "SyntaxError"),
    ],
)
def test_a_broken_plugin_is_one_line(tmp_path, content, message):
    (tmp_path / "mine.py").write_text(content)
    done = run("--plugin", tmp_path / "mine.py", "list")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    done = run("list", FEDSECA_PLUGINS=str(tmp_path / "mine.py"))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_rule_without_a_docstring_is_listed(tmp_path):
    text = PLUGIN.read_text()
    bare = text[: text.index('    """The mean of the clients')] + text[text.index("    slack:") :]
    (tmp_path / "bare.py").write_text(bare)
    done = run("--plugin", tmp_path / "bare.py", "list")
    assert done.returncode == 0 and "norm_median" in done.stdout


def install(folder: Path, module: str, content: str) -> None:
    """A package as pip leaves it, whose metadata names a module for fedseca."""
    (folder / f"{module}.py").write_text(content)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[fedseca.plugins]\n{module} = {module}\n")


def test_what_installed_packages_register_is_known(tmp_path):
    install(tmp_path, "their_attack", (ROOT / "examples" / "attacks" / "top_flip.py").read_text())
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    assert "top_flip" in run_cold("list", "attacks", PYTHONPATH=path).stdout
    options = ("--rounds", 1, "--train-images", 60, "--test-images", 20, "-o", tmp_path / "run")
    done = run_cold("run", "--attack", "top_flip", *options, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert run_cold("run", "--attack", "top_flip", *options).returncode == 2  # the negative control


def test_an_installed_package_that_is_broken_keeps_nobody_from_the_others(tmp_path):
    install(tmp_path, "their_broken", "raise RuntimeError('not today')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = run_cold("list", "attacks", PYTHONPATH=path)
    assert done.returncode == 0 and "alie" in done.stdout
    assert "the plugin their_broken (their_broken) cannot be loaded: RuntimeError: not today" in done.stderr


@pytest.mark.parametrize("plugin", ["no_such_module", "no/such/file.py", ""])
def test_a_missing_plugin_is_one_line(plugin):
    done = run("--plugin", plugin, "list")
    assert done.returncode == 2 and plugin in done.stderr and done.stderr.count("\n") == 1
