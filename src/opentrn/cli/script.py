"""Runs a user's program in this process exactly as `python script.py` and `python -m module` would."""

from __future__ import annotations

import builtins
import difflib
import importlib.util
import io
import os
import runpy
import sys
import sysconfig
import threading
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from opentrn.errors import ConfigurationError

INTERRUPTED_EXIT = 130
# What PyTorch's CPU build says to a script that asks for CUDA.
_NO_CUDA = "Torch not compiled with CUDA enabled"


@dataclass(frozen=True)
class Target:
    """What to run: a script's path or a module's name, and the arguments it sees."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    @property
    def stem(self) -> str:
        """For file names."""
        return self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem or "run"

    def __str__(self) -> str:
        return " ".join((["-m"] if self.is_module else []) + [self.name, *self.arguments])


@dataclass(frozen=True)
class Outcome:
    """How the program ended: the exit code Python would give, and in words."""

    exit_code: int
    ended: str


def check_target(target: Target) -> None:
    """ConfigurationError, with names that are close, if there is nothing to run."""
    if target.is_module:
        root = target.name.partition(".")[0]
        if sys.path[0] != os.getcwd():
            found = importlib.util.find_spec(root) or importlib.machinery.PathFinder.find_spec(
                root, [os.getcwd()]
            )
        else:
            found = importlib.util.find_spec(root)
        if found is None:
            raise ConfigurationError(
                f"there is no module '{root}'", cure="check the name, or install the package"
            )
        return
    path = Path(target.name)
    if path.exists():
        if path.is_file() and not os.access(path, os.R_OK):
            raise ConfigurationError(f"the script '{path}' cannot be read", cure="check its permissions")
        return
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, [name for name in names if name.endswith(".py")], n=3)
    cure = (
        "did you mean " + ", ".join(str(folder / name) for name in close) + "?" if close else "check the path"
    )
    raise ConfigurationError(f"there is no script '{target.name}'", cure=cure)


def run_target(target: Target) -> Outcome:
    """Runs the program to its end; prints its own traceback where it raises. Never raises for what the
    program does."""
    try:
        if target.is_module:
            _run_module(target)
        else:
            _run_script(target)
        _wait_for_threads()
    except SystemExit as stop:
        return _exit_outcome(stop)
    except KeyboardInterrupt:
        print("opentrn: interrupted; the report covers what ran", file=sys.stderr)
        return Outcome(INTERRUPTED_EXIT, "interrupted")
    except BaseException as error:
        traceback = _without_our_frames(error.__traceback__)
        # The program may have installed a hook of its own.
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        first_line = (str(error).splitlines() or [""])[0]
        said = f"raised {type(error).__name__}: {first_line}".rstrip(": ")
        if _NO_CUDA in first_line:
            print("opentrn: what to do: --from-cuda runs a CUDA script unchanged", file=sys.stderr)
        return Outcome(1, said if " (at " in said else f"{said}{_place(traceback)}")
    return Outcome(0, "completed")


def _run_script(target: Target) -> None:
    sys.argv = [target.name, *target.arguments]
    path = os.path.join(os.getcwd(), target.name)
    if Path(path).is_dir():
        runpy.run_path(target.name, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    # Not runpy.run_path: it takes `__main__` away again when the script ends, and pickles, worker processes
    # and exit handlers of the script still need it.
    main = types.ModuleType("__main__")
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _run_module(target: Target) -> None:
    # runpy fills in argv[0]; `python -m` puts the working directory first.
    sys.argv = [target.name, *target.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    runpy.run_module(target.name, run_name="__main__", alter_sys=True)


def _wait_for_threads() -> None:
    """As Python does at its end: the program is over when its threads are."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _exit_outcome(stop: SystemExit) -> Outcome:
    """What Python makes of the argument of sys.exit."""
    if stop.code is None:
        return Outcome(0, "completed")
    if isinstance(stop.code, int):
        return Outcome(stop.code & 0xFF, "completed" if stop.code == 0 else f"exited with code {stop.code}")
    print(stop.code, file=sys.stderr)
    return Outcome(1, "exited with a message")


def _place(traceback: TracebackType | None) -> str:
    """ " (at FILE:LINE)" of the innermost frame that is neither Python's, an installed package's nor ours."""
    installed = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    others = (*installed, str(Path(__file__).parents[1]), "<")
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(traceback)
        if not frame.f_code.co_filename.startswith(others)
    ]
    return f" (at {own[-1][0]}:{own[-1][1]})" if own else ""


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on; None for a program that does not compile."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file not in (__file__, runpy.__file__, "<frozen runpy>"):
            break
        traceback = traceback.tb_next
    return traceback
