"""Builds the extensions; everything else is declared in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
# Building imports torch, which would load the very extension that is being built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
REQUIRED_TORCH = "2.13.0"


def refuse(cause: str, cure: str) -> None:
    sys.exit(f"opentrn: cannot build: {cause}\n  what to do: {cure}")


def check_toolchain() -> None:
    """Names a missing compiler or a wrong torch in one line, before ninja prints a page."""
    try:
        import torch
    except ImportError:
        refuse("torch is not installed in the build environment", f"pip install torch=={REQUIRED_TORCH}")
    found = torch.__version__.split("+")[0]
    if found != REQUIRED_TORCH:
        refuse(
            f"torch {found} is installed, and the extension is written against {REQUIRED_TORCH}",
            f"pip install torch=={REQUIRED_TORCH}",
        )
    compiler = os.environ.get("CXX", "g++").split()[0]
    if shutil.which(compiler) is None:
        refuse(
            f"no C++ compiler: '{compiler}' is not on PATH",
            "install g++ 11 or newer (Debian: apt-get install g++), or set CXX",
        )


def extensions() -> list:
    from pybind11.setup_helpers import Pybind11Extension
    from torch.utils.cpp_extension import CppExtension

    def sources(*folders: str) -> list[str]:
        return sorted(
            str(path.relative_to(ROOT))
            for folder in folders
            for path in (ROOT / "csrc" / folder).glob("*.cpp")
        )

    flags = ["-std=c++20", "-fvisibility=hidden", "-Wall", "-Wno-sign-compare", "-Wno-unknown-pragmas", "-g0"]
    # Glue calls PyTorch; in the core its own loops take the time. Neither errno nor floating-point traps are
    # read, and without them square roots, comparisons and conversions vectorise; values stay the same.
    glue, loops = ["-O2", *flags], ["-O3", "-fno-math-errno", "-fno-trapping-math", *flags]
    result = [
        CppExtension(
            "opentrn.device._C",
            sources("timeline", "device"),
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args={"cxx": glue},
        ),
        CppExtension("opentrn.port._redirect", sources("port"), extra_compile_args={"cxx": glue}),
    ]
    core = sources("core", "core/python")
    if core:
        result.append(
            Pybind11Extension(
                "opentrn.core._C",
                core,
                include_dirs=[str(ROOT / "csrc")],
                extra_compile_args=[*loops, "-fopenmp"],
                extra_link_args=["-fopenmp"],
            )
        )
    return result


check_toolchain()

from setuptools.command.build_py import build_py  # noqa: E402
from torch.utils.cpp_extension import BuildExtension  # noqa: E402


class BuildWithStartup(build_py):
    """Puts `opentrn.pth` beside the packages: see src/opentrn_names.py. An editable install has `make setup`
    do it.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            (Path(self.build_lib) / "opentrn.pth").write_text("import opentrn_names\n")


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtension, "build_py": BuildWithStartup})
