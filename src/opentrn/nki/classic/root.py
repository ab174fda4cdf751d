"""The package `neuronxcc`: only what kernels and their tests import from it."""
