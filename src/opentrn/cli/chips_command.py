"""`opentrn chips [NAME]`: the hardware model as a table, every figure with its source."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opentrn.chips.load import chip_names, instance_names, load_chip, load_instance
from opentrn.chips.machine import describe, machine
from opentrn.chips.model import Chip, Constant, Instance
from opentrn.chips.schema import CHIP_FIELDS, INSTANCE_FIELDS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# How a figure is known, and how it is coloured.
_STYLES = {"sourced": "green", "derived": "cyan", "fitted": "yellow", "assumed": "magenta"}


def chips(
    name: Annotated[str | None, typer.Argument(help="A chip or an instance; all of them without it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List chips and instances, or print every constant of one with its unit, source and conflicts."""
    if name is None:
        _list_json() if json else _list()
        return
    subject: Chip | Instance = load_chip(name) if name in chip_names() else load_instance(name)
    if json:
        print(json_format.dumps(_one_json(subject), indent=2))
    else:
        _print_one(subject)


def _console() -> Console:
    from rich.console import Console

    return Console()


def _table(*columns: str, title: str = "") -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _one_json(subject: Chip | Instance) -> dict[str, Any]:
    described = {"name": subject.name, **describe(subject)}
    if isinstance(subject, Instance):
        attached = machine(subject.name, visible_cores="0", environment={})
        described["device"] = {
            "parameters": attached.device_parameters(),
            "provenance": {key: list(how) for key, how in attached.provenance().items()},
        }
    return described


def _list_json() -> None:
    listed = {
        "chips": [_chip_summary(load_chip(name)) for name in chip_names()],
        "instances": [_instance_summary(load_instance(name)) for name in instance_names()],
    }
    print(json_format.dumps(listed, indent=2))


def _chip_summary(chip: Chip) -> dict[str, Any]:
    return {
        "name": chip.name,
        "title": chip.title,
        "kind": chip.kind,
        "cores": chip["cores.per_chip"],
        "default_logical": chip["cores.default_logical"],
        "memory_bytes": chip["memory.capacity"],
        "memory_bytes_per_s": chip["memory.bandwidth"],
        "peak_tflops_bf16": chip["peak.bf16"],
        "assumed": sum(constant.status == "assumed" for constant in chip.constants.values()),
        "constants": len(chip.constants),
    }


def _instance_summary(instance: Instance) -> dict[str, Any]:
    chip = load_chip(instance.chip)
    devices = instance["machine.chips"] * chip["cores.per_chip"] // chip["cores.default_logical"]
    return {
        "name": instance.name,
        "title": instance.title,
        "chip": chip.name,
        "chips": instance["machine.chips"],
        "hosts": instance["machine.hosts"],
        "devices": devices,
        "memory_bytes": instance["machine.chips"] * chip["memory.capacity"],
        "topology": instance["network.topology"],
        "usd_per_hour": instance.get("price.on_demand"),
    }


def _list() -> None:
    console = _console()
    table = _table("chip", "", "cores", "memory", "bandwidth", "BF16 peak", "assumed", title="Chips")
    for name in chip_names():
        row = _chip_summary(load_chip(name))
        cores = f"{row['cores']} (logical: {row['cores'] // row['default_logical']})"
        table.add_row(
            name,
            row["title"],
            cores,
            f"{row['memory_bytes'] / 2**30:.4g} GiB",
            f"{row['memory_bytes_per_s'] / 1e12:.3g} TB/s",
            f"{row['peak_tflops_bf16']:g} TFLOP/s",
            f"{row['assumed']} of {row['constants']}",
        )
    console.print(table)
    console.print()
    table = _table(
        "instance", "", "chips", "devices", "memory", "network", "on demand", title="Instances (per host)"
    )
    for name in instance_names():
        row = _instance_summary(load_instance(name))
        price = "" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f} USD/h"
        hosts = "" if row["hosts"] == 1 else f"{row['hosts']} x "
        table.add_row(
            name,
            row["title"],
            f"{hosts}{row['chips']} {row['chip']}",
            str(row["devices"]),
            f"{row['memory_bytes'] / 2**30:.4g} GiB",
            row["topology"],
            price,
        )
    console.print(table)
    console.print("\n`opentrn chips NAME` prints every constant of one with its source.", markup=False)


def _print_one(subject: Chip | Instance) -> None:
    from rich.text import Text

    console = _console()
    console.print(Text(f"{subject.name}: {subject.title}", style="bold"))
    console.print(Text(subject.path, style="dim"), soft_wrap=True)
    order = list(CHIP_FIELDS if isinstance(subject, Chip) else INSTANCE_FIELDS)
    table = _table("constant", "value", "known", "source, or why")
    for key in sorted(subject.constants, key=order.index):
        constant = subject.constants[key]
        table.add_row(
            key,
            Text(_value(constant.value, constant.unit)),
            Text(constant.status, style=_STYLES[constant.status]),
            Text("\n".join(_explanation(constant))),
        )
    console.print(table)
    if subject.absent:
        console.print(Text("\nnot published, or not there", style="bold"))
        for key, why in subject.absent.items():
            console.print(Text(f"{key}: {why}"))
    console.print(Text("\nsources", style="bold"))
    for key, source in subject.sources.items():
        console.print(Text(f"{key}: {source.title} ({source.as_of})\n  {source.url}"), soft_wrap=True)
    if isinstance(subject, Instance):
        _print_device(console, subject)


def _print_device(console: Console, instance: Instance) -> None:
    """The flat numbers that one device of this instance runs on."""
    from rich.text import Text

    attached = machine(instance.name, visible_cores="0", environment={})
    known = attached.provenance()
    size = attached.cores_per_logical
    table = _table(
        "parameter",
        "value",
        "known",
        title=f"\nOne device: {size} core{'s' if size > 1 else ''} of {attached.chip.name}",
    )
    for key, value in attached.device_parameters().items():
        status = known.get(key, ("",))[0]
        shown = (
            f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else value
        )
        table.add_row(key, Text(shown), Text(status, style=_STYLES.get(status, "")))
    console.print(table)


def _value(value: Any, unit: str) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


def _explanation(constant: Constant) -> list[str]:
    """Source or reason, note, the other public figures, and why this one was chosen."""
    lines = [part for part in (constant.source, constant.reason, constant.note) if part]
    for conflict in constant.conflicts:
        note = f": {conflict.note}" if conflict.note else ""
        lines.append(f"but {_value(conflict.value, conflict.unit)} in {conflict.source}{note}")
    if constant.choice:
        lines.append(f"chosen because: {constant.choice}")
    return lines
