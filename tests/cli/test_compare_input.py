"""What ``numprobe compare`` is given by mistake: one answer in either language, its exit code, no file of the user changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compare.written import call, save, tensor, write

from .shell import Ran, command, environment, numprobe, tree

NAME = "Torch.f.0.forward"
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def dump(folder: Path, factor: float = 1.0) -> Path:
    return write(folder, {NAME: call([tensor(X)], [tensor(factor * X)])})


def refused(ran: Ran, code: str, says: str, lang: str) -> None:
    """One error, in the language that was asked for, and nothing on stdout."""
    assert (ran.code, ran.out) == (2, "")
    [first] = [line for line in ran.err.splitlines() if line.startswith("✗")]
    assert first == f"✗ {code}  {says}"
    assert ("  处理  " if lang == "zh" else "  do     ") in ran.err


def nothing(folder: Path) -> Path:
    folder.mkdir()
    return folder


def other_files(folder: Path) -> Path:
    (nothing(folder) / "readme.txt").write_text("x")
    return folder


def csv(folder: Path) -> Path:
    (nothing(folder) / "x.csv").write_text("a,b\n1,2\n")
    return folder / "x.csv"


def one_tensor(folder: Path) -> Path:
    np.save(nothing(folder) / "x.npy", X)
    return (folder / "x.npy").rename(folder / "x.pt")


def only_construct(folder: Path) -> Path:
    (dump(folder) / "rank0" / "dump.json").unlink()
    return folder


NO_DUMP = (
    "no dump here: no step<N>, rank<N> or proc<pid> folder and no dump.json",
    "此处没有 dump：既没有 step<N>、rank<N>、proc<pid> 目录，也没有 dump.json",
)
NO_DUMPS: dict[str, tuple[Callable[[Path], Path], str, tuple[str, str]]] = {
    "a tensor": (one_tensor, "E-FMT-002", ("x.pt is no dump", "x.pt 不是 dump")),
    "a table": (csv, "E-FMT-002", ("x.csv is no dump", "x.csv 不是 dump")),
    "an empty folder": (nothing, "E-FMT-002", NO_DUMP),
    "another folder": (other_files, "E-FMT-002", NO_DUMP),
    "a rank without dump.json": (
        only_construct,
        "E-CMP-001",
        ("no rank can be compared: dump.json is missing", "没有可以比对的卡：缺少 dump.json"),
    ),
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("given", NO_DUMPS)
def test_no_dump(tmp_path: Path, given: str, side: int, lang: str) -> None:
    make, code, says = NO_DUMPS[given]
    paths = [dump(tmp_path / "good"), make(tmp_path / "bad")]
    before = [tree(tmp_path / name) for name in ("good", "bad")]
    ran = numprobe(tmp_path, "compare", *paths[:: 1 - 2 * side], "--no-cache", "--lang", lang)
    refused(ran, code, says[lang == "zh"], lang)
    assert [tree(tmp_path / name) for name in ("good", "bad")] == before


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("out", ["g/step0", "g/step0/rank0/out", "t", "file"])
def test_no_place_for_the_output(tmp_path: Path, out: str, lang: str) -> None:
    paths = [dump(tmp_path / name) for name in ("t", "g")]
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    ran = numprobe(tmp_path, "compare", *paths, "-o", tmp_path / out, "--no-cache", "--lang", lang)
    inside = (
        "输出目录位于 dump 目录内，而 dump 目录绝不写入",
        "the output would lie inside the dump, which is never written to",
    )
    used = "输出目录非空", "the output folder is not empty"
    a_file = "输出路径是文件，不是目录", "the output is a file, not a folder"
    code, says = ("E-OUT-001", a_file) if out == "file" else ("E-OUT-003", inside)
    if out == "t":  # above the dump
        assert ran.code == 2
        assert used[lang == "en"] in ran.err
    else:
        refused(ran, code, says[lang == "en"], lang)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_values_on_either_side(tmp_path: Path, lang: str) -> None:
    paths = [write(tmp_path / name, {}) for name in ("t", "g")]
    ran = numprobe(tmp_path, "compare", *paths, "-o", "out", "--no-cache", "--lang", lang)
    assert (ran.code, ran.err.count("✗")) == (3, 0)
    assert ("rank0 在两侧都没有数值" if lang == "zh" else "rank0 has no values on either side") in ran.out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_tensor_that_cannot_be_read_is_told(tmp_path: Path, lang: str) -> None:
    paths = []
    for name in ("t", "g"):
        file = save(tmp_path / name / "step0", f"{NAME}.output.0", X)
        made = {NAME: call([tensor(X)], [tensor(X, data_name=file)])}
        (tmp_path / name / "step0" / "rank0" / "dump.json").write_text(json.dumps({"task": "tensor", "data": made}))
        paths.append(tmp_path / name)
    (tmp_path / "t/step0/rank0/dump_tensor_data" / f"{NAME}.output.0.npy").write_bytes(b"")
    ran = numprobe(tmp_path, "compare", *paths, "-o", "out", "--no-cache", "--lang", lang)
    said = (
        "rank0 有 1 个张量无法读取（E-FMT-031）" if lang == "zh" else "Of rank0, 1 tensor could not be read (E-FMT-031)"
    )
    assert said in " ".join(ran.out.split())


@pytest.mark.parametrize("dtype", ["torch.quint8", "torch.qint8", "torch.quint4x2"])
def test_integers_of_quantization_are_integers(tmp_path: Path, dtype: str) -> None:
    for name, values in (("t", np.arange(8) + 1), ("g", np.arange(8))):
        write(tmp_path / name, {NAME: call([tensor(X)], [tensor(values, dtype)])})
    assert numprobe(tmp_path, "compare", "t", "g", "-o", "a", "--no-cache").code == 1
    (tmp_path / "g").rename(tmp_path / "h")
    write(tmp_path / "g", {NAME: call([tensor(X)], [tensor(np.arange(8), dtype)])})
    assert numprobe(tmp_path, "compare", "g", "h", "-o", "b", "--no-cache").code == 0


NASTY = "Torch.\x1b[31m<script>alert(1)</script>\n\u202e\x07.0.forward"


@pytest.mark.parametrize("where", ["record", "argument", "dtype"])
def test_what_a_dump_calls_things_stays_text(tmp_path: Path, where: str) -> None:
    """On the terminal, in the pages and in the tables."""
    name = NASTY if where == "record" else NAME
    leaf = {"type": "torch.Tensor", "dtype": NASTY} if where == "dtype" else {}
    for side, factor in (("t", 2.0), ("g", 1.0)):
        kwargs = {NASTY: tensor(factor * X)} if where == "argument" else {}
        write(tmp_path / side, {name: call([tensor(X)], [{**tensor(factor * X), **leaf}], **kwargs)})
    ran = numprobe(tmp_path, "compare", "t", "g", "-o", "out", "--no-cache", "--table", "csv", "--compat", "msprobe")
    assert ran.code in (1, 3)
    page, markdown = ((tmp_path / "out" / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "<script>alert" not in page
    for text in (ran.out, ran.err, page, markdown):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


RIGHTS = "-dac_override,-dac_read_search"  # those of root to read and write everything


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("where", ["golden file", "golden folder", "output"])
@pytest.mark.skipif(shutil.which("setpriv") is None and os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path, where: str, lang: str) -> None:
    paths = [dump(tmp_path / name) for name in ("t", "g")]
    (tmp_path / "out").mkdir()
    place, code, reason = {
        "golden file": (paths[1] / "rank0" / "dump.json", "E-FMT-010", "Permission denied"),
        "golden folder": (paths[1], "E-FMT-010", "目录无法读取" if lang == "zh" else "the folder cannot be read"),
        "output": (tmp_path / "out", "E-OUT-002", "Permission denied"),
    }[where]
    before = tree(tmp_path)
    mode = place.stat().st_mode
    place.chmod(0o400 if where == "output" else 0)
    without = ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}"] if os.geteuid() == 0 else []
    ran = subprocess.run(
        [*without, *command("compare", *paths, "-o", tmp_path / "out", "--no-cache", "--lang", lang, "--quiet")],
        env=environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    place.chmod(mode)
    assert ran.returncode == 2
    assert f"✗ {code}" in ran.stderr
    assert reason in ran.stderr
    assert {k: v for k, v in tree(tmp_path).items() if k[0] in "tg"} == {
        k: v for k, v in before.items() if k[0] in "tg"
    }
