"""The public names are importable, and only where no real package answers."""

import subprocess
import sys
import textwrap


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_the_same_modules_as_ours():
    assert (
        run("""
        import opentrn.nki, sys
        import nki, nki.language as nl, nki.isa as nisa, nki.isa.constants, nki.collectives, nki.typing
        import nki.compiler.ncc_driver
        from nki import isa
        import neuronxcc.nki as old, neuronxcc.nki.language as onl, neuronxcc.nki.isa as onisa
        import neuronxcc.nki.compiler as ncc, neuronxcc.nki.typing, neuronxcc.starfish.support.dtype
        from neuronxcc import nki as again
        import opentrn.nki.modern.language as ours
        assert nl is ours and isa is nisa and again is old
        assert ours.__spec__.name == "opentrn.nki.modern.language"
        print(nl.add.__name__, nl.bfloat16, nisa.engine.vector.value)
    """)
        == "add bfloat16 5"
    )


def test_a_real_package_wins(tmp_path):
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    assert (
        run(f"""
        import sys
        sys.path.append({str(tmp_path)!r})
        import opentrn.nki, nki
        print(nki.real)
    """)
        == "True"
    )


def test_unknown_submodules_stay_unknown():
    assert (
        run("""
        import opentrn.nki
        try:
            import nki.nothing
        except ModuleNotFoundError as error:
            print(error.name)
    """)
        == "nki.nothing"
    )


def test_the_compiler_names_give_programs(tmp_path):
    import nki.language as nl
    import numpy as np
    from nki.compiler.frontend import ParserFrontend

    from opentrn.core import Program

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    compiled = ParserFrontend().compile(
        kernel,
        inputs={"x": np.zeros((128, 4), np.float32)},
        target="trn2",
        lnc=1,
        artifacts_dir=str(tmp_path),
    )
    saved = Program.from_bytes((tmp_path / "program.bin").read_bytes())
    assert saved.instruction_count == compiled.program.instruction_count > 0


def test_names_at_the_start_of_python():
    """What the installed `opentrn.pth` imports: nothing is loaded before `import nki`."""
    code = """
import sys, opentrn_names
assert not {"torch", "opentrn", "numpy"} & set(sys.modules)
import nki.language as nl, neuronxcc.nki
assert nl.__name__ == "opentrn.nki.modern.language" or nl is sys.modules["nki.language"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
