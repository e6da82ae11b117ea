"""The wheel: what is built from the sources holds all that the commands need, and works elsewhere.

It is built and installed without network, into a folder of its own, and run from another folder; of this project
nothing else is on Python's path, and neither Numba nor llvmlite is. Its kernels are those of this user's cache, for
this processor alone: what `make wheel` builds holds them for x86-64-v3 and x86-64-v2, which takes minutes.

(proves: pyproject.toml, packages and their data; tools/wheel.py, tools/object_code.py, captures/shipped.py)
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from packaging.requirements import Requirement

from kwire.captures import native, shipped
from tests.shared import ROOT, SAMPLES
from tests.test_project import FOLDERS, PACKAGES, tracked_files
from tools.object_code import NOT_THERE
from tools.wheel import LLVM_NAMES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
SECONDS = 600
"""How long a command may take before a test gives up on it: kernels may have to be compiled."""

DOCUMENTS = ("*.md", "kwire/reports/samples/*")
"""For readers of the sources: not in the wheel, but for those that a package names as data."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git tracks, and nothing that happens to lie beside it."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for path in [*tracked_files(), *(ROOT / "kwire" / folder for folder in FOLDERS)]:
        copy = sources / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy, follow_symlinks=False)
    tool = [sys.executable, str(ROOT / "tools" / "wheel.py"), "--sources", str(sources), "--out", str(built)]
    options = ["--targets", "native", "--commands", "few"]
    plain = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # nothing is put beside the sources meanwhile
    done = subprocess.run([*tool, *options], capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore"]
    command = [sys.executable, "-m", "pip", "install", *options, f"--target={target}", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to all that is installed here, but for the compilers: what `pip install` of the wheel leaves."""
    folder = tmp_path_factory.mktemp("libraries")
    for path in Path(np.__file__).parent.parent.iterdir():
        if path.name.partition("-")[0] not in ("numba", "llvmlite", "kwire", "__pycache__"):
            (folder / path.name).symlink_to(path)
    return folder


def paths(*folders: Path) -> str:
    """PYTHONPATH."""
    return os.pathsep.join(map(str, folders))


@pytest.fixture
def kwire(installed: Path, libraries: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The installed command, run in another folder. `-S`: no path file leads to the sources."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": paths(installed, libraries)}
        command = [sys.executable, "-S", str(installed / "bin" / "kwire"), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    return run


def test_the_wheel_holds_the_packages_and_their_data_and_no_tests(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == {"kwire"}
    files = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    wanted = {name for name in files if name.startswith("kwire/")}
    wanted |= {f"kwire/{name}" for name in files if name.partition("/")[0] in FOLDERS}
    compiled = {name for name in held if name.startswith("kwire/captures/object_code/")}
    assert held - wanted == compiled
    assert {name.split("/")[3] for name in compiled} == {"made.json", "native.so"}
    left = {name for name in wanted - held if not any(fnmatch.fnmatch(name, pattern) for pattern in DOCUMENTS)}
    assert not left, "add them to package-data in pyproject.toml"


def test_the_installed_packages_are_used(installed: Path, tmp_path: Path) -> None:
    code = f"from importlib import import_module; print([import_module(name).__file__ for name in {PACKAGES}])"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count(str(installed)) == len(PACKAGES)


def test_captures_are_analyzed_shown_and_reported(
    kwire: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = kwire("analyze", str(CAPTURE), "-o", "dataset")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dataset" / "exchanges").is_dir()
    shown = kwire("show", str(CAPTURE))
    assert shown.returncode == 0, shown.stderr
    assert {"ApiVersions", "Produce", "Fetch"} <= set(shown.stdout.split())
    reported = kwire("report", "dataset", "-o", "report", "--format", "json")
    assert reported.returncode == 0, reported.stderr
    assert json.loads((tmp_path / "report").read_text())


def test_a_replay_is_planned_at_a_cluster(kwire: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """librdkafka's mock cluster."""
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
    address = f"{broker.host}:{broker.port}"
    done = kwire("replay", str(CAPTURE), "--to", address, "--dry-run", "-o", "run")
    assert done.returncode == 0, done.stderr
    assert "Produce" in done.stdout


# ------------------------------------------------------------------------------------------ kernels that came along


@pytest.fixture
def first(installed: Path, libraries: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that a program prints which is the first ever to use kwire on this machine: no cache, no home."""

    def run(code: str, folder: Path = installed, numba: bool = False) -> list[str]:
        switches = ("KWIRE_", "XDG_", "NUMBA_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(switches)}
        behind = Path(np.__file__).parent.parent if numba else libraries
        environment = {**inherited, "PYTHONPATH": paths(folder, behind), "HOME": str(tmp_path / "home")}
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return done.stdout.splitlines()

    return run


def test_the_first_command_compiles_nothing(first: Callable[..., list[str]], tmp_path: Path) -> None:
    """Neither here nor in another process: nothing was put into the cache; nobody could import Numba."""
    (tmp_path / "home").mkdir()
    code = (
        "import importlib.util as util; from kwire.captures import kernels\n"
        "from kwire.analyzer.cli.parser import main\n"
        f"codes = main(['analyze', {str(CAPTURE)!r}, '-o', 'dataset']), main(['show', {str(CAPTURE)!r}])\n"
        "print(codes, kernels.compiled_here(), util.find_spec('numba'), util.find_spec('llvmlite'),\n"
        "      kernels.came_along().library.target, {kind for known in kernels._known for kind in known._no_code})"
    )
    assert first(code)[-1] == "(0, 0) () None None native set()"
    assert (tmp_path / "home" / ".cache" / "kwire").is_dir(), "where it would have been"
    assert not (tmp_path / "home" / ".cache" / "kwire" / "kernels").exists()


MERGED = (
    "import numpy as np; from kwire.analyzer.bulk.merging import merge; from kwire.captures import kernels\n"
    "begins, first, place = np.array([0, 1, 3]), np.array([5, 4, 6]), np.zeros(3, np.int64)\n"
    "merge(begins, np.zeros(2, np.int64), first, np.zeros(3, np.int64), place)\n"
    "print(place.tolist(), len(kernels.compiled_here())); print(kernels.came_along().reason)"
)


def test_a_kernel_that_fits_is_not_compiled(first: Callable[..., list[str]]) -> None:
    assert first(MERGED) == ["[1, 0, 2] 0", ""]


def _with_the_rights_of_others() -> None:
    """Take from root what an ordinary user lacks: to read and write whatever modes say. (Another user may not be able
    to read the Python of this machine.)"""
    drop = 24  # PR_CAPBSET_DROP, of Linux' prctl.h
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        assert ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0) == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give up rights")
def test_an_ordinary_user_without_a_home_needs_nothing_that_is_written(installed: Path, libraries: Path) -> None:
    """Site-packages are read-only, and nothing can be made in the user's home."""
    code = (
        "from kwire.analyzer.cli.parser import main; from kwire.captures import kernels\n"
        f"print(main(['show', {str(CAPTURE)!r}]), kernels.compiled_here(), kernels.came_along().library.target)\n"
        f"open({str(installed / 'kwire' / 'written')!r}, 'w')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths(installed, libraries), "HOME": "/proc/nobody"}
    folders = [path for path in (installed, *installed.rglob("*")) if path.is_dir() and not path.is_symlink()]
    for folder in folders:
        folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd="/", env=environment, capture_output=True, text=True, check=False, preexec_fn=_with_the_rights_of_others,
    )  # fmt: skip
    for folder in folders:
        folder.chmod(0o755)
    assert done.stdout.splitlines()[-1] == "0 () native", done.stderr
    assert done.stderr.splitlines()[-1].startswith("PermissionError: "), "it could have been written"


def test_every_kernel_comes_along(tmp_path: Path) -> None:
    """Object code covers larger captures, live ones, TLS and Spark's tasks too.

    Two kernels that only other kernels call have no code of their own."""
    tool = [sys.executable, str(ROOT / "tools" / "object_code.py"), "kinds", str(tmp_path / "kinds")]
    done = subprocess.run([*tool, "--commands", "all"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inside = ["kwire.analyzer.bulk.symbols.enter", "kwire.analyzer.records.checksums.checksum"]
    assert done.stdout.endswith(f"never called: {inside}\n")


def another_machine(installed: Path) -> None:
    description = installed / "kwire" / "captures" / "object_code" / "made.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "platform": "darwin arm64"}))


def another_processor(installed: Path) -> None:
    description = installed / "kwire" / "captures" / "object_code" / "made.json"
    description.write_text(
        json.dumps({**json.loads(description.read_text()), "targets": {"native": ["no such feature"]}})
    )


def edited(installed: Path) -> None:
    with open(installed / "kwire" / "captures" / "links.py", "a", encoding="utf-8") as file:
        file.write("# edited\n")


def damaged(installed: Path) -> None:
    library = installed / "kwire" / "captures" / "object_code" / "native.so"
    library.write_bytes(library.read_bytes()[:100])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (another_machine, "for platform darwin arm64, this is "),
        (another_processor, "this processor is none of native"),
        (edited, "the sources were changed"),
        (damaged, "/"),
    ],
)
def test_what_does_not_fit_is_compiled_into_the_users_cache_if_numba_is_there(
    installed: Path, tmp_path: Path, first: Callable[..., list[str]], change: Callable[[Path], None], reason: str
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(installed, changed, ignore=shutil.ignore_patterns("samples", "bin"))
    change(changed)
    (tmp_path / "home").mkdir()
    refused = f"from kwire.captures.errors import KwireError\ntry:\n    exec({MERGED!r})\n"
    message, hint = first(refused + "except KwireError as error: print(error)", changed)
    assert message.startswith(f"kernels have to be compiled, and Numba is not installed ({reason}")
    assert "pip install 'kwire[compile]'" in hint
    printed, errors = first(MERGED, changed, numba=True)
    assert printed == "[1, 0, 2] 1"
    assert errors.startswith(reason)
    assert [path.name for path in (tmp_path / "home").rglob("*.merging.merge.*")]
    assert first(MERGED, changed, numba=True)[0] == "[1, 0, 2] 0", "once"


def test_the_wheel_is_for_any_python_and_needs_no_compiler(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        wanted = [
            Requirement(line.partition(": ")[2])
            for line in archive.read(about).decode().splitlines()
            if line.startswith("Requires-Dist:")
        ]
        tag = archive.read(about.replace("METADATA", "WHEEL")).decode().splitlines()
    base = {requirement.name for requirement in wanted if requirement.marker is None}
    assert {"numpy", "pyarrow", "pandas", "dpkt", "crc32c", "python-snappy"} <= base
    assert not base & {"numba", "llvmlite", "scapy"}
    compiler = {each.name for each in wanted if each.marker and each.marker.evaluate({"extra": "compile"})}
    assert compiler == {"numba", "llvmlite"}
    assert {"Root-Is-Purelib: false", "Tag: py3-none-linux_x86_64"} <= set(tag)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_kernels_are_compiled_for_a_level_without_being_called(tmp_path: Path, target: str) -> None:
    """Here they are, where this processor can; the builder itself looks for registers that a level has not."""
    kinds = [[["<i8", 1, 1, 0x500]] * 5]
    (tmp_path / "kinds").write_text(json.dumps({"kwire.analyzer.bulk.merging.merge": kinds}))
    needed = [LLVM_NAMES.get(name, name.replace("_", ".")) for name in shipped.LEVELS[target]]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NUMBA_CPU_NAME": target,
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in needed),
    }
    path, entries = tmp_path / f"{target}.so", tmp_path / "entries"
    compiler = [sys.executable, str(ROOT / "tools" / "object_code.py"), "compile"]
    subprocess.run([*compiler, str(tmp_path / "kinds"), str(path), str(entries)], env=environment, check=True)
    assert str(ROOT).encode() not in path.read_bytes()
    if not shipped.features() >= set(shipped.LEVELS[target]):
        pytest.skip(f"this processor is no {target}")
    (name,) = described = json.loads(entries.read_bytes())
    kernel = shipped.Library(path, described).kernel(name)
    assert kernel is not None
    place, values = np.zeros(3, np.int64), list[Any]()
    for array in (np.array([0, 1, 3]), np.zeros(2, np.int64), np.array([5, 4, 6]), np.zeros(3, np.int64), place):
        native.flatten(array, [], values)
    kernel(values)
    assert place.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("x86-64-v2", "\tvpaddq %xmm0,%xmm1,%xmm0"),
        ("x86-64-v2", "\tshlx   %rax,%rcx,%rdx"),
        ("x86-64-v2", "\tpaddq  %ymm0,%ymm1"),
        ("x86-64-v3", "\tvpaddq %zmm0,%zmm1,%zmm0"),
        ("x86-64-v3", "\tvmovdqu8 (%rax),%xmm0{%k1}"),
    ],
)
def test_instructions_beyond_a_target_are_seen(target: str, instruction: str) -> None:
    assert NOT_THERE[target].search(f"    1000:{instruction}\n")
    assert not NOT_THERE[target].search(
        "    1000:\tpaddq  %xmm0,%xmm1\n    1004:\tshl    %rax \n    1008:\tbsf    %rax,%rcx"
    )
