"""`opentrn kernel run|time|profile|check FILE:KERNEL --args …`: kernels of NKI on the virtual core."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

KernelName = Annotated[str, typer.Argument(metavar="FILE:KERNEL", help="e.g. matmul.py:tiled_matmul")]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--args", "-a", help="One argument: bfloat16[128,512], zeros:int32[1,1], x.npy, scale=0.5. Repeat."
    ),
]
Grid = Annotated[str | None, typer.Option(help="Launch grid: 2 for both cores; 1,3 for classic programs.")]
Chip = Annotated[str | None, typer.Option(help="trn1, trn2 or trn3; else the environment's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


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


@app.command()
def run(
    kernel: KernelName,
    args: Arguments = None,
    grid: Grid = None,
    chip: Chip = None,
    relaxed: Annotated[bool, typer.Option(help="Uninitialised reads give NaN instead of an error.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Save the results.")] = None,
    as_json: AsJson = False,
) -> None:
    """Execute a kernel, print its results' statistics and its time."""
    import numpy as np

    from opentrn.nki import engine_hook
    from opentrn.nki.report import describe_result, summary
    from opentrn.nki.traced import collect_results

    traced, arrays = _traced(kernel, args, grid, chip)
    result = collect_results(traced, engine_hook.execute(traced.program, arrays, check=not relaxed), arrays)
    timing = traced.timing
    if out is not None:
        results = result if isinstance(result, (list, tuple)) else [result]
        np.savez(out, *results)
    lines = describe_result(result)
    if as_json:
        print(json_format.dumps({**summary(timing, traced), "results": lines}))
        return
    print("\n".join([*lines, timing.table()]))


@app.command()
def time(
    kernel: KernelName, args: Arguments = None, grid: Grid = None, chip: Chip = None, as_json: AsJson = False
) -> None:
    """Time a kernel without executing it: cycles, engines, bytes, what bounds it, the longest stalls."""
    from opentrn.nki.report import summary

    traced, _ = _traced(kernel, args, grid, chip)
    timing = traced.timing
    print(json_format.dumps(summary(timing, traced)) if as_json else timing.table())


@app.command()
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
