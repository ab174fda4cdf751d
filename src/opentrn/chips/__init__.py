"""The hardware as data: chips, instances, networks and prices, each figure with its source.

`machine()` resolves what is attached to this process; `load_chip` and `load_instance` read one file each.
Reading is lazy and light: it happens at first use of the device, in every process.
"""

from opentrn.chips.load import chip_names, chip_of_target, instance_names, load_chip, load_instance
from opentrn.chips.machine import Machine, machine
from opentrn.chips.model import Chip, Conflict, Constant, Instance, Source

__all__ = [
    "Chip",
    "Conflict",
    "Constant",
    "Instance",
    "Machine",
    "Source",
    "chip_names",
    "chip_of_target",
    "instance_names",
    "load_chip",
    "load_instance",
    "machine",
]
