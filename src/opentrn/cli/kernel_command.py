"""`opentrn kernel run|time|profile|check FILE:KERNEL --args …`: kernels of NKI on the virtual core."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from opentrn.errors import ConfigurationError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

KernelName = Annotated[str, typer.Argument(metavar="FILE:KERNEL", help="e.g. matmul.py:tiled_matmul")]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--args",
        "-a",
        metavar="ARGUMENT...",
        help="Arguments: bfloat16[128,512], zeros:int32[1,1], x.npy, scale=0.5. One or several; may be repeated.",  # noqa: E501
    ),
]
Grid = Annotated[str | None, typer.Option(help="Launch grid: 2 for both cores; 1,3 for classic programs.")]
Chip = Annotated[str | None, typer.Option(help="trn1, trn2 or trn3; else the environment's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProgramFile = Annotated[
    Path | None,
    typer.Option(
        "--program",
        metavar="FILE",
        help="Write the kernel's program: bytes, or text for a .txt name. `opentrn program` reads both.",
    ),
]
Trips = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Assumed passes of loops whose bound is a register; else 1."),
]


class SeveralArguments(typer.core.TyperCommand):
    """A command whose `--args` takes the values up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _repeated(args))


def _repeated(tokens: list[str]) -> list[str]:
    """``K --args A B`` as ``K --args A --args B``. Behind a `--args` that comes before FILE:KERNEL only one
    value is taken.
    """
    result: list[str] = []
    taking = 0  # values taken since the last --args; 0: not behind one
    named = False
    for token in tokens:
        option = token.startswith("-") and not token[1:2].isdigit()
        if option:
            taking = 1 if token in ("--args", "-a") else 0
        elif taking and (taking == 1 or named):
            if taking > 1:
                result.append("--args")
            taking += 1
        else:
            named = named or ":" in token
            taking = 0
        result.append(token)
    return result


@app.callback()
def _options() -> None:
    """Run, check and time an NKI kernel on the virtual core."""


def _traced(kernel: str, args: list[str] | None, grid: str | None, chip: str | None) -> Any:
    from opentrn.nki import target
    from opentrn.nki.report import traced_call
    from opentrn.nki.specification import load_kernel, parse_arguments, parse_grid

    positional, named = parse_arguments(args or [])
    return traced_call(
        load_kernel(kernel),
        parse_grid(grid),
        positional,
        named,
        target.named(chip, "--chip") if chip else None,
    )


def _write_program(program: Any, path: Path | None) -> None:
    if path is None:
        return
    data = program.text().encode() if path.suffix == ".txt" else program.to_bytes()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(
            f"the program cannot be written to '{path}': {error.strerror}", cure="name a writable file"
        ) from error


def _timing(traced: Any, trips: int | None) -> Any:
    if trips is None:
        return traced.timing
    from opentrn.core.timing import assume_trips, time

    return time(traced.program, registers=assume_trips(traced.program, trips))


@app.command(cls=SeveralArguments)
def run(
    kernel: KernelName,
    args: Arguments = None,
    grid: Grid = None,
    chip: Chip = None,
    relaxed: Annotated[bool, typer.Option(help="Uninitialised reads give NaN instead of an error.")] = False,
    activation_ranges: Annotated[
        bool,
        typer.Option("--activation-ranges", help="Activation functions have the ranges of the hardware's."),
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Save the results.")] = None,
    program: ProgramFile = None,
    trips: Trips = None,
    as_json: AsJson = False,
) -> None:
    """Execute a kernel, print its results' statistics and its time."""
    import numpy as np

    from opentrn.nki import engine_hook
    from opentrn.nki.findings import on_unwritten
    from opentrn.nki.report import describe_result, summary
    from opentrn.nki.traced import collect_results

    traced, arrays = _traced(kernel, args, grid, chip)
    _write_program(traced.program, program)
    values = engine_hook.execute(
        traced.program,
        arrays,
        check=not relaxed,
        activation_ranges=activation_ranges,
        on_unwritten=on_unwritten([traced], False),
    )
    result = collect_results(traced, values, arrays)
    timing = _timing(traced, trips)
    if out is not None:
        results = result if isinstance(result, (list, tuple)) else [result]
        np.savez(out, *results)
    lines = describe_result(result)
    if as_json:
        print(json_format.dumps({**summary(timing, traced), "results": lines}))
        return
    print("\n".join([*lines, timing.table()]))


@app.command(cls=SeveralArguments)
def time(
    kernel: KernelName,
    args: Arguments = None,
    grid: Grid = None,
    chip: Chip = None,
    program: ProgramFile = None,
    trips: Trips = None,
    as_json: AsJson = False,
) -> None:
    """Time a kernel without executing it: cycles, engines, bytes, what bounds it, the longest stalls."""
    from opentrn.nki.report import summary

    traced, _ = _traced(kernel, args, grid, chip)
    _write_program(traced.program, program)
    timing = _timing(traced, trips)
    print(json_format.dumps(summary(timing, traced)) if as_json else timing.table())


@app.command(cls=SeveralArguments)
def profile(
    kernel: KernelName,
    args: Arguments = None,
    grid: Grid = None,
    chip: Chip = None,
    trace: Annotated[Path, typer.Option(metavar="FILE.json", help="The Perfetto trace to write.")] = Path(
        "kernel.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Time a kernel instruction by instruction and write a trace for ui.perfetto.dev."""
    from opentrn.nki.report import summary, write_trace

    traced, _ = _traced(kernel, args, grid, chip)
    timing = traced.recorded
    write_trace(timing, traced, trace)
    print(
        json_format.dumps({**summary(timing, traced), "trace": str(trace)})
        if as_json
        else f"{timing.table()}\ntrace: {trace}"
    )


@app.command()
def check(kernel: KernelName) -> None:
    """List the Python in a kernel that the real kernel compiler would refuse. Exit code 1 if there is any."""
    from opentrn.nki.check import check_kernel
    from opentrn.nki.specification import load_kernel

    findings = check_kernel(load_kernel(kernel))
    for finding in findings:
        print(finding)
    if findings:
        raise typer.Exit(1)
    print("nothing that the kernel compiler would refuse")
