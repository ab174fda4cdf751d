"""`nki.dtype`: the data types as names."""

from opentrn.nki.dtypes import TABLE as _TABLE

globals().update({_name: _name for _name in _TABLE})
bool_ = "bool"
__all__ = [*_TABLE, "bool_"]
