"""`opentrn predict`: fit, step time, tokens/s and MFU of a model on a machine, without a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"max_content_width": 110})
def predict(
    model: Annotated[
        str, typer.Argument(help="A model's name (see --models) or the path of a config.json.")
    ] = "",
    mode: Annotated[str, typer.Option(help="train, prefill or decode.")] = "train",
    batch: Annotated[int, typer.Option(help="Samples per logical core and step.")] = 1,
    sequence: Annotated[int, typer.Option(help="Tokens per sample; for decode: of the prompt.")] = 4096,
    precision: Annotated[
        str, typer.Option(help="bf16, fp32, or amp (fp32 masters, bf16 computation).")
    ] = "bf16",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute activations.")] = False,
    optimizer: Annotated[str, typer.Option(help="adamw-fused, adamw-foreach or sgd.")] = "adamw-fused",
    instance: Annotated[str, typer.Option(help="The machine (opentrn chips lists them).")] = "trn2.48xlarge",
    cores: Annotated[int, typer.Option(help="Logical cores; more than one: FSDP2 over all.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps to run.")] = 2,
    attention: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    no_fixes: Annotated[bool, typer.Option("--no-fixes", help="Do not try what would make it fit.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write the page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    models: Annotated[bool, typer.Option("--models", help="List the models.")] = False,
) -> None:
    """Will a model fit, and how fast does it train or serve? Without a script, data or weights."""
    from opentrn.errors import ConfigurationError
    from opentrn.predict import catalogue

    if models:
        print("\n".join(catalogue.names()))
        return
    if not model:
        raise ConfigurationError("no model is named", cure="opentrn predict MODEL; --models lists the names")
    from opentrn.predict.plan import Plan

    plan = Plan(
        model, mode, batch, sequence, precision, checkpointing, optimizer, instance, cores, steps, attention
    )
    catalogue.find(model)  # a wrong name is told before PyTorch is loaded
    from opentrn.explorer.terminal import report_console
    from opentrn.predict import report as pages
    from opentrn.predict.prediction import predict as run

    prediction = run(plan, suggest=not no_fixes)
    if report is not None:
        pages.write(prediction, report)
    if as_json:
        print(json.dumps(prediction.as_json()))
        return
    pages.print_report(prediction, report_console(sys.stdout))
    if report is not None:
        print(f"report: {report}")
