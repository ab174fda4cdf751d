"""Each module prints a figure of ours beside its peer, both from one run: `python -m benchmarks.NAME`."""
