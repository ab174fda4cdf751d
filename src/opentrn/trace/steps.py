"""Where a training step ends, and how many tokens it had.

By default a step ends when the optimizer has stepped, seen through PyTorch's optimizer hooks. Several
optimizers make one step
together: it ends with the last of them before one steps again. A step whose optimizer the gradient scaler
skipped is a step too. Without any optimizer the whole run is one span. `opentrn.step()` marks step ends by
hand and then rules alone.

The tokens of a step are the indices that reached its busiest nn.Embedding: summed over micro-batches, and the
largest over embeddings, so that position tables and decoder inputs are not counted twice. Evaluation
(gradients off) between steps belongs to
none: neither its tokens nor its time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from opentrn.trace.counters import Counters, PhaseTotal
from opentrn.trace.record import Step

MODES = ("auto", "optimizer", "manual")


@dataclass
class _Segment:
    """What has been gathered since the last mark."""

    # Indices by embedding, with gradients on and off, and the largest last dimension of each.
    tokens: dict[int, int] = field(default_factory=dict)
    tokens_without_gradient: dict[int, int] = field(default_factory=dict)
    sequence: dict[int, int] = field(default_factory=dict)
    given: int | None = None
    peak: int = -1

    def plus(self, other: _Segment) -> _Segment:
        """Both together."""
        sequence = dict(self.sequence)
        for key, value in other.sequence.items():
            sequence[key] = max(sequence.get(key, 0), value)
        given = None if self.given is None and other.given is None else (self.given or 0) + (other.given or 0)
        return _Segment(
            dict(Counter(self.tokens) + Counter(other.tokens)),
            dict(Counter(self.tokens_without_gradient) + Counter(other.tokens_without_gradient)),
            sequence,
            given,
            max(self.peak, other.peak),
        )


class StepRecorder:
    """Gathers steps. `read` returns the counters; `mark` closes a memory segment and returns its peak
    (bytes).

    by: "auto" (optimizers until `opentrn.step()` is first called), "optimizer" or "manual".
    tokens_per_step: overrides the count.
    before_step(optimizer), after_step(optimizer): called around each outermost optimizer step.
    """

    def __init__(
        self,
        read: Callable[[], Counters],
        mark: Callable[[], int],
        by: str = "auto",
        tokens_per_step: int | None = None,
        before_step: Callable[[Any], None] = lambda optimizer: None,
        after_step: Callable[[Any], None] = lambda optimizer: None,
    ) -> None:
        self.steps: list[Step] = []
        self.by = by
        self._read, self._mark = read, mark
        self._tokens_per_step = tokens_per_step
        self._before_step, self._after_step = before_step, after_step
        self._handles: list[Any] = []
        self._scaler_step: Any = None
        self._run_start = read()
        self._first_call: Counters | None = None
        # Start of the open step; None until its first module call with gradients.
        self._start: Counters | None = None
        # Modules called with gradients on: the ones whose evaluation is recognised.
        self._trained: set[int] = set()
        self._trained_since_mark = False
        self._evaluated = False
        self._restart: Counters | None = None
        # Gathered since the last mark, over the open step, over the run.
        self._since_mark, self._open, self._run = _Segment(), _Segment(), _Segment()
        # End of the open step as far as known: it closes when one of `_stepped` steps again.
        self._candidate: Counters | None = None
        self._stepped: set[int] = set()
        self._kind = "optimizer"
        self._optimizer_calls = 0

    # ---- what the module observer reports ------------------------------------------------------------------

    def module_called(self, module: nn.Module) -> None:
        """An outermost module call begins.

        A trained module that is called in eval mode with gradients off, at the head of a step, is being
        evaluated; the step then starts at its next call with gradients. (A frozen teacher, or a generator
        without gradients, is work of the step.)
        """
        if self._first_call is None:
            self._first_call = self._read()
        if not torch.is_grad_enabled():
            if not module.training and not self._trained_since_mark and id(module) in self._trained:
                self._evaluated = True
            return
        self._trained.add(id(module))
        if self._trained_since_mark:
            return
        self._trained_since_mark = True
        if self._start is None and self._candidate is None:
            self._start = self._read()
        elif self._evaluated:
            self._set_apart()
            self._restart = self._read()
        self._evaluated = False

    def embedding_called(self, embedding: Any, index: torch.Tensor) -> None:
        """An embedding is called with integer indices."""
        segment = self._since_mark
        tokens = segment.tokens if torch.is_grad_enabled() else segment.tokens_without_gradient
        key = id(embedding)
        tokens[key] = tokens.get(key, 0) + index.numel()
        if index.dim():
            segment.sequence[key] = max(segment.sequence.get(key, 0), index.shape[-1])

    # ---- boundaries ----------------------------------------------------------------------------------------

    def install(self) -> None:
        """Hooks optimizers and the gradient scaler."""
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        self._watch_scaler()

    def remove(self) -> None:
        """Takes the hooks off; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._scaler_step is not None:
            torch.amp.GradScaler.step = self._scaler_step  # type: ignore[method-assign]
            self._scaler_step = None

    def _watch_scaler(self) -> None:
        """A scaler that met an overflow does not call its optimizer, so no hook tells; its own step does."""
        recorder, original = self, torch.amp.GradScaler.step
        self._scaler_step = original

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            calls = recorder._optimizer_calls
            result = original(scaler, optimizer, *args, **kwargs)
            if recorder._optimizer_calls == calls and scaler.is_enabled():
                recorder._ended(_key(optimizer), "skipped")
            return result

        step.__doc__, step.__name__ = original.__doc__, original.__name__
        torch.amp.GradScaler.step = step  # type: ignore[method-assign, assignment]

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _nested(sys._getframe(1)):
            self._before_step(optimizer)

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _nested(sys._getframe(1)):
            return
        self._optimizer_calls += 1
        self._after_step(optimizer)
        self._ended(_key(optimizer), "optimizer")

    def _ended(self, optimizer: int, kind: str) -> None:
        if self.by == "manual":
            return
        now = self._read()
        if self._candidate is not None and optimizer in self._stepped:
            self._close()
            self._start = self._restart or self._start
        self._merge()
        # One optimizer that stepped makes it a step; only if all were skipped is the step skipped.
        if not self._stepped or kind == "optimizer":
            self._kind = kind
        self._stepped.add(optimizer)
        self._candidate = now

    def manual(self, tokens: int | None = None) -> None:
        """`opentrn.step()`: the step ends here."""
        if self.by == "optimizer":
            return
        if tokens is not None:
            self._since_mark.given = tokens
        self._start = self._restart or self._start
        self._merge()
        if self.by == "auto":
            # What optimizers have marked so far is part of the first step by hand.
            self.by, self.steps, self._start = "manual", [], None
            self._open = self._run
        self._kind, self._candidate = "manual", self._read()
        self._close()

    def finish(self) -> Step:
        """Closes the last step and returns the whole run as one span, from the first module call on."""
        # Work after the last mark belongs to the run but to no step.
        self._set_apart()
        if self._candidate is not None:
            self._close()
        start = self._first_call or self._run_start
        return self._step(start, self._read(), self._run, "span", index=0)

    # ---- the open step -------------------------------------------------------------------------------------

    def _merge(self) -> None:
        """What was gathered since the last mark becomes part of the open step."""
        segment = self._since_mark
        self._set_apart()
        self._open = self._open.plus(segment)
        self._trained_since_mark, self._restart = False, None

    def _set_apart(self) -> None:
        """What was gathered since the last mark becomes part of the run only."""
        self._since_mark.peak = self._mark()
        self._run = self._run.plus(self._since_mark)
        self._since_mark = _Segment()

    def _close(self) -> None:
        end = self._candidate
        assert end is not None
        start = self._start or self._first_call or self._run_start
        self.steps.append(self._step(start, end, self._open, self._kind, index=len(self.steps)))
        self._start, self._candidate, self._open = end, None, _Segment()
        self._stepped, self._kind = set(), "optimizer"

    def _step(self, start: Counters, end: Counters, segment: _Segment, kind: str, index: int) -> Step:
        tokens, source, sequence = self._count(segment, kind)
        return make_step(index, kind, start, end, tokens, source, sequence, segment.peak)

    def _count(self, segment: _Segment, kind: str) -> tuple[int, str, int]:
        counted = segment.tokens or segment.tokens_without_gradient
        sequence = segment.sequence.get(max(counted, key=counted.__getitem__), -1) if counted else -1
        if segment.given is not None:
            return segment.given, "given", sequence
        if self._tokens_per_step is not None and kind != "span":
            return self._tokens_per_step, "given", sequence
        if counted:
            return max(counted.values()), "embedding", sequence
        return -1, "unknown", sequence


def make_step(
    index: int, kind: str, start: Counters, end: Counters, tokens: int, source: str, sequence: int, peak: int
) -> Step:
    """The step between two readings of the counters."""
    none = PhaseTotal()
    phases = {name: total - start.phases.get(name, none) for name, total in end.phases.items()}

    def device_ns(name: str) -> int:
        return phases.get(name, none).device_ns

    return Step(
        index=index,
        kind=kind,
        host_start=start.host,
        host_end=end.host,
        completion_start=start.completion,
        completion_end=end.completion,
        measured_ns=end.wall - start.wall,
        tokens=tokens,
        tokens_from=source,
        sequence_length=sequence,
        operators=end.operators - start.operators,
        device_busy_ns=end.busy - start.busy,
        modelled_ns=end.modelled - start.modelled,
        simulated_ns=end.simulated - start.simulated,
        forward_ns=device_ns("outside") + device_ns("forward"),
        backward_ns=device_ns("backward"),
        recompute_ns=device_ns("recompute"),
        optimizer_ns=device_ns("optimizer"),
        flops=end.flops - start.flops,
        recompute_flops=phases.get("recompute", none).flops,
        bytes=end.bytes - start.bytes,
        peak_allocated=peak,
    )


def _key(optimizer: Any) -> int:
    """Tells optimizers apart by what they update: a new one over the same parameters is the same."""
    for group in optimizer.param_groups:
        if group["params"]:
            return id(group["params"][0])
    return id(optimizer)


def _nested(frame: FrameType) -> bool:
    """Whether the optimizer step whose hook runs in `frame` was called by another optimizer's step.

    An optimizer that wraps or extends another one runs hooks for both; the outermost alone ends a step.
    Looking at the stack needs no state that an exception could leave behind.
    """
    code, outer = frame.f_code, frame.f_back
    while outer is not None:
        if outer.f_code is code:
            return True
        outer = outer.f_back
    return False


_active: StepRecorder | None = None


def activate(recorder: StepRecorder | None) -> None:
    """Makes `step()` report to this recorder; None: to nobody."""
    global _active
    _active = recorder


def step(tokens: int | None = None) -> None:
    """Marks the end of a step by hand, for loops without a torch optimizer; does nothing outside `opentrn
    run`.

    tokens: of this step; by default the embeddings' indices are counted.
    """
    if _active is not None:
        _active.manual(tokens)
