"""What the source text of a script says, without running it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from opentrn.port.behaviours import Finding, Release
from opentrn.port.packages import replacements

_DEFAULT_MODES = (None, "default")
_GRAPHS = ("CUDAGraph", "make_graphed_callables", "cuda.graph")
_PLUGINS = {
    "DeepSpeedPlugin": "deepspeed",
    "FullyShardedDataParallelPlugin": "accelerate-fsdp",
}


def _dotted(node: ast.AST) -> str:
    """ "torch.cuda.amp.autocast" of an attribute chain; "" of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _keyword(call: ast.Call, name: str) -> ast.AST | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _compile_call(call: ast.Call) -> Iterator[tuple[str, str]]:
    name = _dotted(call.func)
    if name != "torch.compile" and not (name.endswith(".compile") and _keyword(call, "backend")):
        return
    if _constant(_keyword(call, "dynamic")) is True:
        yield "compile-dynamic", "dynamic=True"
    mode = _keyword(call, "mode")
    if mode is not None and _constant(mode) not in _DEFAULT_MODES:
        yield "compile-mode", f"mode={ast.unparse(mode)}"
    options = _keyword(call, "options")
    if options is not None and _constant(options) is None and not isinstance(options, ast.Constant):
        yield "compile-options", f"options={ast.unparse(options)[:40]}"
    if _constant(_keyword(call, "backend")) in ("inductor", "cudagraphs"):
        yield "compile-inductor", f"backend={_constant(_keyword(call, 'backend'))!r}"


def _process_group(call: ast.Call) -> Iterator[tuple[str, str]]:
    if not _dotted(call.func).endswith("init_process_group"):
        return
    backend = _constant(_keyword(call, "backend") or (call.args[0] if call.args else None))
    if isinstance(backend, str) and "nccl" in backend:
        yield "nccl", f"backend={backend!r}"
    if _keyword(call, "device_id") is not None:
        yield "process-group-device", "device_id"


def _configuration(call: ast.Call) -> Iterator[tuple[str, str]]:
    name = _dotted(call.func).rpartition(".")[2]
    if name in _PLUGINS:
        yield _PLUGINS[name], name
    if name.endswith("TrainingArguments"):
        for argument, behaviour in (("deepspeed", "deepspeed"), ("fsdp", "accelerate-fsdp")):
            value = _keyword(call, argument)
            if value is not None and not (isinstance(value, ast.Constant) and not value.value):
                yield behaviour, f"{name}({argument}=…)"


def _float64(call: ast.Call) -> Iterator[tuple[str, str]]:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "double" and not call.args:
        yield "float64", ".double()"


def _extension(call: ast.Call) -> Iterator[tuple[str, str]]:
    name = _dotted(call.func).rpartition(".")[2]
    if name == "CUDAExtension" or (name == "load_inline" and _keyword(call, "cuda_sources") is not None):
        yield "cuda-extension", name


def _cuda_calls(call: ast.Call) -> Iterator[tuple[str, str]]:
    name = _dotted(call.func)
    if name.endswith(_GRAPHS):
        yield "cuda-graphs", name
    elif "torch.cuda." in name or (isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"):
        yield "cuda-device", name or ".cuda()"
    if "all_to_all_vdev_2d" in name:
        yield "all-to-all-vdev", name


_CALLS: tuple[Callable[[ast.Call], Iterator[tuple[str, str]]], ...] = (
    _compile_call,
    _process_group,
    _configuration,
    _float64,
    _extension,
    _cuda_calls,
)


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module]
    for name in names:
        use = replacements().get(name.partition(".")[0])
        if use is not None:
            yield "gpu-package", f"{name}: use {use}"


def _literals(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        if text == "cuda" or (text.startswith("cuda:") and text[5:].strip("{}").isalnum()):
            yield "cuda-device", repr(text)
    elif isinstance(node, ast.JoinedStr) and node.values and _constant(node.values[0]) == "cuda:":
        yield "cuda-device", ast.unparse(node)
    elif isinstance(node, ast.Attribute) and _dotted(node) in ("torch.float64", "torch.double"):
        yield "float64", _dotted(node)


def _found(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call):
            for judge in _CALLS:
                for behaviour, what in judge(node):
                    yield line, behaviour, what
        for judge_node in (_imports, _literals):
            for behaviour, what in judge_node(node):
                yield line, behaviour, what


def check_source(path: Path, stack: Release, cuda_is_redirected: bool = False) -> list[Finding]:
    """Findings of one file, at "file.py:12". Empty for a file that does not parse: running it says why.

    cuda_is_redirected: leaves out what --from-cuda renames (the device, NCCL).
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, UnicodeDecodeError):
        return []
    renamed = {"cuda-device", "nccl"} if cuda_is_redirected else set()
    findings: dict[tuple[str, int, str], Finding] = {}
    for line, name, what in _found(tree):
        if name not in renamed:
            behaviour = stack.named(name)
            findings.setdefault((name, line, what), Finding(behaviour, f"{path}:{line}", what))
    return list(findings.values())


def check_program(
    name: str, is_module: bool, stack: Release, cuda_is_redirected: bool = False
) -> list[Finding]:
    """Findings in a program's own files: the script, or the module, and what it imported of its folder."""
    return [
        finding
        for path in _sources(name, is_module)
        for finding in check_source(path, stack, cuda_is_redirected)
    ]


def _sources(name: str, is_module: bool) -> list[Path]:
    if is_module:
        from importlib.util import find_spec

        spec = find_spec(name)
        main = Path(spec.origin) if spec is not None and spec.origin else None
    else:
        main = Path(name)
    if main is None:
        return []
    folder = main.resolve().parent
    files = {main.resolve(): main}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # Some modules name a file that is not there (torch.ops).
        if file and os.path.isabs(file) and file.endswith(".py") and "site-packages" not in file:
            path = Path(file).resolve()
            if folder in path.parents and path.is_file():
                files.setdefault(path, path)
    return list(files.values())
