"""`opentrn run` runs a program as `python` does: compared with python itself, without a device."""

import subprocess
import sys

import pytest

HARNESS = (
    "import sys\nfrom opentrn.cli.script import Target, run_target\n"
    "sys.exit(run_target(Target(sys.argv[2], sys.argv[1] == 'm', tuple(sys.argv[3:]))).exit_code)"
)


def ours(directory, kind, name, *arguments):
    command = [sys.executable, "-c", HARNESS, kind, name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


def python(directory, kind, name, *arguments):
    command = [sys.executable, *(["-m"] if kind == "m" else []), name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


SCRIPTS = {
    "sees itself": """
        import sys, os
        print(sys.argv, sys.path[0], __name__, __file__, __doc__, __package__, __spec__)
        print(type(__builtins__).__name__, sorted(k for k in globals() if k.startswith("__")))
        import __main__; print(__main__.__dict__ is globals())
        import neighbour; print(neighbour.value)
    """,
    "pickles its own classes": """
        import pickle
        class Point:
            x = 3
        print(pickle.loads(pickle.dumps(Point())).x, Point.__module__)
    """,
    "dataclasses and typing look up the module": """
        from __future__ import annotations
        import dataclasses, typing
        @dataclasses.dataclass
        class A:
            x: int = 1
        print(typing.get_type_hints(A))
    """,
    "worker processes find functions": """
        import multiprocessing
        def square(x): return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [2, 3]))
    """,
    "exit handlers still have globals": """
        import atexit
        def helper(): return "helped"
        atexit.register(lambda: print(helper()))
    """,
    "threads are waited for": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.2), print("late"))).start()
        print("early")
    """,
    "exit code": "import sys; sys.exit(7)",
    "exit code beyond a byte": "import sys; sys.exit(258)",
    "exit without code": "raise SystemExit",
    "exit with a message": "import sys; sys.exit('no data')",
    "raises": """
        def inner(): raise ValueError("first line\\nsecond line")
        def outer(): inner()
        outer()
    """,
    "raises from": """
        try:
            {}["a"]
        except KeyError as error:
            raise RuntimeError("outer") from error
    """,
    "does not compile": "def f(:\n    pass",
    "own exception hook": """
        import sys
        sys.excepthook = lambda kind, value, traceback: print("hook", kind.__name__, traceback.tb_lineno)
        1 / 0
    """,
    "redirects its output": """
        import sys, io
        sys.stdout = io.StringIO()
        print("into the buffer")
        sys.__stdout__.write(sys.stdout.getvalue())
    """,
    "optimised away": "print(__debug__); import sys; print(sys.flags.optimize)",
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_scripts(tmp_path, case):
    import textwrap

    (tmp_path / "neighbour.py").write_text("value = 5\n")
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPTS[case]))
    got, want = (
        ours(tmp_path, "s", "script.py", "a", "--b", "-c"),
        python(tmp_path, "s", "script.py", "a", "--b", "-c"),
    )
    assert (got.returncode, got.stdout, got.stderr) == (want.returncode, want.stdout, want.stderr)


def test_a_script_in_another_folder_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("value = 5\n")
    (tmp_path / "real" / "script.py").write_text(
        "import sys, neighbour\nprint(sys.path[0], __file__, sys.argv)\n"
    )
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "script.py")
    for name in ("real/script.py", "link.py", str(tmp_path / "real" / "script.py")):
        assert ours(tmp_path, "s", name).stdout == python(tmp_path, "s", name).stdout != ""


def test_modules(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('init')\n")
    (package / "__main__.py").write_text("import sys\nprint(sys.argv, __name__, __package__, sys.path[0])\n")
    (package / "tool.py").write_text(
        "from . import __name__ as n\nimport sys\nprint(n, sys.argv[1:])\nsys.exit(4)\n"
    )
    for name in ("package", "package.tool"):
        got, want = ours(tmp_path, "m", name, "-x", "y"), python(tmp_path, "m", name, "-x", "y")
        assert (got.returncode, got.stdout) == (want.returncode, want.stdout), got.stderr


def test_a_folder_with_a_main(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import helper\nprint(helper.value)\n")
    (tmp_path / "app" / "helper.py").write_text("value = 9\n")
    assert ours(tmp_path, "s", "app").stdout == python(tmp_path, "s", "app").stdout == "9\n"


def test_interrupt(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(9)"
    )
    done = ours(tmp_path, "s", "script.py")
    assert done.returncode == 130
    assert done.stderr == "opentrn: interrupted; the report covers what ran\n"


def test_a_cuda_script_is_told_of_the_option(tmp_path):
    (tmp_path / "script.py").write_text("import torch\ntorch.zeros(2, device='cuda')\n")
    done = ours(tmp_path, "s", "script.py")
    assert done.returncode == 1 and "AssertionError" in done.stderr
    assert done.stderr.endswith("opentrn: what to do: --from-cuda runs a CUDA script unchanged\n")
