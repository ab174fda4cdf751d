"""The suites that are known: how to tell one, where its tests are, how pytest runs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opentrn.errors import ConfigurationError


@dataclass(frozen=True)
class Suite:
    """How a known repository runs its own tests.

    marker: a path that identifies it; paths: its import paths; tests: where its tests are; options: of
    pytest; packages: what its tests import beyond OpenTRN's own dependencies; targets: whether it takes
    --platform-target, and leaves out large cases in simulation; numeric: options that leave out the cases
    which read latencies; timing: whether there are such cases; outputs: its option for the folder where
    cases leave arrays (gigabytes, in the checkout and by the case's name, if nobody says).
    """

    name: str
    marker: str
    paths: tuple[str, ...]
    tests: str
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    targets: bool = False
    numeric: tuple[str, ...] = ()
    timing: bool = False
    outputs: str = ""


SUITES = (
    Suite(
        "nki-library",
        "src/nkilib_src/nkilib",
        ("src", "src/nkilib_src", "."),
        "test/integration",
        ("-c", "test/pytest.ini", "--rootdir=.", "--test-mode", "simulation", "--force-local-cleanup"),
        (
            "pytest-html",
            "allpairspy",
            "boto3",
            "fabric2",
            "aws-embedded-metrics",
            "plotext",
            "attrs",
            "filelock",
            "debugpy",
        ),
        True,
        outputs="--output-directory",
    ),
    Suite(
        "nki-samples", "src/nki_samples", ("src",), "test/unit", numeric=("--simulation-only",), timing=True
    ),
    # Its cases are those of unittest: kernels named test_… are none.
    Suite(
        "sdk-documentation",
        "test_nki_isa_activation.py",
        (".",),
        ".",
        ("-o", "python_functions=none_of_the_functions"),
    ),
)


def detect(directory: Path) -> Suite:
    """The suite in a checkout. Raises ConfigurationError for an unknown one."""
    for suite in SUITES:
        if (directory / suite.marker).exists():
            return suite
    raise ConfigurationError(
        f"{directory} is none of the known kernel suites ({', '.join(suite.name for suite in SUITES)})",
        cure="pass a checkout of nki-library or nki-samples, or the nki/test folder of the SDK documentation",
    )


def test_files(suite: Suite, directory: Path, chosen: Sequence[str]) -> list[str]:
    """Paths of the test files inside the checkout: of all, or of the files, folders and cases named."""
    files: list[str] = []
    for name in chosen or [suite.tests]:
        path = directory / name.split("::")[0]
        if not path.exists():
            raise ConfigurationError(f"{name} is not in {directory}", cure="a path relative to the checkout")
        if path.is_dir():
            files += [str(file.relative_to(directory)) for file in sorted(path.rglob("test_*.py"))]
        else:
            files.append(name)
    return files


def command(suite: Suite, tests: Sequence[str], target: str, plan: Path, timing: bool = False) -> list[str]:
    """The pytest command line, to be run in the checkout."""
    line = [sys.executable, "-m", "pytest", "-p", "opentrn.nki.suites.plugin", "-p", "no:cacheprovider"]
    line += ["-q", "--no-header", "--tb=short", "--continue-on-collection-errors"]
    line += [*suite.options, "--opentrn-plan", str(plan)]
    # What reads latencies is what cannot run without a clock: the cases that are not marked for a simulator.
    line += ["-m", "not simulation"] if timing else suite.numeric
    if suite.targets:
        line += ["--platform-target", target]
    if suite.outputs:  # of its own: another run of the same checkout may be at the same case
        line += [suite.outputs, str(plan.with_suffix(".outputs"))]
    return [*line, *tests]


def environment(suite: Suite, directory: Path, target: str, large: bool) -> dict[str, str]:
    """Variables of the run: the attached chip, import paths, one thread, a stable parameter order."""
    values = dict(os.environ)
    for variable in ("NKI_NC_VERSION", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        values.pop(variable, None)
    values["OPENTRN_INSTANCE"] = target
    paths = [str(directory / path) for path in suite.paths]
    values["PYTHONPATH"] = os.pathsep.join([*paths, values.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # The library's all-pairs parameters depend on the order of hashes.
    values["NEURON_PYTHONHASHSEED"] = values["PYTHONHASHSEED"] = "0"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        values.setdefault(name, "1")
    if large:
        values["NKILIB_SIMULATION_RUN_ALL"] = "1"
    return values
