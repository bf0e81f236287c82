"""Makes the example files: five sites, and two that are no good, after one local epoch on handwritten digits.

    python examples/make_models.py

Each site trains the same small network, with BatchNorm, from the same global model (before.safetensors) on its own
share of scikit-learn's digits. `broken` sends NaN, `malicious` sends its training ten times over and backwards.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

FOLDER = Path(__file__).parent
SITES = ["amber", "birch", "cedar", "dune", "elm", "malicious", "broken"]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> None:
    """One local epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    whole_batches = len(labels) // 16 * 16
    for batch in torch.randperm(len(labels), generator=generator)[:whole_batches].view(-1, 16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    before = network().state_dict()
    save_file(before, FOLDER / "before.safetensors")
    (FOLDER / "models").mkdir(exist_ok=True)
    # Sites differ in the digits they mostly see, as hospitals do in their patients.
    skewed = (labels + 12 * torch.rand(len(labels), generator=generator)).argsort()
    shares = skewed.chunk(len(SITES))
    for site, share in zip(SITES, shares, strict=True):
        model = network()
        model.load_state_dict(before)
        train(model, images[share], labels[share], generator)
        state = model.state_dict()
        if site == "malicious":
            state = {k: before[k] - 10 * (v - before[k]) if "running" not in k else v for k, v in state.items()}
        if site == "broken":
            state["0.weight"][3, 5:9] = torch.nan
        save_file({k: v.contiguous() for k, v in state.items()}, FOLDER / "models" / f"{site}.safetensors")
    print(f"{len(SITES)} files in {FOLDER / 'models'}")


if __name__ == "__main__":
    main()
