"""The virtual NeuronCore: build programs of instructions, execute them, time them.

    builder = Builder(chip="trn2", name="double")
    x = builder.hbm("x", (128, 512), "float32")
    y = builder.hbm("y", (128, 512), "float32", kind="output")
    tile = builder.sbuf("tile", (128, 512), "float32")
    builder.emit("dma_copy", dst=tile, src=x)
    builder.emit("tensor_scalar", dst=tile, data=tile, op0="multiply", operand0=2.0)
    builder.emit("dma_copy", dst=y, src=tile)
    program = builder.finish()
    execute(program, {"x": array})["y"]; time(program).nanoseconds

The C++ library is csrc/core; this package adds the tables (data/), NumPy in and out, the text form and
reports.
"""

from __future__ import annotations

from opentrn.core import machine, table

table.load()
machine.load()

from opentrn.core._C import Access, Expr, Tensor  # noqa: E402
from opentrn.core.builder import Builder  # noqa: E402
from opentrn.core.execution import execute, execute_ranks  # noqa: E402
from opentrn.core.program import Program  # noqa: E402
from opentrn.core.timing import Timing, time  # noqa: E402

__all__ = ["Access", "Builder", "Expr", "Program", "Tensor", "Timing", "execute", "execute_ranks", "time"]
