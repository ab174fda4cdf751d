"""Programs: bytes, text, folding, placement, damaged files."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_numpy import interpret

from opentrn.core import Builder, Program, execute, time
from opentrn.core.library import reductions
from opentrn.core.library.attention import flash_attention_program
from opentrn.core.library.elementwise import Operand, flat_program
from opentrn.core.library.fused import rmsnorm_matmul_silu_program
from opentrn.core.library.matmul import matmul_program
from opentrn.core.library.normalisations import softmax_like_program
from opentrn.errors import CapacityError, ConfigurationError, CorruptFileError

PROGRAMS = {
    "matmul": lambda: matmul_program("bfloat16"),
    "fused": lambda: rmsnorm_matmul_silu_program("float32"),
    "softmax": lambda: softmax_like_program("softmax", ("float32",), "float32", 4096),
    "attention": lambda: flash_attention_program(64, "bfloat16", True),
    "pointwise": lambda: flat_program("y0 = x0 + x1", (Operand("float32"),) * 2, (Operand("float32"),)),
    "reduction": lambda: reductions.rows_program("bfloat16", "bfloat16"),
}


def everything() -> Program:
    """Registers, a while loop, indirect access, constants, two cores, names, non-finite numbers."""
    b = Builder(chip="trn2", cores=2, name='odd "name"')
    for core in range(2):
        b.core(core)
        b.source("a file.py", 3 + core)
        shared = b.hbm("x", (64, 8), "float32", kind="inout")
        table = b.hbm(
            "table", (4, 8), "float32", kind="constant", data=np.arange(32, dtype=np.float32).reshape(4, 8)
        )
        tile, index = b.sbuf("tile", (32, 8), "float32", address=(32, 640)), b.sbuf("index", (32, 1), "int32")
        b.emit("memset", dst=tile, value=float("-inf"), name="fill it")
        b.emit("memset", dst=index, value=core)
        b.emit(
            "dma_copy",
            dst=tile,
            oob_mode="skip",
            src=b.access(
                table, ((8, 32), (1, 8)), vector_offset=b.access(index), vector_stride=8, vector_bound=4
            ),
        )
        counter = b.register(2)
        with b.while_loop(counter):
            b.emit("tensor_scalar", dst=tile, data=tile, op0="add", operand0=1e-30)
            b.emit("register_move", dst=counter, src=counter - 1)
        b.emit("core_barrier", data=b.access(shared), cores=(0, 1))
        b.emit("dma_copy", dst=b.access(shared, ((8, 32), (1, 8)), core * 256), src=tile)
    return b.finish()


@pytest.mark.parametrize("name", [*PROGRAMS, "everything"])
def test_text_and_bytes_are_inverse_to_their_readers(name: str) -> None:
    program = everything() if name == "everything" else PROGRAMS[name]()
    text, data = program.text(), program.to_bytes()
    assert Program.parse(text).text() == text
    assert Program.parse(text).to_bytes() == data
    assert Program.from_bytes(data).to_bytes() == data


def test_equal_builds_have_equal_bytes() -> None:
    assert everything().to_bytes() == everything().to_bytes()


def test_parsed_programs_execute_alike() -> None:
    program = everything()
    x = np.zeros((64, 8), np.float32)
    first = execute(program, {"x": x})["x"]
    assert np.array_equal(first, execute(Program.parse(program.text()), {"x": x})["x"])
    assert first[0, 0] == np.float32(2e-30) and first[32, 3] == 11  # row 1 of the constant on the second core


def test_damaged_files_are_found() -> None:
    data = everything().to_bytes()
    for broken in (b"", b"OTRNPRG1", data[:-3], data[:40], data + b"x", b"PK" + data[2:]):
        with pytest.raises(CorruptFileError):
            Program.from_bytes(broken)
    for at in range(8, len(data), 211):
        with pytest.raises(CorruptFileError):
            Program.from_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])


@pytest.mark.parametrize(
    "line",
    (
        "  tensor_copy vector dst=%9<float32>(0; 1:1) src=(",
        "  no_such sync",
        "  tensor_copy abacus",
        "end",
        "loop i0 = 0 to",
    ),
)
def test_damaged_text_names_its_line(line: str) -> None:
    text = 'program "x" chip trn2 cores 1\ncore 0\n' + line + "\n"
    with pytest.raises(CorruptFileError, match="line 3"):
        Program.parse(text)


def test_damaged_index_in_a_resealed_file_is_found() -> None:
    """Bytes with a right checksum and impossible contents, as a hostile cache could hold."""
    data = bytearray(everything().to_bytes())

    def seal(body: bytes) -> bytes:
        h = 1469598103934665603
        for byte in body:
            h = ((h ^ byte) * 1099511628211) & (2**64 - 1)
        return b"OTRNPRG1" + h.to_bytes(8, "little") + body

    assert seal(bytes(data[16:])) == bytes(data)
    body = bytes(data[16:])
    raised = 0
    for at in range(0, len(body) - 8, 8 * 7):
        try:
            Program.from_bytes(seal(body[:at] + (2**40).to_bytes(8, "little") + body[at + 8 :]))
        except CorruptFileError:
            raised += 1
    assert raised > 10


def unrolled(fold: bool, tiles: int = 6) -> Program:
    b = Builder(name="unrolled")
    b.source("kernel.py", 1)
    x, y = b.hbm("x", (128, tiles * 64), "float32"), b.hbm("y", (128, tiles * 64), "float32", kind="output")
    if fold:
        b.unroll_begin()
    for i in range(tiles):
        if fold:
            b.unroll_iteration()
        tile = b.sbuf("tile", (128, 64), "float32")
        b.emit("dma_copy", dst=tile, src=b.access(x, ((tiles * 64, 128), (1, 64)), i * 64))
        if fold:
            b.unroll_begin()
        for j in range(4):
            if fold:
                b.unroll_iteration()
            part = b.access(tile, ((64, 128), (1, 16)), j * 16)
            b.emit("tensor_scalar", dst=part, data=part, op0="add", operand0=i)
        if fold:
            b.unroll_end()
        b.emit("dma_copy", dst=b.access(y, ((tiles * 64, 128), (1, 64)), i * 64), src=tile)
    if fold:
        b.unroll_end()
    return b.finish()


def test_unrolled_iterations_fold_to_loops_and_mean_the_same() -> None:
    flat, folded = unrolled(False), unrolled(True)
    assert flat.instruction_count == 36 and folded.instruction_count == 3
    assert folded.dynamic_count() == 36
    x = np.random.default_rng(0).standard_normal((128, 384), dtype=np.float32)
    results = [execute(program, {"x": x})["y"] for program in (flat, folded)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], interpret(folded, {"x": x})["y"])
    # placement differs (each iteration its own tile, or four places in turn), so does the start-up; not by
    # much
    times = [time(program).nanoseconds for program in (flat, folded)]
    assert abs(times[0] / times[1] - 1) < 0.1


def test_iterations_whose_tiles_live_on_are_not_folded() -> None:
    b = Builder()
    x, y = b.hbm("x", (128, 256), "float32"), b.hbm("y", (128, 256), "float32", kind="output")
    tiles = []
    b.unroll_begin()
    for i in range(4):
        b.unroll_iteration()
        tiles.append(b.sbuf("tile", (128, 64), "float32"))
        b.emit("dma_copy", dst=tiles[-1], src=b.access(x, ((256, 128), (1, 64)), i * 64))
    b.unroll_end()
    for i, tile in enumerate(reversed(tiles)):
        b.emit("dma_copy", dst=b.access(y, ((256, 128), (1, 64)), i * 64), src=tile)
    program = b.finish()
    data = np.random.default_rng(0).standard_normal((128, 256), dtype=np.float32)
    expected = data.reshape(128, 4, 64)[:, ::-1].reshape(128, 256)
    np.testing.assert_array_equal(execute(program, {"x": data})["y"], expected)


def test_placement_reuses_addresses_and_names_the_holders() -> None:
    b = Builder()
    for _ in range(40):  # 40 x 32 KiB one after the other fit in 208 KiB
        tile = b.sbuf("short", (128, 8192), "float32")
        b.emit("memset", dst=tile, value=0.0)
    b.finish()
    b = Builder()
    tiles = [b.sbuf(f"held{k}", (128, 8192), "float32") for k in range(8)]
    for tile in tiles:
        b.emit("memset", dst=tile, value=0.0)
    for tile in tiles:
        b.emit("tensor_copy", dst=tile, src=tile)
    with pytest.raises(CapacityError, match=r"held6.*held by.*held0 32768"):
        b.finish()


def test_tiles_do_not_share_memory_while_both_live() -> None:
    rng = np.random.default_rng(3)
    b = Builder()
    x, y = b.hbm("x", (128, 4096), "float32"), b.hbm("y", (128, 4096), "float32", kind="output")
    live: list = []
    at = 0
    for _ in range(60):
        width = int(rng.integers(1, 60))
        tile = b.sbuf("t", (128, width), "float32")
        b.emit("dma_copy", dst=tile, src=b.access(x, ((4096, 128), (1, width)), at))
        live.append((tile, width, at))
        at += width
        if len(live) > 5:
            old, size, place = live.pop(int(rng.integers(0, 5)))
            b.emit("dma_copy", dst=b.access(y, ((4096, 128), (1, size)), place), src=old)
    for tile, size, place in live:
        b.emit("dma_copy", dst=b.access(y, ((4096, 128), (1, size)), place), src=tile)
    data = rng.standard_normal((128, 4096)).astype(np.float32)
    np.testing.assert_array_equal(execute(b.finish(), {"x": data})["y"][:, :at], data[:, :at])


def test_a_symbol_without_a_value_and_a_missing_input_are_named() -> None:
    program = matmul_program("float32")
    with pytest.raises(ConfigurationError, match="symbol 'N'"):
        execute(
            program, {"a": np.zeros((4, 4), np.float32), "b": np.zeros((4, 4), np.float32)}, {"M": 4, "K": 4}
        )
    with pytest.raises(ConfigurationError, match="input 'b'"):
        execute(program, {"a": np.zeros((4, 4), np.float32)}, {"M": 4, "K": 4, "N": 4})
