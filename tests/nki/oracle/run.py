"""Executes recorded programs: each core runs until it must wait for another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import instructions, selection
from .builder import Expr, Instruction, Loop, Program
from .instructions import Core
from .memory import Memory, cast, host

_WAITS = ("core_barrier", "sendrecv")
_COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")


def _function(name: str) -> Any:
    return getattr(instructions, name, None) or getattr(selection, name)


def _walk(core: Core, body: list[Any]) -> Iterator[Instruction]:
    """Run a body; yields the instructions at which this core has to meet another."""
    for item in body:
        if isinstance(item, Loop):
            if item.condition is not None:
                while Expr.value(item.condition, core.registers):
                    yield from _walk(core, item.body)
            else:
                start, stop = (Expr.value(bound, core.registers) for bound in (item.start, item.stop))
                for value in range(start, stop, item.step):
                    core.registers[item.variable] = value
                    yield from _walk(core, item.body)
        elif item.name == "tensor_begin":
            core.memory.begin(item.arguments["tensor"])
        elif item.name in _WAITS or item.name in _COLLECTIVES:
            yield item
        else:
            try:
                _function(item.name)(core, **item.arguments)
            except Exception as error:
                error.add_note(f"in {item.name} at {item.source[0]}:{item.source[1]}")
                raise
            if item.name in ("tensor_copy", "activation", "tensor_tensor", "tensor_scalar"):
                instructions.mark_written(core, item.arguments["dst"])


def _exchange(cores: list[Core], waiting: dict[int, Instruction]) -> None:
    """All waiting cores are at the same kind of instruction: let the data cross."""
    values = {
        number: np.array(cores[number].raw(item.arguments["src"]))
        for number, item in waiting.items()
        if item.name == "sendrecv"
    }
    for number, item in waiting.items():
        if item.name == "sendrecv":
            source = values[item.arguments["recv_from_rank"]]
            cores[number].memory.write(item.arguments["dst"], cores[number].registers, source)


def _run_rank(program: Program, inputs: dict[str, np.ndarray], on_print: Any, rank: int) -> Iterator[Any]:
    """Generator over collectives: yields (cores, instruction), returns the outputs."""
    memory = Memory(program.tensors, inputs)
    cores = [Core(memory, number, on_print) for number in range(len(program.bodies))]
    walks = {number: _walk(core, program.bodies[number]) for number, core in enumerate(cores)}
    waiting: dict[int, Instruction] = {}
    while walks:
        for number in list(walks):
            if number in waiting:
                continue
            item = next(walks[number], None)
            if item is None:
                del walks[number]
            elif item.name in _COLLECTIVES:
                yield cores[number], item
            else:
                waiting[number] = item
        if waiting and set(waiting) == set(walks):
            if len({item.name for item in waiting.values()}) != 1 or len(waiting) < len(cores):
                raise RuntimeError(f"deadlock: {[item.name for item in waiting.values()]}")
            _exchange(cores, waiting)
            waiting.clear()
    result = {}
    for tensor in program.tensors:
        if tensor.space == "hbm" and tensor.kind in ("output", "inout"):
            result[tensor.name] = (
                memory.bytes[tensor.id].reshape(-1).view(host(tensor.dtype)).reshape(tensor.shape)
            )
    return result


def execute(
    program: Program, inputs: dict[str, np.ndarray], symbols: Any = None, on_print: Any = None, **_: Any
) -> dict[str, np.ndarray]:
    return execute_ranks([program], [inputs], on_print=on_print)[0]


def execute_ranks(
    programs: list[Program], inputs: list[dict[str, np.ndarray]], on_print: Any = None, **_: Any
) -> list[dict[str, np.ndarray]]:
    """Several ranks: each runs to its next collective; when all are there, it happens."""
    runs = {
        rank: _run_rank(program, arrays, on_print, rank)
        for rank, (program, arrays) in enumerate(zip(programs, inputs, strict=True))
    }
    results: dict[int, dict[str, np.ndarray]] = {}
    pending: dict[int, tuple[Core, Instruction]] = {}
    while runs:
        for rank in list(runs):
            if rank in pending:
                continue
            try:
                pending[rank] = next(runs[rank])
            except StopIteration as finished:
                results[rank] = finished.value
                del runs[rank]
        if pending:
            _collective(pending)
            pending.clear()
    return [results[rank] for rank in range(len(programs))]


def _collective(pending: dict[int, tuple[Core, Instruction]]) -> None:
    item = next(iter(pending.values()))[1]
    arguments = item.arguments
    sources = {
        rank: [np.array(core.raw(src)) for src in item.arguments["srcs"]]
        for rank, (core, item) in pending.items()
    }
    if item.name == "collective_permute":
        for source, target in arguments["source_target_pairs"]:
            core, mine = pending[target]
            for dst, values in zip(mine.arguments["dsts"], sources[source], strict=True):
                core.memory.write(dst, core.registers, values)
        return
    for group in arguments["replica_group"]:
        for place, rank in enumerate(group):
            core, mine = pending[rank]
            for index, dst in enumerate(mine.arguments["dsts"]):
                parts = [sources[other][index] for other in group]
                _store_part(core, mine, dst, parts, place)


def _store_part(core: Core, item: Instruction, dst: Any, parts: list[np.ndarray], place: int) -> None:
    axis = item.arguments.get("collective_dim", 0)
    if item.name == "all_gather":
        values = np.concatenate(parts, axis=axis)
    elif item.name == "all_to_all":
        values = np.concatenate([np.split(part, len(parts), axis=axis)[place] for part in parts], axis=axis)
    else:
        fold = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[item.arguments["op"]]
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            total = fold(total, part.astype(np.float32))
        values = np.split(total, len(parts), axis=axis)[place] if item.name == "reduce_scatter" else total
    core.memory.write(dst, core.registers, cast(values, dst.dtype))
