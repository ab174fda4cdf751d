"""Does the stack compute what it should? Sweeps that compare it with an oracle, and their reports.

`operators` compares the device with PyTorch on CPU, operator by operator. Nothing below this layer
imports it.
"""
