"""The per-rank cache: answers only for the file it was made from, and is never needed."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from numprobe.formats import cache
from numprobe.formats.dump import load_index
from numprobe.formats.msprobe.index import RankIndex

from .written import INTEROP, Layout, Token, dump, tensor

RECORD = {"input_args": [tensor()], "input_kwargs": {}, "output": [tensor(Token("NaN"), Token("-Infinity"))]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dump.json"
    path.write_bytes(Layout().write(dump({"Torch.log.0.forward": RECORD, "Torch.é.0.forward": RECORD}))[:-3])
    return path


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.msgpack"))


def same(a: RankIndex, b: RankIndex) -> bool:
    arrays = all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("start", "end", "input", "output", "parameter")
    )
    rest = ("info", "names", "size", "has_extrema", "damage", "repeated")
    return arrays and all(getattr(a, name) == getattr(b, name) for name in rest)


def test_the_cached_index_is_the_scanned_one(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch):
    fresh = load_index(file)
    first = load_index(file, tmp_path / "cache")
    monkeypatch.setattr("numprobe.formats.dump.scan_file", lambda path: pytest.fail("scanned again"))
    cached = load_index(file, tmp_path / "cache")
    assert fresh.damage is not None
    assert same(fresh, first)
    assert same(fresh, cached)


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_read_again(tmp_path: Path, file: Path, change: str):
    load_index(file, tmp_path / "cache")
    state = file.stat()
    if change == "size":
        file.write_bytes(Layout().write(dump({"Torch.exp.0.forward": RECORD})))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        file.write_bytes(file.read_bytes().replace(b"Torch.log", b"Torch.exp"))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert load_index(file, tmp_path / "cache").names[0] == "Torch.exp.0.forward"
    assert len(entries(tmp_path / "cache")) == 2


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"{}", b"\x81\xa4info\x93"])
def test_an_unreadable_entry_is_ignored(tmp_path: Path, file: Path, content: bytes):
    fresh = load_index(file, tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    entry.write_bytes(content)
    assert same(load_index(file, tmp_path / "cache"), fresh)
    assert entry.read_bytes() != content  # made anew


def test_an_entry_of_the_wrong_length_is_ignored(tmp_path: Path, file: Path):
    fresh = load_index(file, tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    stored = msgspec.msgpack.decode(entry.read_bytes())
    for key, value in (("flags", b"123"), ("start", b"1234567"), ("end", b"")):
        entry.write_bytes(msgspec.msgpack.encode({**stored, key: value}))
        assert same(load_index(file, tmp_path / "cache"), fresh)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, file: Path):
    (tmp_path / "cache").write_text("a file, not a folder")
    assert len(load_index(file, tmp_path / "cache")) == 2
    assert len(load_index(file, Path("/proc/no/such/folder"))) == 2
    assert len(load_index(file, Path(os.devnull))) == 2


def test_names_that_cannot_be_encoded_are_not_kept(tmp_path: Path):
    cache.store(tmp_path / "x/y.msgpack", ["\ud800"])
    assert entries(tmp_path) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_space(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    cache.store(tmp_path / "x/y.msgpack", [1])
    assert list((tmp_path / "x").iterdir()) == []


def test_an_index_of_20_000_records_takes_less_than_2_mb(tmp_path: Path):
    """With the names of a real rank, whose counters go up as in a longer step."""
    real = list(json.loads((INTEROP / "engines/megatron/step0/rank0/dump.json").read_text())["data"])
    names = [f"{name.rsplit('.', 1)[0]}.{i}" for i, name in zip(range(20_000), itertools.cycle(real))]
    names = [n.replace(".backward.", ".0.").replace(".forward.", ".0.") + ".forward" for n in names]
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"task": "statistics", "data": {name: {"output": []} for name in names}}))
    assert len(load_index(file, tmp_path / "cache")) == 20_000
    (entry,) = entries(tmp_path / "cache")
    assert 1_000_000 < entry.stat().st_size < 2_000_000


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "numprobe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "home/.cache/numprobe"


def test_files_that_are_absent_are_part_of_the_key(tmp_path: Path, file: Path):
    construct = tmp_path / "construct.json"
    without = cache.entry(tmp_path, [file, construct], "digest", 1)
    construct.write_text("{}")
    assert cache.entry(tmp_path, [file, construct], "digest", 1) != without
    assert cache.entry(tmp_path, [file], "digest", 1) != cache.entry(tmp_path, [file], "digest", 2)
    assert cache.entry(tmp_path, [file], "digest", 1) != cache.entry(tmp_path, [file], "index", 1)
