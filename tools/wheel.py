"""`make wheel`: kwire's wheel for this kind of machine and any Python, with its kernels compiled (minutes).

    python tools/wheel.py [-o dist] [--sources .] [--targets x86-64-v3,x86-64-v2 | native] [--commands all | few]

In: the sources as git tracks them (all of the folder where there is no git), Numba and a C compiler's linker (`cc`).
Out: a wheel `kwire-VERSION-py3-none-manylinux_2_17_x86_64.whl`, beside it a bill of materials (`tools/sbom.py`). The
wheel is what `pip wheel` makes of the sources, and in `kwire/captures/object_code/` for each target a shared library of
all kernels, for each kind of arguments that kwire's own commands call them with (`captures/shipped.py` chooses;
`tools/object_code.py` compiles). It needs neither Numba nor llvmlite, and fits any Python: kernels know arrays'
addresses and numbers. Rules: nothing is compiled from the checkout,
but from what the wheel holds; a path of this machine, or an instruction that a target has not, ends the build.
`native`: for this processor alone, and what this user's cache has already is not compiled again (for tests).

Where there is no Linux on x86-64 there are no targets, because code for others could not be tried: install from source
with the extra `compile` there, and kernels are compiled on first use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "object_code.py"
SBOM = Path(__file__).resolve().parent / "sbom.py"
NATIVE = "native"
TARGETS = ("x86-64-v3", "x86-64-v2")
PLATFORM = "manylinux_2_17_x86_64"
"""Libraries call nothing but memcpy and its kin, of glibc 2.14."""


LLVM_NAMES = {"abm": "lzcnt", "bmi1": "bmi", "lahf_lm": "sahf", "pni": "sse3"}
"""Features that LLVM and Linux call differently; the others differ in a dot at most (sse4.1, sse4_1)."""


def is_copied(path: Path) -> bool:
    """Files, and the links in `kwire/` to the folders of its packages."""
    return path.is_file() or path.is_symlink()


def tracked(sources: Path) -> list[Path]:
    """The files that belong to the project, relative to its folder."""
    command = ["git", "-C", str(sources), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, check=False) if (sources / ".git").exists() else None
    if done is None or done.returncode:
        return [path.relative_to(sources) for path in sources.rglob("*") if is_copied(path)]
    return [Path(name) for name in os.fsdecode(done.stdout).split("\0") if name and is_copied(sources / name)]


def pure_wheel(sources: Path, folder: Path) -> Path:
    """Build a wheel of the sources with `pip wheel`, without a network and without files that lie beside them."""
    copied = folder / "sources"
    for path in tracked(sources):
        if path.parts[0] != "tests":
            (copied / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sources / path, copied / path, follow_symlinks=False)
    built = folder / "pure"
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={built}", str(copied)], check=True)
    (wheel,) = built.glob("*.whl")
    return wheel


def worker(unpacked: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """`tools/object_code.py` with the packages of the wheel, and no other kwire, on its path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    paths = os.pathsep.join([str(unpacked), *filter(None, [inherited.get("PYTHONPATH")])])
    command = [sys.executable, str(WORKER), *arguments]
    return subprocess.Popen(command, cwd=unpacked.parent, env={**inherited, **environment, "PYTHONPATH": paths})


def wait(*processes: subprocess.Popen[bytes]) -> None:
    """Until all have ended. Ends this program where one failed."""
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("object code could not be made")


def put_object_code(unpacked: Path, targets: list[str], commands: str) -> None:
    """Compile into the unpacked wheel."""
    kinds = unpacked.parent / "kinds.json"
    folder = unpacked / "kwire" / "captures" / "object_code"

    def files(target: str) -> tuple[str, str]:
        return str(folder / f"{target}.so"), str(entries_of(target))

    def entries_of(target: str) -> Path:
        return unpacked.parent / f"{target}.json"

    native = ["--native", *files(NATIVE)] if NATIVE in targets else []
    wait(worker(unpacked, "kinds", str(kinds), "--commands", commands, *native))
    others = [target for target in targets if target != NATIVE]
    features = {target: needed_of(unpacked, target) for target in others}
    wait(
        *(
            worker(
                unpacked,
                "compile",
                str(kinds),
                *files(target),
                NUMBA_CPU_NAME=target,
                NUMBA_CPU_FEATURES=",".join(f"+{name}" for name in features[target]),
            )
            for target in others
        )
    )
    if len({entries_of(target).read_bytes() for target in targets}) != 1:
        sys.exit("the targets' kernels are called in different ways")
    wait(worker(unpacked, "describe", str(folder), str(entries_of(targets[0])), *targets))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and any(
            os.fsencode(str(path_text)) in path.read_bytes() for path_text in (unpacked, ROOT, Path.home())
        ):
            sys.exit(f"{path.name}: a path of this machine in it")


def needed_of(unpacked: Path, target: str) -> list[str]:
    """The features of a target by LLVM's names, as the wheel's own module says them by Linux's."""
    code = f"import json; from kwire.captures.shipped import LEVELS; print(json.dumps(LEVELS[{target!r}]))"
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=unpacked, env=environment, check=True, stdout=subprocess.PIPE)
    needed: list[str] = json.loads(done.stdout)
    return [LLVM_NAMES.get(name, name.replace("_", ".")) for name in needed]


def retagged(unpacked: Path, native: bool) -> None:
    """The wheel's metadata: for this platform only, with any Python."""
    (about,) = unpacked.glob("*.dist-info")
    wheel = (about / "WHEEL").read_text(encoding="utf-8")
    wheel = re.sub(r"(?m)^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", wheel)
    tag = f"py3-none-{'linux_x86_64' if native else PLATFORM}"
    (about / "WHEEL").write_text(re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", wheel), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--sources", type=Path, default=ROOT)
    several = f"of {', '.join(TARGETS)}, or {NATIVE} (default: %(default)s)"
    parser.add_argument("--targets", default=",".join(TARGETS), help=several)
    parser.add_argument("--commands", choices=("all", "few"), default="all", help="whose kernels are compiled")
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := set(targets) - {*TARGETS, NATIVE}:
        parser.error(f"--targets: there is no {', '.join(sorted(unknown))}")
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        parser.error("object code is made on Linux on x86-64 only; elsewhere install from source")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kwire-wheel-") as name:
        folder = Path(name)
        pure = pure_wheel(options.sources.resolve(), folder)
        with zipfile.ZipFile(pure) as archive:
            archive.extractall(folder / "unpacked")
        put_object_code(folder / "unpacked", targets, options.commands)
        retagged(folder / "unpacked", NATIVE in targets)
        command = [sys.executable, "-m", "wheel", "pack", str(folder / "unpacked"), "--dest-dir", str(folder / "made")]
        (folder / "made").mkdir()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = (folder / "made").glob("*.whl")
        print(path := shutil.move(wheel, options.out / wheel.name), f"{os.path.getsize(path) / 1e6:.1f} MB")
        name, version = wheel.name.split("-")[:2]
        bill = options.out / f"{name}-{version}.cdx.json"
        command = [sys.executable, str(SBOM), "--sources", str(options.sources), "--out", str(bill)]
        subprocess.run(command, check=True)
        print(bill)


if __name__ == "__main__":
    main()
