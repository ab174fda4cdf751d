"""`nl.tile_size`: the limits of tiles, for the generation that the kernel is built for.

Sources: NKI 0.3.0 language reference (names), Trainium architecture guides (sizes); the reserved part of
SBUF is the value that the public kernels subtract themselves (16384 + 8 + 256 bytes per partition).
"""

from __future__ import annotations

from opentrn.nki import target
from opentrn.nki.tracing import active_or_none

# Bytes per partition of SBUF by chip (architecture guides of Trainium 1, 2 and 3).
_SBUF_BYTES = {"trn1": 196608, "inf2": 196608, "trn2": 229376, "trn3": 262144}
_RESERVED_BYTES = 16384 + 8 + 256


class _TileSize:
    """pmax … total_available_sbuf_size; elements unless the name says bytes."""

    pmax = 128
    psum_fmax = 512
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes per partition that a kernel may use."""
        tracer = active_or_none()
        chip = tracer.chip if tracer is not None else target.chip()
        return _SBUF_BYTES[target.named(chip)] - _RESERVED_BYTES

    sbuf_fmax_bytes = total_available_sbuf_size

    @property
    def psum_fmax_bytes(self) -> int:
        """Bytes of one PSUM bank of a partition."""
        return 2048


tile_size = _TileSize()
