"""The kernels are compiled where that is possible, and numprobe is whole where it is not."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from numprobe import native

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "numprobe" / "native"
HOOK = "hatchling.builders.hooks.plugin.interface"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """hatch_build.py, which pip runs beside hatchling: here without it."""
    interface = ModuleType(HOOK)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, HOOK, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for file in (*SOURCES.glob("*.c"), *SOURCES.glob("*.h")):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_compiled_without_a_warning(build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.kernels is None:
        pytest.skip("no C compiler here, or the kernels are turned off")
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-Werror"])
    assert build.compiled(sources) is not None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", f"{sys.executable} -c 'raise SystemExit(1)'"])
def test_no_compiler(
    build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiler: str
) -> None:
    (sources / "_kernels.abi3.so").write_bytes(b"of an older version")
    monkeypatch.setenv("CC", compiler)
    assert build.compiled(sources) is None
    assert "without its compiled kernels" in capsys.readouterr().err
    assert not list(sources.glob("_kernels*"))


def test_turned_off(build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPROBE_NATIVE", "0")
    assert build.compiled(sources) is None
    monkeypatch.setattr(native, "kernels", None)  # what is there now comes back
    assert importlib.reload(native).kernels is None
    monkeypatch.undo()
    importlib.reload(native)


def test_kernels_of_another_version_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("numprobe.native._kernels")
    other.VERSION = native.VERSION - 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(native, "_kernels", other, raising=False)
    assert native._loaded() is None
    other.VERSION = native.VERSION  # type: ignore[attr-defined]
    assert native._loaded() is other


def test_both_name_the_same_version() -> None:
    assert f'"VERSION", {native.VERSION})' in (SOURCES / "module.c").read_text()


def test_every_command_starts_without_them() -> None:
    program = "import sys; from numprobe.cli.main import run; sys.argv = ['numprobe', '--version']; run()"
    run = subprocess.run([sys.executable, "-c", program], env={"NUMPROBE_NATIVE": "0"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
