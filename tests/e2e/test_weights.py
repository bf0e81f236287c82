"""`fedseca run` with weights: from a hub that answers, from none, and from a file."""

import http.server
import json
import socket
import threading

import pytest
from safetensors.torch import save, save_file

from fedseca.models import MODELS
from tests.e2e.command import run
from tests.unit.image_files import make_eurosat, make_fedisic

TINY = ("run", "--model", "timm", "--set", "model.architecture=test_resnet", "--train-images", 60, "--rounds", 1)
FROM_HUB = (*TINY, "--set", "model.weights=imagenet")


@pytest.fixture(scope="module")
def weights():
    return save(MODELS.make("timm", architecture="test_resnet").build((3, 32, 32), 1000, seed=3).state_dict())


@pytest.fixture
def hub(weights):
    """A hub of models on this machine, which counts what it is asked."""
    asked = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append((self.command, self.path))
            self.send_response(200)
            self.send_header("ETag", '"weights"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(weights)))
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(weights)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_weights_come_from_the_hub_and_are_kept(tmp_path, hub):
    address, asked = hub
    home = {"HF_HOME": str(tmp_path / "hub"), "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1"}
    first = run(*FROM_HUB, "-o", tmp_path / "a", **home)
    assert first.returncode == 0, first.stderr
    assert {path for _, path in asked} == {"/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"}
    asked.clear()
    second = run(*FROM_HUB, "-o", tmp_path / "b", **home)
    assert second.returncode == 0 and not asked, "they are in the cache"
    data = [json.loads((tmp_path / each / "config.json").read_text())["data"] for each in "ab"]
    assert data[0] == data[1] and ", weights " in data[0]


def test_no_network_is_one_line(tmp_path):
    with socket.socket() as taken:  # a port at which nobody answers
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = run(*FROM_HUB, "-o", tmp_path / "a", HF_HOME=str(tmp_path / "hub"), HF_ENDPOINT=address)
    assert done.returncode == 2
    *notes, line = done.stderr.strip().splitlines()
    assert all("torchvision does not fit" in note for note in notes) and len(notes) <= 1
    assert "test_resnet: its ImageNet weights cannot be fetched (" in line
    assert f"get {address}/timm/test_resnet.r160_in1k/resolve/main/model.safetensors elsewhere" in line
    assert line.endswith("--set model.weights=PATH") and "Retry" not in done.stderr


def test_weights_from_a_file(tmp_path, weights):
    (tmp_path / "mine.safetensors").write_bytes(weights)
    done = run(*TINY, "--weights", "mine.safetensors", "-o", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "its classifier is left out: it has 1000 classes, the data 10" in done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["scenario"]["model"]["weights"] == str(tmp_path / "mine.safetensors")


def test_weights_for_a_model_that_takes_none(tmp_path):
    done = run("run", "--weights", "mine.safetensors", folder=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cnn begins with no weights of a file: --weights goes with --model timm" in done.stderr


def test_what_is_frozen_is_said(tmp_path):
    model = ("--set", "model.trained=classifier", "--set", "model.image_size=32")
    done = run(*TINY, *model, "-o", tmp_path / "a", FEDSECA_DATA=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "trained: classifier (" in done.stdout and "before them are frozen" in done.stdout
    assert done.stderr.count("computing once what the frozen layers give for") == 2


PAPER = {
    "paper-eurosat": (make_eurosat, "test_vit", "7 clients, 2 of them Byzantine (3, 4)"),
    "paper-fedisic": (make_fedisic, "test_convnext", "6 clients, 2 of them Byzantine (3, 4)"),
}


@pytest.mark.parametrize("preset", PAPER)
def test_the_paper_s_federations_of_real_sites(tmp_path, preset):
    """On a few images in the real layout, with a small network of the same family and weights of a file."""
    make, architecture, told = PAPER[preset]
    make(tmp_path / "data")
    network = MODELS.make("timm", architecture=architecture).build((3, 32, 32), 1000, seed=3)
    save_file(network.state_dict(), tmp_path / "mine.safetensors")
    start = ["run", "--preset", preset, "--data-dir", "data", "--set", f"model.architecture={architecture}"]
    here = ["--weights", "mine.safetensors", "--rounds", 1, "--workers", 2, "-o", "run"]
    done = run(*start, *here, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["scenario"]["byzantine_clients"] == "3,4" and ", weights " in config["data"]
    audit = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    assert [line["client"] for line in audit if line.get("byzantine")] == ["3", "4"]
    other = run(*start, *here[:-1], "other", "--data-dir", ".", folder=tmp_path)
    assert other.returncode == 2 and other.stderr.count("\n") == 1 and f"{preset[6:]}" in other.stderr
