"""Programs written by hand on the builder: what the eager device times, and the proof of the builder
outside NKI.

Each module makes programs for a family of operators; `signatures` answers "how long does this operator take"
with a cache by signature.
"""
