"""Distributed programs: backend "neuron" of c10d (several processes, values through Gloo), and a fake world
in which one process plays rank r of N. Collectives cost modelled time in both.
"""

from opentrn.distributed.world import fake_world

__all__ = ["fake_world"]
