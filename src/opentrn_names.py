"""`import nki` and `import neuronxcc` in a process that has imported neither torch nor opentrn yet.

The installed `opentrn.pth` imports this module at every start of Python, so it imports nothing. Last in line,
the finder is asked only where no real package of that name is installed.
"""

import sys


class _Names:
    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        # Once opentrn.nki is loaded, its own finder answers, and asks this one as any other.
        if name not in ("nki", "neuronxcc") or "opentrn.nki" in sys.modules:
            return None
        sys.meta_path.remove(_Names)
        import importlib.util

        import opentrn.nki  # noqa: F401  (installs the finder of both names)

        return importlib.util.find_spec(name)


sys.meta_path.append(_Names)  # type: ignore[arg-type]
