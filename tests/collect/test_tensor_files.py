"""Tensor files: what torch reads back, names, failures of the disk, and the safetensors container."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from numprobe.collect.pytorch import tensor_files, tensor_formats  # noqa: E402
from numprobe.collect.pytorch.tensor_files import TensorWriter, file_name, save_tensor, tensor_name  # noqa: E402
from numprobe.formats.tensors import open_tensor  # noqa: E402


def load(path: Path) -> torch.Tensor:
    return torch.load(path, weights_only=True)


def test_saves_a_contiguous_copy_of_the_elements_only(tmp_path: Path) -> None:
    base = torch.randn(1000, 100, requires_grad=True)
    size = save_tensor(base[5:7].t(), tmp_path / "a b é.pt")
    back = load(tmp_path / "a b é.pt")
    assert torch.equal(back, base.detach()[5:7].t())
    assert back.is_contiguous()
    assert not back.requires_grad
    assert size == (tmp_path / "a b é.pt").stat().st_size < 4000
    assert [p.name for p in tmp_path.iterdir()] == ["a b é.pt"]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "complex64", "bool", "uint16", "int64"])
def test_dtypes_and_the_live_tensor_stays_alive(tmp_path: Path, name: str) -> None:
    if name in ("float8_e4m3fn", "uint16") and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 3):
        pytest.skip("torch does not know it, or cannot save it")
    tensor = torch.ones(70).to(getattr(torch, name))
    save_tensor(tensor, tmp_path / "x.pt")
    assert load(tmp_path / "x.pt").dtype is tensor.dtype
    assert tensor.untyped_storage().nbytes() == 70 * tensor.element_size()
    save_tensor(torch.nn.Parameter(torch.tensor(1.5)), tmp_path / "y.pt")
    assert type(load(tmp_path / "y.pt")) is torch.Tensor


FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
FLOATS = ["float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", *FLOAT8]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64"]
DTYPES = [getattr(torch, name) for name in FLOATS + INTEGERS if hasattr(torch, name)]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, shape (0-d too) and strides, as random bytes."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    size = torch.empty(0, dtype=dtype).element_size()
    count = 2 * size  # twice as many elements as needed
    for length in shape:
        count *= length
    data = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    elements = (data & 1 if dtype is torch.bool else data).view(dtype)
    half = elements[1::2] if draw(st.booleans()) else elements[: len(elements) // 2]
    tensor = half.view(shape)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@given(tensors())
@settings(max_examples=150, deadline=None)
def test_a_pt_file_is_what_torch_would_write(tensor: torch.Tensor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, theirs = Path(folder, "ours.pt"), io.BytesIO()
        assert save_tensor(tensor, path) == path.stat().st_size
        want = tensor.clone(memory_format=torch.contiguous_format)
        torch.save(want, theirs)
        with zipfile.ZipFile(path) as ours, zipfile.ZipFile(theirs) as other:
            assert ours.testzip() is None
            names = ours.namelist()
            for name in names:
                assert ours.read(name) == other.read(name)
            assert names[-1] == "archive/data/0"
            info = ours.getinfo("archive/data/0")
        raw = path.read_bytes()
        start = info.header_offset + 30 + sum(struct.unpack_from("<2H", raw, info.header_offset + 26))
        assert start % 64 == 0
        for mapped in (False, True):
            back = torch.load(path, weights_only=True, mmap=mapped)
            assert (back.dtype, back.shape, back.stride()) == (want.dtype, want.shape, want.stride())
            assert torch.equal(bits(back), bits(tensor))
        assert open_tensor(path).shape == tuple(tensor.shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@given(tensors())
@settings(max_examples=30, deadline=None)
def test_files_beyond_four_gigabytes(tensor: torch.Tensor) -> None:
    """With zip64's sizes and end, here of small files."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_formats, "_LARGE", 0)
        tensor_formats._frame.cache_clear()
        path = Path(folder, "x.pt")
        save_tensor(tensor, path)
        tensor_formats._frame.cache_clear()
        assert b"PK\6\6" in path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
        assert torch.equal(bits(torch.load(path, weights_only=True)), bits(tensor))


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:100]))
    tensor = torch.randn(100)
    size = save_tensor(tensor, tmp_path / "x.pt")
    assert size == (tmp_path / "x.pt").stat().st_size
    assert torch.equal(load(tmp_path / "x.pt"), tensor)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch does not know it")
def test_float4(tmp_path: Path) -> None:
    packed = torch.arange(6, dtype=torch.uint8).view(2, 3)
    save_tensor(packed.view(torch.float4_e2m1fn_x2), tmp_path / "x.pt")
    back = load(tmp_path / "x.pt")
    assert back.dtype is torch.float4_e2m1fn_x2
    assert torch.equal(back.view(torch.uint8), packed)


def test_quantised_tensors_stay_so(tmp_path: Path) -> None:
    tensor = torch.quantize_per_tensor(torch.randn(9), 0.1, 3, torch.quint8)
    save_tensor(tensor, tmp_path / "x.pt")
    back = load(tmp_path / "x.pt")
    assert back.is_quantized
    assert torch.equal(back.int_repr(), tensor.int_repr())


def test_nothing_to_save(tmp_path: Path) -> None:
    freed = torch.randn(9)
    freed.untyped_storage().resize_(0)
    writer = TensorWriter(tmp_path / "t")
    for tensor in (torch.empty(0), torch.empty(3, device="meta"), freed):
        assert save_tensor(tensor, tmp_path / "x.pt") == 0
        assert writer.put(tensor, "x.pt") is None
    assert writer.flush() == []
    assert list(tmp_path.iterdir()) == []


def test_names_of_the_reference() -> None:
    assert tensor_name("Torch.stack.0.forward", "input_args", (0, 1)) == "Torch.stack.0.forward.input.0.1.pt"
    assert tensor_name("Tensor.add.0.forward", "input_kwargs", ("other",)) == "Tensor.add.0.forward.kwargs.other.pt"
    assert tensor_name("Module.x.Linear.parameters_grad.0", "", ("weight",)) == (
        "Module.x.Linear.parameters_grad.0.weight.pt"
    )
    name = tensor_name("Module.odd.Odd.forward.0", "output", (0, "b", 1, 0))
    assert file_name(name) == name == "Module.odd.Odd.forward.0.output.0.b.1.0.pt"


@given(st.text(max_size=400), st.sampled_from(["", ".pt"]))
def test_any_name_is_one_file_of_its_folder(text: str, suffix: str) -> None:
    safe = file_name(text + suffix)
    assert safe not in ("", ".", "..")
    assert not set(safe) & set('/\\:*?"<>|\0')
    assert len(safe.encode()) <= 250
    assert Path(safe).name == safe
    if len(text.encode()) < 60 and text:
        assert unquote(safe) == text + suffix


def test_names_that_would_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    writer = TensorWriter(folder)
    names = ["../out.pt", "/etc/x.pt", "a/../../b.pt", "..", "n\0ul.pt", "x" * 500 + "1.pt", "x" * 500 + "2.pt"]
    written = [writer.put(torch.ones(2), name) for name in names]
    assert writer.flush() == []
    assert sorted(p.name for p in folder.iterdir()) == sorted(filter(None, written))
    assert len(set(written)) == len(names)
    assert [p.name for p in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize("background", [False, True])
def test_writer_writes_what_was_put(tmp_path: Path, background: bool) -> None:
    writer = TensorWriter(tmp_path / "data", background=background, queued_bytes=1 << 16)
    wanted = {}
    for i in range(50):
        tensor = torch.full((1000,), float(i))
        assert writer.put(tensor, f"t.{i}.pt") == f"t.{i}.pt"
        wanted[f"t.{i}.pt"] = tensor.clone()
        tensor.zero_()  # too late to matter
    assert writer.put(torch.ones(1 << 16), "larger than the queue.pt")
    assert writer.flush() == []
    for name, tensor in wanted.items():
        assert torch.equal(load(tmp_path / "data" / name), tensor)
    assert writer.files == 51
    assert writer.bytes == sum(p.stat().st_size for p in (tmp_path / "data").iterdir())


def test_the_thread_ends_when_idle_and_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "IDLE_SECONDS", 0.01)
    writer = TensorWriter(tmp_path, background=True)
    for i in range(3):
        writer.put(torch.ones(2), f"{i}.pt")
        assert writer.flush() == []
        until = time.monotonic() + 10
        while any(t.name == "numprobe-tensors" for t in threading.enumerate()) and time.monotonic() < until:
            time.sleep(0.01)
    assert not any(t.name == "numprobe-tensors" for t in threading.enumerate())
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_cannot_be_made(tmp_path: Path, background: bool) -> None:
    (tmp_path / "file").write_text("in the way")
    writer = TensorWriter(tmp_path / "file" / "data", background=background)
    for i in range(tensor_files.PROBLEMS + 20):
        writer.put(torch.ones(2), f"{i}.pt")
    problems = writer.flush()
    assert problems[0] == "tensor 0.pt was not written: Not a directory"
    assert problems[-1] == "20 more tensors could not be written"
    assert writer.dropped == tensor_files.PROBLEMS + 20
    assert writer.flush() == []


@pytest.mark.parametrize("tensor_format", ["pt", "safetensors"])
def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor_format: str) -> None:
    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    writer = TensorWriter(tmp_path, tensor_format)
    writer.put(torch.ones(2), "a.pt")
    [problem] = writer.flush()
    assert "No space left on device" in problem
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    writer.put(torch.ones(2), "b.pt")  # there is room again
    assert writer.flush() == []
    assert (tmp_path / ("b.pt" if tensor_format == "pt" else "index.jsonl")).exists()


def test_a_tensor_without_plain_form_is_reported(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path)
    assert writer.put("no tensor", "x.pt") is None  # type: ignore[arg-type]
    [problem] = writer.flush()
    assert problem.startswith("tensor x.pt was not written: ")


def test_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "BATCH_BYTES", 200)
    tensors = {
        "a": torch.randn(3, 5).bfloat16(),
        "b é": torch.tensor(7),
        "c": torch.tensor([True, False, True]),
        "d": torch.randn(4, 4).t(),
        "e": torch.randn(40),
        "f": torch.randn(3).to(torch.complex128),
    }
    writer = TensorWriter(tmp_path, "safetensors")
    for name, tensor in tensors.items():
        writer.put(tensor, name + ".pt")
    assert writer.flush() == []
    index = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(index) == writer.files > 1
    seen = set()
    for line in index:
        data = (tmp_path / line["file"]).read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        assert (8 + size) % 8 == 0
        others = header.pop("__metadata__", {})
        assert sorted(line["tensors"]) == sorted(header)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = tensors[name].contiguous().reshape(-1).view(torch.uint8)
            assert data[8 + size + begin : 8 + size + end] == bytes(raw.tolist())
            assert begin % tensors[name].element_size() == 0
            if name in others:
                assert (entry["dtype"], others[name]) == ("U8", "complex128")
            else:
                assert entry["shape"] == list(tensors[name].shape)
            seen.add(name)
    assert seen == tensors.keys()


def test_the_safetensors_package_reads_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    writer = TensorWriter(tmp_path, "safetensors")
    tensor = torch.randn(3, 5).bfloat16()
    writer.put(tensor, "a.pt")
    writer.put(torch.tensor(3, dtype=torch.int8), "b.pt")
    writer.flush()
    back = safetensors.load_file(tmp_path / "tensors-00000.safetensors")
    assert torch.equal(back["a"], tensor)
    assert back["b"] == 3


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of pt, safetensors"):
        TensorWriter(tmp_path, "npz")


@pytest.mark.parametrize("tensor_format", ["pt", "safetensors"])
def test_nothing_is_written_until_the_flush(tmp_path: Path, tensor_format: str) -> None:
    writer = TensorWriter(tmp_path, tensor_format, until_flush=True)
    tensor = torch.arange(6.0).view(2, 3).t()
    assert writer.put(tensor, "a.pt") == "a.pt"
    tensor.zero_()
    assert list(tmp_path.iterdir()) == []
    assert writer.flush() == []
    if tensor_format == "pt":
        saved = torch.load(tmp_path / "a.pt", weights_only=True)
        assert saved.is_contiguous()
        assert saved.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert writer.files == 1
    assert writer.put(tensor, "b.pt") == "b.pt"
    assert writer.flush() == []
    assert writer.files == 2
