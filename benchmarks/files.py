"""Many update files, together larger than the memory one would give to it: how much is used, and how long it takes.

    python benchmarks/files.py [--clients 64] [--dim 11200000]

Writes the files into a temporary folder, aggregates them with `fedseca aggregate` in a process of its own while its
anonymous memory is watched, and compares the time of the aggregation with that of the same updates held in memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

import fedseca
from fedseca.bench import make_updates


def anonymous_memory(process: int) -> int:
    """The bytes of a process that are not backed by a file."""
    try:
        with open(f"/proc/{process}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0


def watched(command: list[str]) -> tuple[int, float]:
    """Run a command; the most anonymous memory it had, and how long it took."""
    start, most = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        while running.poll() is None:
            most = max(most, anonymous_memory(running.pid))
            time.sleep(0.01)
    assert running.returncode == 0
    return most, time.perf_counter() - start


def median_time(work, repeats: int = 3) -> float:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--dim", type=int, default=11_200_000)
    parser.add_argument("--output", type=Path, help="where the figures are written as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        matrix = make_updates(options.clients, options.dim)
        files = [Path(folder) / f"site-{k:03d}.safetensors" for k in range(options.clients)]
        for row, file in zip(matrix, files, strict=True):
            save_file({"weights": row}, file)
        in_memory = median_time(partial(fedseca.aggregate, matrix))
        expected = fedseca.aggregate(matrix)
        del matrix
        from_files = median_time(partial(fedseca.aggregate, files))
        in_place = median_time(partial(fedseca.aggregate, files, in_place=True))
        assert torch.equal(fedseca.aggregate(files)["weights"], expected)
        out = Path(folder) / "out.safetensors"
        command = [sys.executable, "-c", "from fedseca.cli import main; main()", "aggregate"]
        most, seconds = watched([*command, *map(str, files), "-o", str(out), "--json"])
    figures = {
        "clients": options.clients,
        "megabytes": round(4 * options.clients * options.dim / 1e6),
        "anonymous_megabytes": round(most / 1e6),
        "seconds_in_memory": round(in_memory, 3),
        "seconds_from_files": round(from_files, 3),
        "seconds_in_place": round(in_place, 3),
        "ratio": round(from_files / in_memory, 2),
        "ratio_in_place": round(in_place / in_memory, 2),
        "seconds_of_the_whole_command": round(seconds, 2),
    }
    print(json.dumps(figures, indent=1))
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
