"""What a collective costs, by closed formulas over the machine's network parameters. Every duration is
*modelled*.

Formulas: the α-β model of a ring and of a direct exchange (R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of Collective Communication Operations in MPICH", IJHPCA 2005); the algorithms that the vendor's
collectives pages name for one instance are rings and, for small messages, meshes. α is the hop latency and β
the bandwidth of the chip files, each with its source there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Share of the total payload that has to pass a member's links, in units of (n−1)/n, and rounds of n−1 hops.
_RING_PASSES = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
    "broadcast": 1,
    "reduce": 1,
    "gather": 1,
    "scatter": 1,
}


@dataclass(frozen=True)
class Span:
    """Where the members of a group sit.

    members: ranks. instances: machines they are on. per_instance: members on the fullest. chips: chips of the
    fullest instance in use. per_chip: members on the fullest chip.
    """

    members: int
    instances: int
    per_instance: int
    chips: int
    per_chip: int


def span_of(ranks: Sequence[int], parameters: Mapping[str, Any]) -> Span:
    """Ranks fill chips and instances in order, as torchrun numbers them."""
    per_instance, per_chip = int(parameters["devices_per_instance"]), int(parameters["devices_per_chip"])
    instances = Counter(rank // per_instance for rank in ranks)
    chips = Counter(rank // per_chip for rank in ranks)
    fullest = max(instances.values())
    used = len({rank // per_chip for rank in ranks if instances[rank // per_instance] == fullest})
    return Span(
        len(ranks),
        len(instances),
        fullest,
        max(used // sum(c == fullest for c in instances.values()), 1),
        max(chips.values()),
    )


def collective_ns(kind: str, payload: int, span: Span, parameters: Mapping[str, Any]) -> int:
    """Duration in ns of one collective.

    payload: bytes of the whole tensor: gathered output, scattered input, reduced tensor; for all_to_all what
    one member sends, for send and recv the message.
    """
    if span.members <= 1:
        return 0
    seconds = _inside(kind, payload, span, parameters)
    if span.instances > 1:
        seconds += _between(kind, payload, span, parameters)
    return max(round(seconds * 1e9), 1)


def _inside(kind: str, payload: int, span: Span, parameters: Mapping[str, Any]) -> float:
    """Within one instance, the better of ring and direct exchange."""
    n = span.per_instance
    if n <= 1:
        return 0.0
    hop, bandwidth, distance = _links(span, parameters)
    part = (n - 1) / n * payload
    if kind in ("send", "recv"):
        return hop + payload / bandwidth
    if kind == "all_to_all":
        return hop * distance + part * distance / bandwidth
    passes = _RING_PASSES[kind]
    ring = passes * ((n - 1) * hop + part / bandwidth)
    direct = passes * (hop * distance + part * distance / bandwidth)
    return min(ring, direct)


def _links(span: Span, parameters: Mapping[str, Any]) -> tuple[float, float, float]:
    """(seconds per hop, bytes/s into one member's ring, mean hops between members) within an instance."""
    if span.chips <= 1:
        return parameters["same_chip_hop_ns"] * 1e-9, float(parameters["same_chip_bytes_per_s"]), 1.0
    # A ring crosses a chip's border once however many members the chip has, so they share all of its links;
    # inside the chip each member still takes the data in by DMA.
    outside = parameters["scale_up_bytes_per_s"] * span.per_chip
    bandwidth = min(outside, parameters["same_chip_bytes_per_s"])
    distance = _mean_hops(parameters) if span.chips > 2 else 1.0
    return parameters["scale_up_hop_ns"] * 1e-9, float(bandwidth), distance


def _mean_hops(parameters: Mapping[str, Any]) -> float:
    """Mean distance on a torus: a quarter of each extent; 1 behind a switch."""
    if not str(parameters.get("topology", "")).startswith("torus"):
        return 1.0
    extents = [int(parameters[f"topology_{axis}"]) for axis in "xyz"]
    return max(sum(extent / 4 for extent in extents if extent > 1), 1.0)


def _between(kind: str, payload: int, span: Span, parameters: Mapping[str, Any]) -> float:
    """Between instances: each member exchanges its part with its peers on the other instances, by ring."""
    domain = span.instances <= int(parameters["domain_instances"]) and parameters["domain_bytes_per_s"] > 0
    name = "domain" if domain else "scale_out"
    hop, bandwidth = parameters[f"{name}_hop_ns"] * 1e-9, float(parameters[f"{name}_bytes_per_s"])
    m = span.instances
    if kind in ("send", "recv"):
        return hop + payload / bandwidth
    if kind == "all_to_all":
        return hop + (m - 1) / m * payload / bandwidth
    return _RING_PASSES[kind] * ((m - 1) * hop + (m - 1) / m * payload / span.per_instance / bandwidth)
