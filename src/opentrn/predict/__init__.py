"""`opentrn predict`: will a model fit on a machine and how fast does it train or serve, by dry runs
without a script."""

from __future__ import annotations

from typing import Any

from opentrn.predict.plan import Plan

__all__ = ["Plan", "Prediction", "predict"]


def __getattr__(name: str) -> Any:
    # Loads PyTorch; a plan and the catalogue do not need it.
    if name in ("Prediction", "predict"):
        from opentrn.predict import prediction

        return getattr(prediction, name)
    raise AttributeError(f"module 'opentrn.predict' has no attribute '{name}'")
