"""Bringing programs over: CUDA scripts unchanged (`from_cuda`), and what the real stack would say of them
(`real_stack`)."""
