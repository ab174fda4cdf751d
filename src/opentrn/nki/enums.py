"""The enumerations of `nki.language` and `nki.isa`, with the numbers the public interface gives them."""

from __future__ import annotations

from enum import Enum


class MemoryRegion(Enum):
    """Where a tensor lives. `nl.hbm` is `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


class engine(Enum):
    """The engines of a NeuronCore."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class dge_mode(Enum):
    """Who generates the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class dma_engine(Enum):
    """Which DMA a `sendrecv` uses."""

    dma = 1
    gpsimd_dma = 2


class matmul_perf_mode(Enum):
    """`double_row`: two FP8 rows per pass."""

    none = "none"
    double_row = "double_row"


class nc_version(Enum):
    """Generation of the NeuronCore: gen2 is Trn1/Inf2, gen3 Trn2, gen4 Trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        return self.value < other.value

    def __le__(self, other: nc_version) -> bool:
        return self.value <= other.value

    def __gt__(self, other: nc_version) -> bool:
        return self.value > other.value

    def __ge__(self, other: nc_version) -> bool:
        return self.value >= other.value


class oob_mode(Enum):
    """What an indirect access outside its tensor does."""

    error = 0
    skip = 1


class reduce_cmd(Enum):
    """What an instruction does with the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


ON_CHIP = (MemoryRegion.sbuf, MemoryRegion.psum)
HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)
