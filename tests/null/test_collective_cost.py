"""Durations of collectives against the formulas worked out by hand."""

from __future__ import annotations

import pytest

from opentrn.distributed.cost import collective_ns, span_of

MACHINE = {
    "devices_per_instance": 64,
    "devices_per_chip": 4,
    "same_chip_hop_ns": 1500,
    "same_chip_bytes_per_s": 736e9,
    "scale_up_hop_ns": 1500,
    "scale_up_bytes_per_s": 128e9,
    "domain_hop_ns": 0,
    "domain_bytes_per_s": 0.0,
    "domain_instances": 1,
    "scale_out_hop_ns": 15000,
    "scale_out_bytes_per_s": 6.25e9,
    "topology": "torus2d",
    "topology_x": 4,
    "topology_y": 4,
    "topology_z": 1,
}


def ns(kind: str, payload: int, ranks: range) -> int:
    return collective_ns(kind, payload, span_of(ranks, MACHINE), MACHINE)


def test_one_rank_costs_nothing():
    assert ns("all_gather", 1 << 30, range(1)) == 0


def test_ring_over_an_instance():
    """63 hops, and 63/64 of the data through the links of a chip: 4 × 128 GB/s."""
    assert ns("all_gather", 1 << 30, range(64)) == pytest.approx(
        63 * 1500 + 63 / 64 * (1 << 30) / 512, rel=1e-6
    )
    assert ns("all_reduce", 1 << 30, range(64)) == pytest.approx(
        2 * ns("all_gather", 1 << 30, range(64)), rel=1e-6
    )


def test_small_messages_go_directly():
    """Two hops on average on a 4 × 4 torus."""
    assert ns("all_gather", 64, range(64)) == pytest.approx(2 * 1500, rel=0.01)


def test_one_rank_per_chip_has_a_quarter_of_its_links():
    whole, quarter = ns("all_gather", 1 << 30, range(64)), ns("all_gather", 1 << 30, range(0, 64, 4))
    assert quarter == pytest.approx(15 * 1500 + 15 / 16 * (1 << 30) / 128, rel=1e-6)
    assert quarter > 3 * whole


def test_between_instances_the_slow_links_rule():
    inside, between = ns("all_gather", 1 << 30, range(64)), ns("all_gather", 1 << 30, range(128))
    assert between - inside == pytest.approx(15000 + 0.5 * (1 << 30) / 64 / 6.25, rel=1e-6)


@pytest.mark.parametrize(
    "kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send"]
)
def test_more_data_takes_longer(kind):
    times = [ns(kind, size, range(64)) for size in (1 << 10, 1 << 20, 1 << 30)]
    assert times == sorted(times) and times[0] > 0
