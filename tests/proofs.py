"""Which tests prove a module: `python -m tests.proofs MODULE...` prints their files; without one, the whole table.

In: docstrings of test files (`Proves: analyzer/frame/log.py, replay/remap`). Out: paths of test files, one a line. A
test file proves the modules that its docstring names, by path or dotted name (a folder: all in it), and the module
whose place it mirrors. Where that is nobody, the tests of the folder that mirrors the module's do.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("analyzer", "captures", "replay", "reports")
_PROVES = re.compile(r"\bproves:(.*?)(?:\)|\n\n|\Z)", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r"(?:kwire[./])?\b(?:analyzer|captures|replay|reports)(?:[./]\w+)*")


def modules() -> list[str]:
    """The product's modules, as paths without `.py`."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
    return sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in paths)


def test_files() -> list[str]:
    """The test files, as paths."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def named_in(test_file: str) -> Iterator[str]:
    """Modules and folders that the docstring of a test file names."""
    docstring = ast.get_docstring(ast.parse((ROOT / test_file).read_text(encoding="utf-8"))) or ""
    for match in _PROVES.finditer(docstring):
        for name in _NAME.findall(match[1]):
            path = re.sub(r"^kwire[./]|\.(?:py|md|sql)$|\.[A-Z]\w*$", "", name)
            yield path.replace(".", "/")


@functools.cache
def table() -> dict[str, list[str]]:
    """Test files by module."""
    proofs: dict[str, set[str]] = {module: set() for module in modules()}
    tests = test_files()
    for test_file in tests:
        mirrored = re.sub(r"/test_(\w+)\.py$", r"/\1", test_file.removeprefix("tests/"))
        for name in {*named_in(test_file), mirrored}:
            for module in proofs:
                if module == name or module.startswith(f"{name}/"):
                    proofs[module].add(test_file)
    for module, files in proofs.items():
        folder = Path(module).parent
        while not files:
            files.update(test for test in tests if test.startswith(f"tests/{folder.as_posix()}/"))
            folder = folder.parent
    return {module: sorted(files) for module, files in proofs.items()}


def main(names: list[str]) -> int:
    """Print the test files of these modules, or every module with its own."""
    proofs = table()
    if not names:
        for module, files in proofs.items():
            print(f"{module}: {', '.join(files)}")
        return 0
    wanted = [re.sub(r"^kwire[./]|\.py$", "", name).replace(".", "/") for name in names]
    chosen = {test for module, files in proofs.items() for test in files
              if any(module == name or module.startswith(f"{name}/") for name in wanted)}  # fmt: skip
    chosen |= {name for name in names if name.startswith("tests/") and (ROOT / name).is_file()}
    if not chosen:
        print(f"kwire: {', '.join(names)}: no module of the product\nhint: make test-for FILE=analyzer/frame/log.py",
              file=sys.stderr)  # fmt: skip
        return 2
    print("\n".join(sorted(chosen)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
