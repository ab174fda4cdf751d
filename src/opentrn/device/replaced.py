"""Attributes of PyTorch's and Python's modules, replaced for the time of a block."""

from __future__ import annotations

import contextlib
from typing import Any


class Replacements(contextlib.ExitStack):
    """A block that puts back what was replaced in it, last first."""

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name` until the block ends. What the owner only inherited, it inherits again."""
        own = vars(owner)
        if name in own:
            self.callback(setattr, owner, name, own[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)
