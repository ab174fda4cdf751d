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
FLAGS = ["-O3", "-std=c++20", "-fvisibility=hidden", "-fPIC", "-fopenmp", "-Wall", "-Wno-sign-compare", "-Wno-unknown-pragmas", "-g0"]


def newest_header() -> float:
    return max(path.stat().st_mtime for path in HERE.rglob("*.h"))


def main() -> None:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{HERE.parent}", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]
    objects, headers = [], newest_header()
    for source in sorted([*HERE.glob("*.cpp"), *(HERE / "python").glob("*.cpp")]):
        target = OBJECTS / ("-".join(source.relative_to(HERE).parts) + ".o")
        objects.append(str(target))
        if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, headers):
            continue
        print(source.name, flush=True)
        subprocess.run(["g++", *FLAGS, *includes, "-c", str(source), "-o", str(target)], check=True)
    subprocess.run(["g++", "-shared", "-fopenmp", *objects, "-o", str(TARGET)], check=True)
    print(TARGET)


if __name__ == "__main__":
    sys.exit(main())
