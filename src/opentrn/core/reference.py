"""docs/instructions.md, generated from the instruction table: python -m opentrn.core.reference [--write]"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentrn.core.machine import timing_tables
from opentrn.core.table import Instruction, Parameter, instructions

TARGET = Path(__file__).parents[3] / "docs" / "instructions.md"
BOOKKEEPING = ("tensor_begin", "device_print")

HEAD = """# Instructions of the virtual NeuronCore

Generated from `src/opentrn/core/data/instructions.toml` by `python -m opentrn.core.reference --write`; a
test keeps it current.

The instruction set is `nki.isa` of NKI 0.3.0 with the additions of 0.4 to 0.6. Argument order is NKI's.
Costs are engine
cycles: *documented* (published formula), *fitted* (to measured kernels, `opentrn program kernels`) or
*assumed*.
`N` is the largest free size of any operand; `partitions.x`, `free.x` (elements per partition), `bytes.x`
(of one element),
`half.x` (bf16 or fp16), `sbuf.x`, `psum.x` speak of operand `x`; `min_ii`, `gpsimd_start` … are constants
of the chip, listed at the end.
Every engine executes in order; an instruction starts when its engine is free and its operands are ready.
S26, S29 = NKI API reference of SDK 2.26, 2.29; ARCH = NKI architecture guides.
"""


def _parameter(parameter: Parameter) -> str:
    where = ", ".join(space.upper() for space in parameter.spaces)
    kinds = {
        "begin": "written",
        "write": "written",
        "read": "read",
        "update": "read and written",
        "accumulate": "accumulated",
        "any": "ordered",
    }
    text = f"`{parameter.name}`: "
    if parameter.role in kinds:
        text += f"{kinds[parameter.role]}, {where}" + (" or a number" if parameter.or_number else "")
    else:
        text += {"alu": "ALU operation", "activation": "activation function"}.get(
            parameter.role, parameter.role
        )
    if parameter.optional:
        text += ", optional"
    elif parameter.default is not ...:
        text += f", default {parameter.default}"
    return text


def _section(row: Instruction) -> Iterator[str]:
    yield f"## {row.name}\n"
    since = f" From generation {row.generation} on." if row.generation > 2 else ""
    path = (
        " Data moves through the DMA engines."
        if row.dma
        else " A collective between ranks."
        if row.collective
        else ""
    )
    yield f"Engines: {', '.join(row.engines)}.{path}{since} Source: {row.source}. Cost: {row.cost}.\n"
    yield from (f"- {_parameter(parameter)}" for parameter in row.parameters)
    for condition, engine in row.compiler_engines:
        where = "" if condition == "1" else f" where `{condition}`"
        yield f"- in classic kernels that leave the engine open: {engine}{where}"
    if row.limits:
        yield "\nLimits:\n"
        yield from (f"- {text} (`{condition}`)" for condition, text in row.limits)
    if not (row.dma or row.collective):
        yield "\nCycles:\n"
        for condition, cost in row.cycles:
            yield f"- `{cost}`" + ("" if condition == "1" else f" where `{condition}`")
    yield ""


def document() -> str:
    """The whole reference as Markdown."""
    lines = [HEAD]
    for row in instructions().values():
        if row.name not in BOOKKEEPING:
            lines += _section(row)
    tables = timing_tables()
    lines += [
        "## Constants\n",
        "Times in ns, rates in bytes per ns, clocks in GHz. Where `opentrn chips` has the constant, that value is used.\n",  # noqa: E501
    ]
    lines += ["| constant | gen2 | gen3 | gen4 | known |", "|---|---|---|---|---|"]
    status: dict[str, Any] = tables["status"]
    known = {key: kind for kind, keys in status.items() for key in keys}
    for key in tables["gen3"]:
        lines.append(
            f"| {key} | {tables['gen2'][key]} | {tables['gen3'][key]} | {tables['gen4'][key]} | {known.get(key, 'documented')} |"  # noqa: E501
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        TARGET.write_text(document())
    else:
        print(document(), end="")
