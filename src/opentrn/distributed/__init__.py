"""Distributed programs: a fake world in which one process plays rank r of N and collectives cost modelled
time."""

from opentrn.distributed.world import fake_world

__all__ = ["fake_world"]
