"""Errors of the NKI interface."""

from opentrn.errors import UnsupportedError


class NkiValidationError(UnsupportedError):
    """A hardware constraint is violated: the public name of that error."""
