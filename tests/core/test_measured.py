"""The timing model against published durations: the bars, by family, and the order within each chain of
versions.
"""

from __future__ import annotations

import statistics

import pytest

from opentrn.core import time
from opentrn.core.library.measured import PROGRAMS, median_error, rank_correlation, rows, table


def test_modern_kernels_are_within_ten_per_cent() -> None:
    assert median_error("check", "modern") <= 0.10


def test_classic_kernels_are_within_twenty_per_cent() -> None:
    assert median_error("check", "classic") <= 0.20


def test_versions_keep_their_order() -> None:
    for chain in {row.chain for row in rows() if row.chain}:
        assert rank_correlation(chain) >= 0.9, chain


def test_fp32_flops_count_as_the_profiler_counts_them() -> None:
    """Two hardware passes per fp32 product: NKIBench's counter for the transposed product, exactly."""
    from opentrn.core import Builder

    b = Builder(chip="trn1")
    a, m = b.sbuf("a", (128, 128), "float32"), b.sbuf("m", (128, 512), "float32")
    p = b.psum("p", (128, 512), "float32")
    with b.loop(0, 4096 // 128), b.loop(0, 11264 // 512), b.loop(0, 2048 // 128):
        b.emit("nc_matmul", dst=p, stationary=a, moving=m)
    assert time(b.finish()).hardware_flops == 377_957_122_048


# hardware_flops of neuron-profile as NKIBench publishes them: two to the last digit, others rounded.
FLOPS = {
    "bench_transpose_matmul": (377_957_122_048, 0),
    "bench_matmul": (1_159_641_169_920, 0),
    "bench_rmsnorm_matmul": (36.5e9, 0.05e9),
    "bench_matmul_add_rmsnorm": (85.9e9, 0.05e9),
}


@pytest.mark.parametrize("name", FLOPS)
def test_instruction_counts_give_the_published_flops(name: str) -> None:
    published, rounding = FLOPS[name]
    assert abs(time(PROGRAMS[name]("trn1")).hardware_flops - published) <= rounding


def test_bytes_of_the_dma_bound_product_are_the_published_ones() -> None:
    """9261 MB read and written: the right operand comes again for every block of rows."""
    assert round(time(PROGRAMS["bench_matmul"]("trn1")).hbm_bytes / 1e6) == 9261


def test_the_table_lists_every_kernel_with_its_role() -> None:
    text = table()
    for row in rows():
        assert row.name in text and row.role in ("fit", "check")
    assert "unvalidated" in text


def test_what_is_far_off_has_a_word_beside_it() -> None:
    text = table()
    far = [row for row in rows() if abs(row.error) > 0.25]
    assert far
    for row in far:
        line = next(line for line in text.splitlines() if line.startswith(row.name))
        mark = line[line.rindex("(") :]
        assert any(note.startswith(mark + " ") for note in text.splitlines()), line


def test_tutorials_and_modern_kernels_are_within_ten_per_cent_together() -> None:
    told = [row for row in rows() if "tutorial" in row.chain or row.chain.startswith(("Mamba", "layer norm"))]
    assert len(told) >= 18
    assert statistics.median(abs(row.error) for row in told) <= 0.10
