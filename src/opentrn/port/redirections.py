"""What of a CUDA script went elsewhere, how often, and where first."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Redirection:
    """One name of a CUDA script. where: "file.py:12 function" of its first use. count: uses so far."""

    name: str
    target: str
    where: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        return f"{self.name}{times} → {self.target} (first at {self.where})"


@dataclass
class Refusal:
    """A package or a feature that has no counterpart. cure: what to use instead."""

    name: str
    cure: str
    where: str

    def __str__(self) -> str:
        return f"{self.name}: not on this device; {self.cure} (at {self.where})"


@dataclass
class Ledger:
    """Redirections and refusals in the order of their first use."""

    entries: dict[str, Redirection] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)

    def note(self, name: str, target: str) -> None:
        """One use of `name`, which went to `target`; the Python frame is looked up only the first time."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.count += 1
            return
        self.entries[name] = Redirection(name, target, user_location())

    def refuse(self, name: str, cure: str) -> Refusal:
        if name not in self.refused:
            self.refused[name] = Refusal(name, cure, user_location())
        return self.refused[name]


def user_location() -> str:
    """ "file.py:12 function" of the innermost Python frame that is neither PyTorch's nor ours."""
    from opentrn.device import _C  # only where something is redirected: reading source text needs no device

    return _C.python_frame() or "?"


LEDGER = Ledger()
