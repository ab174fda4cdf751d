"""`opentrn program`: print, verify, time and compare programs of NeuronCore instructions.

A program is a file of `Program.to_bytes()` or of its text form; `lib:NAME` names one of the built-in programs
(matmul, softmax, attention, fused, pointwise, reduction).
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from opentrn.errors import ConfigurationError

app = typer.Typer(
    help="Print, verify, time and compare programs of NeuronCore instructions.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

SourceArgument = Annotated[str, typer.Argument(help="A program file (bytes or text), or lib:NAME.")]
SymbolOption = Annotated[
    list[str] | None, typer.Option("--symbol", "-s", help="NAME=VALUE; may be repeated.")
]
TOLERATED = 1e-9


def library(name: str, chip: str, dtype: str) -> Any:
    """A program of opentrn.core.library by short name."""
    from opentrn.core.library import reductions
    from opentrn.core.library.attention import flash_attention_program
    from opentrn.core.library.elementwise import Operand, flat_program
    from opentrn.core.library.fused import rmsnorm_matmul_silu_program
    from opentrn.core.library.matmul import matmul_program
    from opentrn.core.library.normalisations import softmax_like_program
    from opentrn.core.machine import DEFAULT_CHIP

    chip = chip or DEFAULT_CHIP
    makers = {
        "matmul": lambda: matmul_program(dtype, chip),
        "softmax": lambda: softmax_like_program("softmax", (dtype,), dtype, None, chip),
        "attention": lambda: flash_attention_program(128, dtype, False, chip),
        "fused": lambda: rmsnorm_matmul_silu_program(dtype, chip),
        "pointwise": lambda: flat_program("y0 = x0 + x1", (Operand(dtype),) * 2, (Operand(dtype),), chip),
        "reduction": lambda: reductions.rows_program(dtype, dtype, chip=chip),
    }
    if name not in makers:
        raise ConfigurationError(f"no built-in program '{name}'", cure=f"use one of {', '.join(makers)}")
    return makers[name]()


def load(source: str, chip: str = "", dtype: str = "bfloat16") -> Any:
    """The program behind a command-line argument. CorruptFileError where a file is damaged."""
    from opentrn.core import Program

    if source.startswith("lib:"):
        return library(source[4:], chip, dtype)
    path = Path(source)
    if not path.is_file():
        raise ConfigurationError(
            f"no program file '{source}'", cure="name a file, or lib:matmul for a built-in program"
        )
    data = path.read_bytes()
    if data.startswith(b"OTRNPRG"):
        return Program.from_bytes(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Program.from_bytes(data)  # says what is wrong with it
    return Program.parse(text)


def parse_symbols(entries: list[str] | None) -> dict[str, int]:
    """["M=128"] → {"M": 128}."""
    symbols = {}
    for entry in entries or []:
        name, _, value = entry.partition("=")
        try:
            symbols[name] = int(value)
        except ValueError:
            raise ConfigurationError(
                f"cannot read symbol '{entry}'", cure="write NAME=INTEGER, e.g. -s M=2048"
            ) from None
    return symbols


@app.command("print")
def print_(
    source: SourceArgument,
    chip: str = "",
    dtype: str = "bfloat16",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the binary form here.")] = None,
) -> None:
    """Print the text form (it parses back); -o writes the bytes."""
    program = load(source, chip, dtype)
    if output is not None:
        output.write_bytes(program.to_bytes())
    else:
        typer.echo(program.text(), nl=False)


@app.command()
def verify(
    source: SourceArgument, symbol: SymbolOption = None, chip: str = "", dtype: str = "bfloat16"
) -> None:
    """Check every instruction against the documented limits; exit code 2 and the reason where one is
    broken.
    """
    program = load(source, chip, dtype)
    symbols = parse_symbols(symbol)
    missing = [name for name in program.symbols if name not in symbols]
    if missing:
        raise ConfigurationError(
            f"the program has symbols without a value: {', '.join(missing)}", cure="pass -s NAME=VALUE"
        )
    program.verify(symbols)
    typer.echo(
        f"{program.name}: {program.instruction_count} instructions, {program.dynamic_count(symbols)} executed: verified"  # noqa: E501
    )


@app.command()
def time(
    source: SourceArgument,
    symbol: SymbolOption = None,
    chip: str = "",
    dtype: str = "bfloat16",
    path: bool = False,
    trips: Annotated[
        int | None, typer.Option(min=0, help="Assumed passes of loops whose bound is a register.")
    ] = None,
    reorder: Annotated[
        bool, typer.Option("--reorder", help="As the classic compiler reschedules its kernels.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Simulate when every instruction runs: engines, bytes, stalls, what bounds it."""
    from opentrn.core.timing import assume_trips
    from opentrn.core.timing import time as simulate

    program = load(source, chip, dtype)
    registers = None if trips is None else assume_trips(program, trips)
    timing = simulate(program, parse_symbols(symbol), record=path, registers=registers, reorder=reorder)
    if as_json:
        typer.echo(json.dumps({
            "program": timing.program, "chip": timing.chip, "nanoseconds": timing.nanoseconds, "busy": timing.busy,  # noqa: E501
            "bytes": timing.bytes, "flops": timing.flops, "instructions": timing.instructions, "bound": timing.bound,  # noqa: E501
            "kind": "simulated", "roofline": timing.roofline, "assumptions": timing.assumptions,
        }))  # fmt: skip
        return
    typer.echo(timing.table())
    if path:
        typer.echo("critical path:")
        for step in timing.critical_path[:40]:
            typer.echo(
                f"  {step.start / 1e3:10.3f} µs {step.engine:<8}{step.instruction} × {step.count} ({step.source})"  # noqa: E501
            )


@app.command()
def diff(
    first: str, second: str, symbol: SymbolOption = None, chip: str = "", dtype: str = "bfloat16"
) -> None:
    """Compare two programs: their text line by line, their times where symbols are given. Exit code 1 if
    they differ.
    """
    from opentrn.core.timing import time as simulate

    a, b = load(first, chip, dtype), load(second, chip, dtype)
    lines = list(
        difflib.unified_diff(a.text().splitlines(), b.text().splitlines(), first, second, lineterm="")
    )
    for line in lines:
        typer.echo(line)
    symbols = parse_symbols(symbol)
    if all(name in symbols for name in (*a.symbols, *b.symbols)):
        times = [simulate(program, symbols).nanoseconds for program in (a, b)]
        change = times[1] / times[0] - 1 if times[0] > TOLERATED else 0.0
        typer.echo(f"simulated: {times[0] / 1e3:.3f} µs and {times[1] / 1e3:.3f} µs ({change:+.1%})")
    if lines:
        raise typer.Exit(1)
    typer.echo("equal")


@app.command()
def kernels(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """The timing model against measured kernels: signed error of each, fit and check points apart."""
    from opentrn.core.library.measured import rows, table

    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows()]))
    else:
        typer.echo(table())
