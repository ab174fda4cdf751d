"""`neuronxcc.nki.compiler.backends`: parents of the `indexing` module."""
