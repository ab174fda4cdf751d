"""`nki.builtin`: names that the kernel compiler defines by itself; all are Python's."""

import builtins as _builtins

range = _builtins.range
len = _builtins.len
print = _builtins.print
isinstance = _builtins.isinstance
