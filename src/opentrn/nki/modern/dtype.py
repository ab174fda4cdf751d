"""`nki.dtype`: the data types as names."""

from opentrn.nki.dtypes import TABLE as _TABLE
from opentrn.nki.newer import keep_apart as _keep_apart

globals().update({_name: _name for _name in _TABLE})
bool_ = "bool"
__getattr__ = _keep_apart("nki.dtype", globals())
__all__ = [name for name in (*_TABLE, "bool_") if name in globals()]
