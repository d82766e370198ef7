"""Tensor files that are damaged, lie or attack: one error that names the file, and no more memory than the file is worth."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numprobe.formats.tensors import open_tensor, open_tensors
from numprobe.formats.tensors.pt import MAX_DEPTH
from numprobe.record.errors import NumprobeError

PT_VALUE = {"w": torch.arange(6.0).reshape(2, 3).t(), "b": torch.ones(2, dtype=torch.bfloat16)}


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def records(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


PARTS = records(saved(torch.arange(6.0)))
PICKLE = PARTS["archive/data.pkl"]


def with_pickle(program: bytes, **storages: bytes) -> bytes:
    """An archive of torch.save with another program in it."""
    others = {f"archive/data/{name.removeprefix('s')}": data for name, data in storages.items()}
    return zipped({**PARTS, "archive/data.pkl": program, **others})


def with_tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], numel: int = 6) -> bytes:
    """An archive whose pickle says this of its storage of 6 float32."""

    def number(n: int) -> bytes:
        raw = n.to_bytes(16, "little", signed=True)
        return b"\x8a\x10" + raw

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + number(numel) + b"tQ"
    )
    arguments = b"(" + storage + number(offset) + numbers(shape) + numbers(strides) + b"\x89Nt"
    return with_pickle(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R.")


def npy(header: str, data: bytes = b"\0" * 24, version: int = 1) -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def safetensors(header: Any, data: bytes = b"\0" * 24) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Attack:
    """What an attacker puts into a pickle: a call of os.system."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ATTACKED",)


@contextmanager
def little_memory(megabytes: int = 24) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


def read_all(path: Path, *args: Any, **options: Any) -> None:
    for found in open_tensors(path, *args, **options).values():
        for _ in found.blocks():
            pass


def refused(path: Path, *args: Any, **options: Any) -> NumprobeError:
    """The error of opening a file, or else of reading all that it holds."""
    with pytest.raises(NumprobeError) as caught, little_memory():
        read_all(path, *args, **options)
    error = caught.value
    assert path.name in error.what
    assert error.do
    assert str(path) in error.where
    return error


def code(data: bytes, folder: Path, name: str = "t.pt") -> str:
    (folder / name).write_bytes(data)
    return refused(folder / name).code


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
LONG = 200_000

CODE = {
    "os.system": saved(Attack()),
    "os.system in a dict": saved({"w": torch.ones(2), "x": Attack()}),
    "os.system before zip": saved(Attack(), _use_new_zipfile_serialization=False),
    "a bare pickle": pickle.dumps(Attack()),
    "builtins.eval": with_pickle(b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R."),
    "by STACK_GLOBAL": with_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R."),
    "posix.system, not called": with_pickle(b"\x80\x02cposix\nsystem\n."),
    "torch.hub.load": with_pickle(b"\x80\x02ctorch.hub\nload\nX\x01\x00\x00\x00x\x85R."),
    "torch.jit's reader": with_pickle(b"\x80\x02ctorch.jit\nload\nX\x01\x00\x00\x00x\x85R."),
    "numpy.load": with_pickle(b"\x80\x02cnumpy\nload\nX\x01\x00\x00\x00x\x85R."),
    "a module of the file": with_pickle(b"\x80\x02ct\nrun\n)R."),
}


@pytest.mark.parametrize("data", CODE.values(), ids=CODE)
def test_code_is_never_run(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert code(data, tmp_path) == "E-FMT-032"
    assert [p.name for p in tmp_path.iterdir()] == ["t.pt"]


def test_the_name_is_told(tmp_path: Path):
    (tmp_path / "t.pt").write_bytes(CODE["os.system in a dict"])
    assert refused(tmp_path / "t.pt").found == "posix.system"


DAMAGED = {
    "empty": b"",
    "nothing but the beginning": b"PK\x03\x04",
    "no pickle": zipped({"archive/version": b"3"}),
    "TorchScript": zipped({**PARTS, "archive/constants.pkl": b"\x80\x02)."}),
    "an archive of something else": zipped({"word/document.xml": b"<x/>"}),
    "a storage that is missing": zipped({name: part for name, part in PARTS.items() if not name.endswith("data/0")}),
    "a storage that is too short": zipped({**PARTS, "archive/data/0": b"\0" * 23}),
    "a storage that is too long": zipped({**PARTS, "archive/data/0": b"\0" * 25}),
    "compressed": zipped(PARTS, zipfile.ZIP_DEFLATED),
    "a bomb": zipped({**PARTS, "archive/data/0": b"\0" * (64 << 20)}, zipfile.ZIP_DEFLATED),
    "a compressed pickle": zipped({**PARTS, "archive/data.pkl": b"N" * (64 << 20)}, zipfile.ZIP_DEFLATED),
    "an offset past the end": with_tensor(1, (6,), (1,)),
    "a shape past the end": with_tensor(0, (7,), (1,)),
    "strides past the end": with_tensor(0, (2, 3), (4, 1)),
    "a negative stride": with_tensor(5, (6,), (-1,)),
    "a negative offset": with_tensor(-1, (6,), (1,)),
    "a negative size": with_tensor(0, (-6,), (1,)),
    "a huge size": with_tensor(0, (1 << 62,), (1,)),
    "a huge number": with_tensor(0, (1 << 100,), (0,)),
    "sizes whose product wraps": with_tensor(0, (1 << 33, 1 << 33), (1, 1)),
    "a lying number of elements": with_tensor(0, (6,), (1,), numel=1 << 40),
    "more strides than dimensions": with_tensor(0, (6,), (1, 1)),
    "too many dimensions": with_tensor(0, (1,) * 65, (1,) * 65),
    "nested too deeply": with_pickle(b"\x80\x02" + b"]" * (MAX_DEPTH + 2) + b"a" * (MAX_DEPTH + 1) + b"."),
    "a list in itself": with_pickle(b"\x80\x02]q\x00h\x00a."),
    "tuples as deep as the file": with_pickle(b"\x80\x02)" + b"\x85" * LONG + b"."),
    "a long key": with_pickle(b"\x80\x02}X" + struct.pack("<I", LONG) + b"k" * LONG + b"]s."),
    "a huge number as a key": with_pickle(b"\x80\x02}\x8b" + struct.pack("<I", LONG) + b"\x7f" * LONG + b"]s."),
    "no end of the pickle": with_pickle(PICKLE[:-1]),
    "an unknown operation": with_pickle(b"\x80\x02\xff."),
    "an instance made by INST": with_pickle(b"\x80\x02(iargparse\nNamespace\n."),
    "nothing on the stack": with_pickle(b"\x80\x02."),
    "a text longer than the file": with_pickle(b"\x80\x02X\xff\xff\xff\x7fabc."),
    "attributes of a tensor": with_pickle(PICKLE[:-1] + b"}b."),
    "no storage": with_pickle(b"\x80\x02X\x01\x00\x00\x00xQ."),
    "a wrong magic number of the pickle before zip": saved(
        {"w": torch.ones(2)}, _use_new_zipfile_serialization=False
    ).replace(b"M\xe9\x03.", b"M\xea\x03.", 1),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damaged_pt(data: bytes, tmp_path: Path):
    assert code(data, tmp_path) == "E-FMT-031"


ODD_KEYS = {"unhashable": b"]", "as deep as the file": b")" + b"\x85" * LONG, "a tensor": PICKLE[2:-1]}


@pytest.mark.parametrize("key", ODD_KEYS.values(), ids=ODD_KEYS)
def test_odd_keys_do_no_harm(key: bytes, tmp_path: Path):
    """The hash of a deep tuple overflows the stack of C: such keys are never hashed."""
    (tmp_path / "t.pt").write_bytes(with_pickle(b"\x80\x02}" + key + PICKLE[2:-1] + b"s."))
    with little_memory():
        (name,) = open_tensors(tmp_path / "t.pt")
    assert name.endswith(" 0>")


def test_laughs_without_tensors_end(tmp_path: Path):
    """Forty lists of ten times the list before: 10**40 values that no one may visit."""
    program = b"\x80\x02]" + b"".join(b"q%c(" % i + b"h%c" % i * 10 + b"l" for i in range(40)) + b"."
    assert code(with_pickle(program), tmp_path) == "E-FMT-031"


@pytest.mark.parametrize(
    "data",
    [saved(PT_VALUE), saved(PT_VALUE, _use_new_zipfile_serialization=False), saved(torch.arange(70_000))],
    ids=["zip", "before zip", "more than is read at once"],
)
def test_cut_short(data: bytes, tmp_path: Path):
    """At every seventh byte, of the large one at places spread over it."""
    path = tmp_path / "t.pt"
    for size in range(0, len(data) - 1, 7 if len(data) < 10_000 else 9973):
        path.write_bytes(data[:size])
        assert refused(path).code in ("E-FMT-030", "E-FMT-031", "E-FMT-032"), size


def ends(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The numbers of an archive's directory and of its two ends, one after the other, made larger."""
    directory = data.index(b"PK\x01\x02", data.index(b"data/0"))
    end64, end = data.index(b"PK\x06\x06"), data.index(b"PK\x05\x06")
    places = {
        "size": (directory + 24, 4),
        "packed size": (directory + 20, 4),
        "place": (directory + 42, 4),
        "length of the name": (directory + 28, 2),
        "records": (end64 + 32, 8),
        "size of the directory": (end64 + 40, 8),
        "place of the directory": (end64 + 48, 8),
        "place of the end": (end - 12, 8),
    }
    for name, (at, width) in places.items():
        old = int.from_bytes(data[at : at + width], "little")
        for new in {old + 1, old + 1000, (1 << 8 * width) - 2, (1 << 8 * width - 1) - 1}:
            yield f"{name} {new}", data[:at] + new.to_bytes(width, "little") + data[at + width :]


def test_a_lying_directory(tmp_path: Path):
    lies = dict(ends(saved(torch.arange(6.0))))
    assert len(lies) > 25
    for name, data in lies.items():
        assert code(data, tmp_path) == "E-FMT-031", name


def test_sizes_of_64_bits_that_lie(tmp_path: Path):
    """The extra field that stands for a size of all ones."""
    parts = {**PARTS}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    data = bytearray(buffer.getvalue())
    at = data.rindex(b"archive/data/0") - 46
    data[at + 20 : at + 28] = b"\xff" * 8
    assert code(bytes(data), tmp_path) == "E-FMT-031"


def test_a_directory_of_too_many_records(tmp_path: Path):
    data = saved(torch.arange(6.0))
    at = data.index(b"PK\x06\x06")
    lie = data[: at + 24] + struct.pack("<2Q", 1 << 40, 1 << 40) + data[at + 40 :]
    assert code(lie, tmp_path) == "E-FMT-031"


NPY_DAMAGED = {
    "header longer than the file": b"\x93NUMPY\x01\x00\xff\xff{",
    "header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "no version": b"\x93NUMPY",
    "an unknown version": npy(HEADER, version=9),
    "a lying shape": npy(HEADER.replace("(2, 3)", "(2, 4)")),
    "a huge shape": npy(HEADER.replace("(2, 3)", "(1099511627776, 1099511627776, 1099511627776)")),
    "an impossible size": npy(HEADER.replace("(2, 3)", f"({1 << 70},)")),
    "a negative size": npy(HEADER.replace("(2, 3)", "(-2, 3)")),
    "sizes without a comma": npy(HEADER.replace("(2, 3)", "(2\t 3)")),
    "a size of ten thousand digits": npy(HEADER.replace("(2, 3)", f"({'9' * 10_000},)")),
    "no shape": npy("{'descr': '<f4', 'fortran_order': False}"),
    "an expression": npy(HEADER.replace("(2, 3)", "__import__('os').system('touch ATTACKED')")),
}
NPY_UNSUPPORTED = {
    "objects": npy(HEADER.replace("<f4", "|O")),
    "records": npy(HEADER.replace("'<f4'", "[('a', '<f4'), ('b', '<i4')]")),
    "text": npy(HEADER.replace("<f4", "<U6")),
    "times": npy(HEADER.replace("<f4", "<M8[s]")),
    "opaque": npy(HEADER.replace("<f4", "|V1")),
    "floats of 16 bytes": npy(HEADER.replace("<f4", "<f16")),
}


@pytest.mark.parametrize("data", NPY_DAMAGED.values(), ids=NPY_DAMAGED)
def test_damaged_npy(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert code(data, tmp_path, "a.npy") == "E-FMT-031"
    assert not (tmp_path / "ATTACKED").exists()


@pytest.mark.parametrize("data", NPY_UNSUPPORTED.values(), ids=NPY_UNSUPPORTED)
def test_npy_of_other_things(data: bytes, tmp_path: Path):
    assert code(data, tmp_path, "a.npy") == "E-FMT-036"


def test_pickled_npy(tmp_path: Path):
    """numpy stores objects as a pickle."""
    np.save(tmp_path / "a.npy", np.array([Attack()], dtype=object), allow_pickle=True)
    assert refused(tmp_path / "a.npy").code == "E-FMT-036"


def test_cut_short_npy(tmp_path: Path):
    data = npy(HEADER)
    for size in range(0, len(data), 7):
        assert code(data[:size], tmp_path, "a.npy") in ("E-FMT-030", "E-FMT-031")


SAFETENSORS = {
    "overlapping": safetensors({"a": ENTRY, "b": ENTRY}),
    "a hole": safetensors({"a": {**ENTRY, "data_offsets": [4, 28]}}, b"\0" * 28),
    "past the end": safetensors({"a": {**ENTRY, "data_offsets": [0, 28], "shape": [7]}}),
    "before the beginning": safetensors({"a": {**ENTRY, "data_offsets": [-8, 16]}}),
    "turned round": safetensors({"a": {**ENTRY, "data_offsets": [24, 0]}}),
    "a shape that does not fit": safetensors({"a": {**ENTRY, "shape": [2, 4]}}),
    "a negative size": safetensors({"a": {**ENTRY, "shape": [-2, -3]}}),
    "huge sizes": safetensors({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}),
    "bytes that belong to none": safetensors({"a": ENTRY}, b"\0" * 32),
    "no JSON": safetensors(b"{nothing"),
    "a list": safetensors(b"{" + b"[" * 100),
    "numbers for texts": safetensors({"a": {"dtype": 3, "shape": 4, "data_offsets": 5}}),
    "one name twice": safetensors(
        b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"a":{"dtype":"F32","shape":[3],"data_offsets":[12,24]}}'
    ),
    "nested deeply": safetensors(b'{"a":' + b'{"x":' * 200_000 + b"1" + b"}" * 200_001),
    "real dtypes that do not fit": safetensors(
        {"__metadata__": {"a": "complex128"}, "a": {**ENTRY, "dtype": "U8", "shape": [24]}}
    ),
}


@pytest.mark.parametrize("data", SAFETENSORS.values(), ids=SAFETENSORS)
def test_damaged_safetensors(data: bytes, tmp_path: Path):
    assert code(data, tmp_path, "m.safetensors") == "E-FMT-031"


def test_safetensors_of_other_dtypes(tmp_path: Path):
    assert code(safetensors({"a": {**ENTRY, "dtype": "F4", "shape": [48]}}), tmp_path, "m.safetensors") == "E-FMT-036"


def test_cut_short_safetensors(tmp_path: Path):
    data = safetensors({"a": ENTRY})
    for size in range(0, len(data), 7):
        assert code(data[:size], tmp_path, "m.safetensors") in ("E-FMT-030", "E-FMT-031")


SEEDS = [
    saved(PT_VALUE),
    saved(torch.nn.Parameter(torch.ones(3))),
    saved(PT_VALUE, _use_new_zipfile_serialization=False),
]
SEEDS += [npy(HEADER), safetensors({"a": ENTRY, "b": {**ENTRY, "data_offsets": [24, 48]}}, b"\0" * 48)]


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.sampled_from(SEEDS), data=st.data())
def test_changed_bytes_give_an_error_or_a_tensor(seed: bytes, data: st.DataObject, tmp_path: Path):
    """Bytes set, taken out, or repeated from elsewhere."""
    changed = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at, other = (data.draw(st.integers(0, len(changed) - 1)) for _ in range(2))
        what, size = data.draw(st.sampled_from(("set", "cut", "repeat"))), data.draw(st.integers(1, 20))
        if what == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif what == "cut" and len(changed) > size:
            del changed[at : at + size]
        else:
            changed[at:at] = changed[other : other + size]
    path = tmp_path / "t.pt"
    path.write_bytes(changed)
    try:
        for found in open_tensors(path, max_bytes=1 << 20).values():
            assert b"".join(block.tobytes() for block in found.blocks(3)) == found.array().tobytes()
    except NumprobeError:
        assert refused(path, max_bytes=1 << 20).code.startswith("E-FMT-0")


def test_expanded_tensors_are_bounded(tmp_path: Path):
    """Strides of 0: a file of 1 kB may stand for 10 GiB, but no more, and for no more memory than it has."""
    (tmp_path / "t.pt").write_bytes(with_tensor(0, (1 << 31,), (0,)))
    with little_memory(1):
        found = open_tensor(tmp_path / "t.pt")
        assert found.array()[5::1000000].shape == (2148,)
    assert code(with_tensor(0, (1 << 40,), (0,)), tmp_path) == "E-FMT-034"


def test_a_large_sparse_tensor(tmp_path: Path):
    """PyTorch reads it; made dense it would have 4 TB."""
    torch.save(torch.sparse_coo_tensor([[0]], [1.0], (1 << 40,), check_invariants=True), tmp_path / "t.pt")
    assert refused(tmp_path / "t.pt").code == "E-FMT-036"


def test_without_torch(tmp_path: Path):
    torch.save(torch.eye(3).to_sparse(), tmp_path / "t.pt")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from numprobe.formats.tensors import open_tensor; from numprobe.record.errors import NumprobeError\n"
        f"try: open_tensor({str(tmp_path / 't.pt')!r})\n"
        "except NumprobeError as error: print(error.code, error.what, '|', error.do)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "E-FMT-036 t.pt holds what only PyTorch can read: torch._utils._rebuild_sparse_tensor | "
        "install PyTorch 2.6 or newer beside numprobe, or save plain tensors\n"
    )


def test_too_large(tmp_path: Path):
    path = tmp_path / "t.pt"
    path.write_bytes(saved(torch.ones(1000)))
    assert refused(path, max_bytes=4000).code == "E-FMT-034"
    with path.open("r+b") as file:
        file.truncate(11 << 30)  # sparse: takes no space
    assert refused(path).code == "E-FMT-034"


def test_one_name_of_several(tmp_path: Path):
    path = tmp_path / "t.pt"
    path.write_bytes(saved(PT_VALUE))
    assert open_tensor(path, name="b").dtype == "bf16"
    with pytest.raises(NumprobeError, match=r"E-FMT-035  t\.pt does not hold one tensor but 2"):
        open_tensor(path)
    with pytest.raises(NumprobeError) as caught:
        open_tensor(path, name="c")
    assert (caught.value.code, caught.value.found) == ("E-FMT-035", "2 others, such as w, b")
    path.write_bytes(saved({"lr": 1e-3}))
    with pytest.raises(NumprobeError, match=r"E-FMT-035  t\.pt does not hold one tensor but 0"):
        open_tensor(path)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A folder ``dump`` with a tensor, beside one that it must not lead to."""
    folder = tmp_path / "dump"
    (folder / "sub").mkdir(parents=True)
    for path in (folder / "t.pt", folder / "sub" / "t.pt", tmp_path / "secret.pt"):
        path.write_bytes(saved(torch.ones(2)))
    return folder


def test_paths_inside(dump: Path):
    (dump / "link.pt").symlink_to("sub/t.pt")
    (dump / "here").symlink_to("sub")
    for name in ("t.pt", "sub/t.pt", "./t.pt", "sub/../t.pt", "link.pt", "here/t.pt", str(dump / "t.pt")):
        assert open_tensor(name, dump).shape == (2,)
    (dump.parent / "other").symlink_to(dump)
    assert open_tensor("t.pt", dump.parent / "other").shape == (2,)


def test_paths_that_leave(dump: Path):
    (dump / "link.pt").symlink_to("../secret.pt")
    (dump / "up").symlink_to("..")
    (dump.parent / "dump2").mkdir()
    shutil.copy(dump / "t.pt", dump.parent / "dump2" / "t.pt")
    for name in (
        "../secret.pt",
        str(dump.parent / "secret.pt"),
        "link.pt",
        "up/secret.pt",
        "sub/../../secret.pt",
        "../dump2/t.pt",
    ):
        with pytest.raises(NumprobeError) as caught:
            open_tensor(name, dump)
        assert caught.value.code == "E-FMT-033"
        assert Path(name).name in caught.value.what


def test_what_cannot_be_opened(dump: Path):
    os.mkfifo(dump / "pipe.pt")
    (dump / "ring.pt").symlink_to("ring.pt")
    (dump / "gone.pt").symlink_to("nowhere.pt")
    for name in (
        "missing.pt",
        "",
        ".",
        "..",
        "sub",
        "pipe.pt",
        "ring.pt",
        "gone.pt",
        "n\0ul.pt",
        "half\ud800.pt",
        "x" * 300,
        "t.pt/a",
    ):
        for root in (dump, None):
            with pytest.raises(NumprobeError) as caught:
                open_tensor(name if root else dump / name, root)
            assert caught.value.code in ("E-FMT-010", "E-FMT-033"), name


def test_a_file_that_becomes_shorter(tmp_path: Path):
    path = tmp_path / "t.pt"
    path.write_bytes(saved(torch.ones(1 << 20)))
    found = open_tensor(path)
    path.write_bytes(b"")
    with pytest.raises(NumprobeError, match=r"E-FMT-031  t\.pt has become shorter"):
        found.array()
    path.unlink()
    with pytest.raises(NumprobeError, match=r"E-FMT-010  t\.pt cannot be read"):
        next(found.blocks())


def test_a_crc_of_the_archive_is_not_relied_on(tmp_path: Path):
    """Bytes decide, not the digest that the archive gives of them."""
    data = saved(torch.zeros(3))
    crc = struct.pack("<I", zlib.crc32(b"\0" * 12))
    assert crc in data
    (tmp_path / "t.pt").write_bytes(data.replace(crc, b"\1\2\3\4"))
    assert open_tensor(tmp_path / "t.pt").crc32() == f"{zlib.crc32(bytes(12)):08x}"
