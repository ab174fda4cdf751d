"""`opentrn predict`: fit, step time, tokens/s and MFU of a model on a machine, without a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from opentrn.predict.plan import Attention, Mode, Optimizer, Plan, Precision

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"max_content_width": 110})
def predict(
    model: Annotated[
        str, typer.Argument(help="A model's name (see --models) or the path of a config.json.")
    ] = "",
    mode: Annotated[Mode, typer.Option(help="A training step, reading a prompt, or one token.")] = Mode.train,
    batch: Annotated[int, typer.Option(min=1, help="Samples per logical core and step.")] = 1,
    sequence: Annotated[
        int, typer.Option(min=1, help="Tokens per sample; for decode: of the prompt.")
    ] = 4096,
    precision: Annotated[
        Precision, typer.Option(help="amp: fp32 masters, bf16 computation.")
    ] = Precision.bf16,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Recompute activations.")] = False,
    optimizer: Annotated[
        Optimizer, typer.Option(help="The optimizer and its implementation.")
    ] = Optimizer.adamw_fused,
    instance: Annotated[str, typer.Option(help="The machine (opentrn chips lists them).")] = "trn2.48xlarge",
    cores: Annotated[int, typer.Option(min=1, help="Logical cores; more than one: FSDP2 over all.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps to run.")] = 2,
    attention: Annotated[Attention, typer.Option(help="Hugging Face's implementation.")] = Attention.sdpa,
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
    plan = Plan(
        model,
        mode.value,
        batch,
        sequence,
        precision.value,
        checkpointing,
        optimizer.value,
        instance,
        cores,
        steps,
        attention.value,
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
