"""What is done with a sample on both sides, and the verdict.

A check is a list of *forms*; a form is one call that runs on either side and returns whatever must be equal.

    forward        the operator
    backward       gradients of its results for fixed random cotangents; and of its in-place variant
    out            `out=` of the right size, empty (to be resized) and strided
    inplace        the method with a trailing underscore and the augmented assignment
    noncontiguous  forward and backward on arguments with gaps between their elements
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from opentrn.quality.operators import catalogue
from opentrn.quality.operators.comparison import (
    Difference,
    Outcome,
    Strictness,
    flatten,
    outcome_difference,
)
from opentrn.quality.operators.exceptions import Exceptions
from opentrn.quality.operators.placement import Placed, Side, place

# Of each operator and dtype, at most this many failures are described in full; all are counted.
_DESCRIBED = 5
_CPU_SEED = 1234

# Verdicts on a sample, mildest first; the worst over a check's forms counts.
_SEVERITY = ("skipped", "passed", "undefined", "values", "unsupported", "failed")

Call = Callable[[Any, Any, Placed, Side], Any]


class NotApplicableError(Exception):
    """A form has nothing to do for this sample; the text is the reason in the summary."""


@dataclass
class Failure:
    """One sample that differs. `explanation`: under which conditions CPU differs from itself, if any."""

    operator: str
    dtype: str
    check: str
    form: str
    sample: int
    kind: str
    text: str
    explanation: str
    arguments: str
    excused_by: str = ""  # the reason in exceptions.toml
    rule: str = ""  # and its rule


@dataclass
class Tally:
    """Samples of one operator, dtype and check, by verdict.

    undefined: equal but for bits that are random, never written or irreproducible on CPU. values: of a dry
    run, where the answer depends on values by its nature. unsupported: a listed exception. nan_payload: those
    of `passed` whose NaN payloads differ.
    """

    operator: str
    dtype: str
    check: str
    passed: int = 0
    undefined: int = 0
    unsupported: int = 0
    values: int = 0
    failed: int = 0
    nan_payload: int = 0
    seconds: float = 0.0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


# --- the forms ----------------------------------------------------------------------------------------------


def forward(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
    return entry.op(placed.input, *placed.args, **placed.kwargs)


def _cotangent(leaf: torch.Tensor, index: int, placed: Placed) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    value = torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator)
    return placed.mover.move(value)


def _gradients(result: Any, placed: Placed) -> Any:
    leaves: list[Any] = []
    flatten(result, leaves)
    roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in placed.tensors if tensor.requires_grad]
    if not roots:
        raise NotApplicableError("no result depends on a gradient")
    known = len(placed.tensors)
    cotangents = [_cotangent(root, index, placed) for index, root in enumerate(roots)]
    del placed.tensors[known:]
    gradients = torch.autograd.grad(roots, inputs, cotangents, allow_unused=True)
    return leaves, gradients


def backward(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
    result = entry.op(placed.input, *placed.args, **placed.kwargs)
    return _gradients(sample.output_process_fn_grad(result), placed)


def backward_inplace(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
    method = entry.get_inplace()
    if method is None or not entry.supports_inplace_autograd:
        raise NotApplicableError("no in-place variant with autograd")
    if sample.broadcasts_input:
        raise NotApplicableError("the result is larger than the input")
    # A leaf must not be written, its clone may.
    result = method(placed.input.clone(), *placed.args, **placed.kwargs)
    return _gradients(sample.output_process_fn_grad(result), placed)


def inplace(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
    result = entry.get_inplace()(placed.input, *placed.args, **placed.kwargs)
    return result, result is placed.input


def inplace_operator(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
    result = entry.inplace_operator_variant(placed.input, *placed.args)
    return result, result is placed.input


def _blank(template: torch.Tensor, layout: str) -> torch.Tensor:
    """A host tensor to give as `out=`: filled, so that an element left unwritten shows."""
    if layout == "empty":
        return template.new_empty(0)
    if layout == "strided":
        return template.new_ones((*template.shape, 2))[..., 1]
    return torch.ones_like(template)


def out_form(layout: str) -> Call:
    def out(entry: Any, sample: Any, placed: Placed, side: Side) -> Any:
        templates = sample.templates
        outs = placed.mover.move([_blank(template, layout) for template in templates])
        if templates.named is not None:
            result = entry.op(placed.input, *placed.args, **placed.kwargs, out=tuple(outs))
            return result, [one is other for one, other in zip(result, outs, strict=True)]
        result = entry.op(placed.input, *placed.args, **placed.kwargs, out=outs[0])
        return result, result is outs[0]

    return out


class Templates(list):
    """The tensors a plain call returned on CPU. named: the tuple's type if there were several, else None."""

    named: type | None = None

    @classmethod
    def of(cls, result: Any) -> Templates:
        if isinstance(result, torch.Tensor):
            return cls([result])
        if isinstance(result, tuple | list) and all(isinstance(item, torch.Tensor) for item in result):
            found = cls(result)
            found.named = type(result)
            return found
        raise NotApplicableError("the result is not a tensor")


class OutSample:
    """A sample with the shapes its `out=` tensors need; computed once for the three layouts."""

    def __init__(self, entry: Any, sample: Any) -> None:
        self.input, self.args, self.kwargs = sample.input, sample.args, sample.kwargs
        self.summary = sample.summary
        placed = place(sample, Side("cpu"))
        self.templates = Templates.of(entry.op(placed.input, *placed.args, **placed.kwargs))


# --- running one form on two sides --------------------------------------------------------------------------


@dataclass
class Position:
    """Where a worker is; it goes into the crash report."""

    operator: str = ""
    dtype: str = ""
    check: str = ""
    form: str = ""
    sample: int = 0


def _verdict(failure: Failure) -> str:
    if not failure.rule:
        return "failed"
    return failure.rule if failure.rule in ("unsupported", "values") else "undefined"


class OperatorCheck:
    """All checks of one operator and dtype between two sides."""

    def __init__(
        self,
        name: str,
        entry: Any,
        dtype: torch.dtype,
        reference: Side,
        target: Side,
        exceptions: Exceptions,
        announce: Callable[[Position], None],
    ) -> None:
        self.name, self.entry, self.dtype = name, entry, dtype
        self.exceptions, self.announce = exceptions, announce
        self.random = exceptions.is_random(name)
        self.reference = reference.with_seed(_CPU_SEED) if self.random else reference
        self.target = target.with_seed(_CPU_SEED) if self.random else target
        self.host_arguments = exceptions.host_arguments(name)
        self.failures: list[Failure] = []
        self.position = Position(name, catalogue.dtype_name(dtype))

    def run(self, checks: tuple[str, ...]) -> list[Tally]:
        plain = differentiable = None
        tallies = []
        for check in checks:
            started = time.perf_counter()
            tally = Tally(self.name, self.position.dtype, check)
            if check in ("forward", "out", "inplace", "noncontiguous") and plain is None:
                plain = catalogue.samples(self.name, self.entry, self.dtype, requires_grad=False)
            with_gradient = catalogue.has_backward(self.entry, self.dtype)
            if check in ("backward", "noncontiguous") and with_gradient and differentiable is None:
                differentiable = catalogue.samples(self.name, self.entry, self.dtype, requires_grad=True)
            getattr(self, f"_check_{check}")(tally, plain or [], differentiable or [])
            tally.seconds = time.perf_counter() - started
            tallies.append(tally)
        return tallies

    def _check_forward(self, tally: Tally, plain: list[Any], differentiable: list[Any]) -> None:
        for index, sample in enumerate(plain):
            self._judge(tally, index, sample, [("", forward)])

    def _check_backward(self, tally: Tally, plain: list[Any], differentiable: list[Any]) -> None:
        for index, sample in enumerate(differentiable):
            self._judge(tally, index, sample, [("", backward), ("in-place", backward_inplace)])

    def _check_inplace(self, tally: Tally, plain: list[Any], differentiable: list[Any]) -> None:
        forms: list[tuple[str, Call]] = []
        if self.entry.get_inplace() is not None:
            forms.append(("", inplace))
        if self.entry.inplace_operator_variant is not None:
            forms.append(("operator", inplace_operator))
        for index, sample in enumerate(plain if forms else []):
            self._judge(tally, index, sample, forms)

    def _check_out(self, tally: Tally, plain: list[Any], differentiable: list[Any]) -> None:
        forms = [(layout, out_form(layout)) for layout in ("exact", "empty", "strided")]
        for index, sample in enumerate(plain if self.entry.supports_out else []):
            try:
                prepared = OutSample(self.entry, sample)
            except NotApplicableError as reason:
                tally.skip(str(reason))
            except Exception as error:
                tally.skip(f"CPU refuses it too ({type(error).__name__})")
            else:
                self._judge(tally, index, prepared, forms)

    def _check_noncontiguous(self, tally: Tally, plain: list[Any], differentiable: list[Any]) -> None:
        for samples, form, call in ((plain, "forward", forward), (differentiable, "backward", backward)):
            for index, sample in enumerate(samples):
                try:
                    spaced = sample.noncontiguous()
                except RuntimeError:
                    tally.skip("a sparse argument has no gaps to widen")
                else:
                    self._judge(tally, index, spaced, [(form, call)])

    def _judge(self, tally: Tally, index: int, sample: Any, forms: list[tuple[str, Call]]) -> None:
        """One verdict for a sample: the worst over its forms."""
        outcome, reason = "skipped", ""
        for form, call in forms:
            position = self.position
            position.check, position.form, position.sample = tally.check, form, index
            self.announce(position)
            try:
                difference = self._compare(call, sample, self.reference, self.target)
            except NotApplicableError as error:
                reason = reason or str(error)
                continue
            if difference is not None and difference.kind == "nan-payload":
                tally.nan_payload += 1
                difference = None
            if difference is None:
                outcome = max(outcome, "passed", key=_SEVERITY.index)
                continue
            failure = self._explain(tally, index, sample, form, call, difference)
            self._record(failure, tally)
            outcome = max(outcome, _verdict(failure), key=_SEVERITY.index)
        if outcome == "skipped":
            tally.skip(reason)
        else:
            setattr(tally, outcome, getattr(tally, outcome) + 1)

    def _record(self, failure: Failure, tally: Tally) -> None:
        alike = [
            one for one in self.failures if one.excused_by == failure.excused_by and one.check == tally.check
        ]
        if len(alike) < _DESCRIBED:
            self.failures.append(failure)

    def _compare(
        self, call: Call, sample: Any, reference: Side, target: Side, strict: Strictness | None = None
    ) -> Difference | None:
        """The first difference between the two sides; raises NotApplicableError if CPU refuses as well."""
        expected = self._execute(call, sample, reference)
        if isinstance(expected.error, NotApplicableError):
            raise expected.error
        actual = self._execute(call, sample, target)
        if strict is None:
            strict = Strictness(
                values=not target.dry,
                offsets=not target.shift,
                arguments=call not in (backward, backward_inplace),
            )
        difference = outcome_difference(expected, actual, target.device_type, strict)
        if difference is None and expected.error is not None:
            raise NotApplicableError(f"CPU refuses it too ({type(expected.error).__name__})")
        return difference

    def _execute(self, call: Call, sample: Any, side: Side) -> Outcome:
        if side.is_plain:
            return self._execute_here(call, sample, side)
        with side.running():
            return self._execute_here(call, sample, side)

    def _execute_here(self, call: Call, sample: Any, side: Side) -> Outcome:
        placed = Placed()
        try:
            placed = place(sample, side, self.host_arguments)
            if placed.floats_free and side.device != "cpu":
                with torch.device(side.device):
                    result = call(self.entry, sample, placed, side)
            else:
                result = call(self.entry, sample, placed, side)
        except Exception as error:
            return Outcome(error=error, arguments=placed.tensors)
        outcome = Outcome(arguments=placed.tensors)
        outcome.shape = flatten(result, outcome.leaves)
        return outcome

    def _explain(
        self, tally: Tally, index: int, sample: Any, form: str, call: Call, difference: Difference
    ) -> Failure:
        """A failure, with CPU's own reproducibility and the exception that covers it, if any."""
        failure = Failure(
            operator=self.name,
            dtype=self.position.dtype,
            check=tally.check,
            form=form,
            sample=index,
            kind=difference.kind,
            text=difference.text,
            explanation="",
            arguments=catalogue.describe(sample),
        )
        entry = self.exceptions.excuse(failure, [])
        if entry is None and difference.kind == "bits":
            causes = self._instability(call, sample)
            failure.explanation = ", ".join(causes)
            entry = self.exceptions.excuse(failure, causes)
        if entry is not None:
            failure.excused_by, failure.rule = entry.reason, entry.rule
        return failure

    def _instability(self, call: Call, sample: Any) -> list[str]:
        """The first condition under which CPU's bits differ from CPU's own: "seed", "alignment", "memory"."""
        home = Side("cpu", seed=_CPU_SEED)
        # Several of each: a draw of one from two comes out the same under half of all seeds.
        conditions = {
            "seed": [Side("cpu", seed=_CPU_SEED + more) for more in range(1, 13)],
            "alignment": [Side("cpu", seed=_CPU_SEED, shift=shift) for shift in (1, 3)],
            "memory": [Side("cpu", seed=_CPU_SEED, poison=byte) for byte in (0x00, 0x5A, 0xFF)],
        }
        for name, sides in conditions.items():
            if self._varies(call, sample, home, sides):
                return [name]  # one is proof enough, and each costs as much as the comparison itself
        return []

    def _varies(self, call: Call, sample: Any, home: Side, sides: list[Side]) -> bool:
        strict = Strictness(values=True, offsets=False, arguments=False)
        for side in sides:
            try:
                difference = self._compare(call, sample, home, side, strict)
            except NotApplicableError:
                return False
            if difference is not None and difference.kind == "bits":
                return True
        return False
