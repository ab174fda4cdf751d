"""Builds opentrn.core._C alone, object by object, for work on the core: python csrc/core/build.py"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src/opentrn/core" / ("_C" + sysconfig.get_config_var("EXT_SUFFIX"))
OBJECTS = Path(os.environ.get("OPENTRN_CORE_OBJECTS", "/tmp/opentrn-core-objects"))
FLAGS = [
    "-O3",
    "-std=c++20",
    "-fvisibility=hidden",
    "-fPIC",
    "-fopenmp",
    "-Wall",
    "-Wno-sign-compare",
    "-Wno-unknown-pragmas",
    "-g0",
]

# Compiled once per program or less: quick to build is better than quick to run.
COLD = ("control", "expression", "fold", "parallel", "place", "program", "table")


def newest_of(dependencies: Path, source: Path) -> float:
    """The newest file a source includes, from the list the compiler wrote last time; every header without
    one.
    """
    if dependencies.exists():
        names = dependencies.read_text().replace("\\\n", " ").split()[1:]
        return max(Path(name).stat().st_mtime for name in names if Path(name).exists())
    return max(source.stat().st_mtime, *(path.stat().st_mtime for path in HERE.rglob("*.h")))


def main() -> None:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{HERE.parent}", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]
    objects = []
    for source in sorted([*HERE.glob("*.cpp"), *(HERE / "python").glob("*.cpp")]):
        target = OBJECTS / ("-".join(source.relative_to(HERE).parts) + ".o")
        objects.append(str(target))
        listed = target.with_suffix(".d")
        if target.exists() and target.stat().st_mtime > newest_of(listed, source):
            continue
        print(source.name, flush=True)
        cold = ["-O1"] if source.parent.name == "python" or source.stem in COLD else []
        subprocess.run(
            [
                "g++",
                *FLAGS,
                *cold,
                *includes,
                "-MMD",
                "-MF",
                str(listed),
                "-c",
                str(source),
                "-o",
                str(target),
            ],
            check=True,
        )
    subprocess.run(["g++", "-shared", "-fopenmp", *objects, "-o", str(TARGET)], check=True)
    print(TARGET)


if __name__ == "__main__":
    sys.exit(main())
