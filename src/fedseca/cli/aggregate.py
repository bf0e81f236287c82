"""`fedseca aggregate`: update files in, one aggregate and a table of the clients out."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors.torch import save

from fedseca.aggregators import AGGREGATORS, Aggregator, make_alone
from fedseca.cli.settings import split_setting
from fedseca.cli.tables import shown_diagnostics, verdict_text, wide_console
from fedseca.errors import InputError, LooksLikeModels, by_reason, printable
from fedseca.files import write_atomically
from fedseca.layout import BufferPolicy
from fedseca.server import Round, Server

_OTHER_FORMATS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".npy", ".npz", ".h5", ".keras", ".onnx", ".gguf", ".msgpack")


def aggregate(
    files: Annotated[list[Path], typer.Argument(help="One safetensors file for each client.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the aggregate is written.", show_default=False)],
    rule: Annotated[
        str,
        typer.Option("--rule", "--aggregator", help="The rule, or a chain: nnm+cwmed; `fedseca list` shows all parts."),
    ] = "fedseca",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter; of one part: nnm.num_byzantine=1."),
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option("--global", help="The global model before the round: the files are models then, not updates."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="η in w ← w − η·g̃, with --global; 1 if not given.", show_default=False)
    ] = None,
    buffers: Annotated[BufferPolicy, typer.Option(help="Running statistics of normalisation layers.")] = "median",
    seed: Annotated[int, typer.Option(help="Of the rules that draw at random.")] = 0,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Read the files where they lie, without a copy: they must not change."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Aggregate the update files of the clients, robustly.

    A file that cannot be used (NaN, Inf, wrong shapes or names, damaged) is left out and named with the reason.
    """
    _check_paths(files, before, output)
    if learning_rate is not None and before is None:
        raise InputError("--learning-rate is the step from the global model: give --global too, or leave it out")
    given = {name: AGGREGATORS.declared(rule, name).parse(text) for name, text in map(split_setting, settings or [])}
    made = make_alone(rule, **given)
    step = 1.0 if learning_rate is None else learning_rate
    server = Server(made, learning_rate=step, buffers=buffers, seed=seed, in_place=in_place)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LooksLikeModels)
        out = server.aggregate(files, before=before)
    for each in told:
        Console(stderr=True, soft_wrap=True).print(Text(f"warning: {each.message}", style="bold yellow"))
    result = out.update if before is None else out.model
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, save({name: value.contiguous().cpu() for name, value in result.items()}))
    if as_json:
        report = {"rule": made.name, "hyperparameters": made.values(), "output": str(output), "clients": out.records()}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _show(out, made, output, model=before is not None)
        if made.init(1):
            typer.echo(f"note: {made.name} remembers earlier rounds, this command does not; see fedseca.Server")


def _check_paths(files: list[Path], before: Path | None, output: Path) -> None:
    """A file that is not there is a slip of the caller; one that is there but broken is a client's fault."""
    inputs = [*files, *([before] if before is not None else [])]
    for path in inputs:
        if not path.is_file():
            raise InputError(f"{path}: {'is a folder, give its files' if path.is_dir() else 'no such file'}")
        if output.exists() and output.samefile(path):
            raise InputError(f"{output}: is one of the inputs; choose another --output")
    if output.is_dir():
        raise InputError(f"{output}: is a folder; --output takes the name of a file")
    if output.suffix.lower() in _OTHER_FORMATS:
        raise InputError(
            f"{output}: a safetensors file is written, and {output.suffix} names another format; call it "
            f"{output.with_suffix('.safetensors').name}"
        )


def _show(out: Round, rule: Aggregator, output: Path, *, model: bool) -> None:
    console = wide_console()
    columns = shown_diagnostics(rule, (name for name, values in out.diagnostics.items() if values.ndim == 1))
    number = len(out.client_ids)
    counts = (
        f"{number} client{'s' * (number != 1)} admitted ({len(out.suspects)} suspect), {len(out.rejected)} left out"
    )
    table = Table(title=f"{rule.name}: {counts}", title_justify="left")
    table.add_column("client", style="bold", overflow="fold")
    table.add_column("verdict")
    for each in columns:
        table.add_column(each.heading, justify="right")
    for record in out.records():
        cells = (each.show(record.get(each.name)) for each in columns)
        table.add_row(Text(record["client"]), verdict_text(record["verdict"]), *cells)
    wide_console(table).print(table)
    for kind, one, many in (("suspect", "is suspect", "are suspect"), ("left out", "was left out", "were left out")):
        told = [
            (i, verdict.reason) for i, verdict in out.answers if verdict.kind == kind and verdict.reason is not None
        ]
        of_one = {client_id for client_id, _ in told}
        for clients, reason in by_reason(told):
            words = one if clients in of_one else many
            # What a client sent is shown as plain text, never as markup.
            line = Text(f"{clients} {words}: {reason}", style=verdict_text(kind).style)
            console.print(line, soft_wrap=True)
    what = "new global model" if model else "aggregated update"
    console.print(Text(f"{what} written to {printable(str(output))}"), soft_wrap=True)
