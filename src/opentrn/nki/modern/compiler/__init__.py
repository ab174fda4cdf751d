"""`nki.compiler`: the names that test tools import. Programs are built when a kernel is called."""

from opentrn.nki.modern.compiler import frontend, ncc_driver

__all__ = ["frontend", "ncc_driver"]
