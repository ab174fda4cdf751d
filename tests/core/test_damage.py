"""Damaged program files: bytes and text changed at random are refused, or are a program that verifies."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from opentrn.core import Program, time
from opentrn.core.library.fused import rmsnorm_matmul_silu_program
from opentrn.core.library.matmul import matmul_program
from opentrn.errors import CorruptFileError, OpenTRNError

SYMBOLS = {"M": 256, "N": 512, "K": 256}
PROGRAMS: dict[str, Callable[[], Program]] = {"matmul": matmul_program, "fused": rmsnorm_matmul_silu_program}


def sealed(body: bytes, magic: bytes) -> bytes:
    """A file with a checksum that matches: FNV-1a over the body, as the format says."""
    total = 1469598103934665603
    for byte in body:
        total = ((total ^ byte) * 1099511628211) % (1 << 64)
    return magic + struct.pack("<Q", total) + body


def use(program: Program) -> None:
    program.text()
    program.verify(SYMBOLS)
    time(program, SYMBOLS, limit=1 << 21)


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes(name: str) -> None:
    data = PROGRAMS[name]().to_bytes()
    magic, body = data[:8], data[16:]
    assert sealed(body, magic) == data
    for length in (0, 7, 16, 17, 200, len(data) - 1):
        with pytest.raises(CorruptFileError):
            Program.from_bytes(data[:length])
    choose, refused = random.Random(7), 0
    for _ in range(250):
        at = choose.randrange(0, len(body) - 8) & ~7
        changed = bytearray(body)
        changed[at : at + 8] = struct.pack("<q", choose.choice((-1, 0, 1, 3, 255, 1 << 20, -(1 << 40))))
        try:
            use(Program.from_bytes(sealed(bytes(changed), magic)))
        except OpenTRNError:
            refused += 1
    assert refused > 25  # many fields are plain numbers that another value suits as well


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str) -> None:
    words = PROGRAMS[name]().text().replace("\n", " \n ").split(" ")
    choose, refused = random.Random(11), 0
    for _ in range(200):
        changed = list(words)
        at = choose.randrange(len(words))
        what = choose.choice(("drop", "repeat", "number", "symbol", "tensor", "swap"))
        if what == "drop":
            del changed[at]
        elif what == "repeat":
            changed.insert(at, changed[at])
        elif what == "swap":
            other = choose.randrange(len(words))
            changed[at], changed[other] = changed[other], changed[at]
        else:
            changed[at] = {"number": "99999", "symbol": "$", "tensor": "%99<float32>(0; 1:1)"}[what]
        try:
            use(Program.parse(" ".join(changed)))
        except OpenTRNError:
            refused += 1
    assert refused > 100
