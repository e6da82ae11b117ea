"""List the files that define the names a function of the project is made from.

Names are followed as Numba resolves them: through imports and aliases of modules, into functions that are called,
classes that are built, and the expressions of constants.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.shared import ROOT

DECORATORS = {"kernel", "inline", "shared"}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def kernels_of(path: Path) -> Iterator[ast.FunctionDef]:
    """The functions of a file that Numba compiles."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.FunctionDef):
            if any(isinstance(each, ast.Name) and each.id in DECORATORS for each in node.decorator_list):
                yield node


@cache
def file_of(module: str) -> Path | None:
    """The project's file with a module; None for others'."""
    for path in (ROOT / f"{module.replace('.', '/')}.py", ROOT / module.replace(".", "/") / "__init__.py"):
        if path.is_file():
            return path.resolve()  # kwire holds links to the folders
    return None


@cache
def _names(path: Path) -> tuple[dict[str, ast.AST], dict[str, tuple[str, str]]]:
    """Return the definitions of a file by name, and its imports.

    An import is (module, name), with an empty name for the module itself."""
    defined: dict[str, ast.AST] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for each in node.names:
                imported[each.asname or each.name] = (node.module, each.name)
        elif isinstance(node, ast.Import):
            for each in node.names:
                imported[each.asname or each.name.partition(".")[0]] = (each.name, "")
    for node in _parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        defined[part.id] = node
    return defined, imported


@cache
def _next(path: Path, name: str) -> tuple[tuple[Path, str], ...]:
    """The names, each with the file that uses or defines it, that what `path` calls `name` is directly made from."""
    defined, imported = _names(path)
    reached: set[tuple[Path | None, str]] = set()
    if name in defined:
        aliases = _modules(path)
        for node in ast.walk(defined[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
                module, part = imported[node.value.id]
                reached.add((file_of(f"{module}.{part}" if part else module), node.attr))
            elif isinstance(node, ast.Name) and node.id not in aliases:
                reached.add((path, node.id))
    elif name in imported:
        module, part = imported[name]
        reached.add((file_of(module), part))
    return tuple((file, part) for file, part in reached if file is not None)


@cache
def _modules(path: Path) -> set[str]:
    """Return the names by which a file calls modules."""
    imported = _names(path)[1]
    return {alias for alias, (module, part) in imported.items() if not part or file_of(f"{module}.{part}")}


def reached(path: Path, name: str) -> set[Path]:
    """The project's files that what `path` calls `name` is made from."""
    seen = {(path, name)}
    waiting = [(path, name)]
    while waiting:
        for entry in _next(*waiting.pop()):
            if entry not in seen:
                seen.add(entry)
                waiting.append(entry)
    return {file for file, part in seen if part in _names(file)[0]}
