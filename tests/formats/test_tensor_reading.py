"""Tensor files read without PyTorch hold what PyTorch, numpy and safetensors say they hold."""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
import zlib
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numprobe.collect.pytorch.tensor_formats import safetensors_parts
from numprobe.formats.tensors import TensorFile, content, open_tensor, open_tensors, tensor
from numprobe.formats.tensors.tensor import boxes
from numprobe.record.dtypes import short_dtype

INTEROP = Path(__file__).parent.parent / "data" / "interop"
pytestmark = pytest.mark.filterwarnings("ignore:.*(ComplexHalf|TypedStorage|quantize)")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL_FLOATS = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128, torch.complex32]
DTYPES = [*FLOATS, *SMALL_FLOATS, *INTEGERS, *COMPLEX, torch.bool]


def bytes_of(expected: torch.Tensor) -> bytes:
    flat = expected.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Any bit patterns, NaN and infinities among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    numel = int(np.prod(shape))
    values = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, numel * size, np.uint8)
    return torch.from_numpy(values).view(dtype).reshape(shape) if numel else torch.empty(shape, dtype=dtype)


def assert_holds(found: TensorFile, expected: torch.Tensor) -> None:
    assert found.dtype == short_dtype(str(expected.dtype))
    assert found.shape == tuple(expected.shape)
    assert found.numel == expected.numel()
    assert found.nbytes == expected.numel() * expected.element_size()
    raw = bytes_of(expected)
    assert found.crc32() == f"{zlib.crc32(raw):08x}"
    whole = found.array()
    if expected.dtype is torch.complex32:  # widened; which NaN comes out is not told
        assert np.array_equal(
            whole, torch.view_as_real(expected).float().numpy().view(np.complex64)[..., 0], equal_nan=True
        )
        raw = whole.tobytes()
    assert whole.dtype == found.element
    assert whole.shape == found.shape
    assert whole.tobytes() == raw
    for elements in (1 << 20, 5):
        assert b"".join(block.tobytes() for block in found.blocks(elements)) == raw


def saved(value: Any, folder: Path, **options: Any) -> Path:
    path = folder / "t.pt"
    torch.save(value, path, **options)
    return path


def pt(value: Any, folder: Path, **options: Any) -> TensorFile:
    return open_tensor(saved(value, folder, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 5, 7)], ids=str)
def test_every_dtype(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path):
    value = random(dtype, *shape)
    assert_holds(pt(value, tmp_path), value)


VIEWS = {
    "transposed": lambda t: t.t(),
    "every third column": lambda t: t[:, 1::3],
    "one column": lambda t: t[:, 4],
    "one element": lambda t: t[3, 3],
    "expanded": lambda t: t[0, :5].expand(7, 5),
    "rows far apart": lambda t: t[::20, :2],
    "permuted": lambda t: t.reshape(5, 8, 50).permute(2, 0, 1)[1:, 1:],
    "overlapping windows": lambda t: t.reshape(-1).unfold(0, 10, 3),
    "nothing": lambda t: t[5:5],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("whole", [0, 1 << 20], ids=["by position", "at once"])
def test_views_of_a_larger_storage(view: Any, whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both ways of reading: from the file's bytes in memory, and by position with dense parts at once."""
    monkeypatch.setattr(content, "WHOLE", whole)
    monkeypatch.setattr(tensor, "_SPAN", 64)
    value = view(random(torch.float32, 40, 50))
    assert_holds(pt(value, tmp_path), value)


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    """Any tensor on any part of a storage, through strides of any kind."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    strides = draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape)))
    offset = draw(st.integers(0, 7))
    needed = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 0)
    storage = random(draw(st.sampled_from(DTYPES)), needed + draw(st.integers(0, 3)), seed=draw(st.integers(0, 99)))
    return storage.as_strided(shape, strides, offset)


@settings(max_examples=150, deadline=None)
@given(value=strided(), protocol=st.integers(2, 5), by_position=st.booleans(), elements=st.integers(1, 40))
def test_any_strides(
    value: torch.Tensor,
    protocol: int,
    by_position: bool,
    elements: int,
    tmp_path_factory: pytest.TempPathFactory,
):
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "WHOLE", 0 if by_position else 1 << 20)
        patch.setattr(tensor, "_SPAN", 16)
        found = pt(value, folder, pickle_protocol=protocol)
        assert_holds(found, value)
        with found.reader() as reader:
            whole = np.concatenate([np.empty(0, found.element), *found.blocks(elements)])
            for start in range(0, value.numel(), elements):
                count = min(elements, value.numel() - start)
                assert reader.read(start, count).tobytes() == whole[start : start + count].tobytes()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_boxes_are_ranges_of_elements(shape: list[int], data: st.DataObject):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    start = data.draw(st.integers(0, numbers.size))
    count = data.draw(st.integers(0, numbers.size - start))
    found = [
        numbers[tuple(slice(i, i + n) for i, n in zip(origin, extents, strict=True))].reshape(-1)
        for origin, extents in boxes(start, count, tuple(shape))
    ]
    assert np.concatenate([np.empty(0, int), *found]).tolist() == list(range(start, start + count))
    assert len(found) <= max(1, 2 * len(shape))


def test_large_tensors_are_read_in_parts(tmp_path: Path):
    value = torch.arange(3 * (1 << 20) + 7, dtype=torch.float32)
    found = pt(value, tmp_path)
    assert found.data is None
    assert [len(block) for block in found.blocks()] == [1 << 20] * 3 + [7]
    assert_holds(found, value)
    turned = value[7:].view(1536, 2048).t()
    assert_holds(pt(turned, tmp_path), turned)


def test_parameters_and_attributes(tmp_path: Path):
    value = random(torch.bfloat16, 3, 4)
    marked = value.clone()
    marked.tensor_model_parallel = True
    parameter = torch.nn.Parameter(value)
    marked_parameter = torch.nn.Parameter(value)
    marked_parameter.sequence_parallel = False
    for one in (parameter, marked, marked_parameter, torch.nn.Buffer(value)):
        assert_holds(pt(one, tmp_path), value)


def test_the_format_before_zip(tmp_path: Path):
    value = {"a": random(torch.float16, 5, 6).t(), "b": [random(torch.int64, 3), random(torch.bool, 2)]}
    found = open_tensors(saved(value, tmp_path, _use_new_zipfile_serialization=False))
    assert list(found) == ["a", "b.0", "b.1"]
    assert_holds(found["a"], value["a"])
    assert_holds(found["b.0"], value["b"][0])
    assert_holds(found["b.1"], value["b"][1])


def test_a_checkpoint(tmp_path: Path):
    shared = random(torch.float32, 6)
    state = OrderedDict({"layers.0.weight": shared[:4], "layers.0.bias": shared[4:]})
    state._metadata = OrderedDict(version=1)  # as state_dict() has it
    value = {
        "model": state,
        "optimizer": {"state": {0: {"step": torch.tensor(3), "exp_avg": random(torch.float32, 2)}}, "lr": 1e-4},
        "args": argparse.Namespace(tensor_model_parallel_size=2, dtype=torch.bfloat16, name="x", extra=torch.ones(1)),
        "rng": [(np.random.default_rng(0).integers(0, 9, 4), 3, complex(1, 2), b"bytes", 2**70, -1, 70000, None)],
        "sizes": [torch.Size([1, 2]), {1, 2}, defaultdict(list, {"k": torch.zeros(1)}), Counter("ab"), slice(1)],
        "device": torch.device("cpu"),
        (1, 2): torch.ones(2),
    }
    found = open_tensors(saved(value, tmp_path))
    assert {key: (one.dtype, one.shape) for key, one in found.items()} == {
        "model.layers.0.weight": ("fp32", (4,)),
        "model.layers.0.bias": ("fp32", (2,)),
        "optimizer.state.0.step": ("int64", ()),
        "optimizer.state.0.exp_avg": ("fp32", (2,)),
        "args.extra": ("fp32", (1,)),
        "sizes.2.k": ("fp32", (1,)),
        "<tuple 6>": ("fp32", (2,)),
    }
    assert_holds(found["model.layers.0.bias"], shared[4:])
    assert_holds(open_tensor(tmp_path / "t.pt", name="optimizer.state.0.step"), torch.tensor(3))


def test_equal_keys_are_kept_apart(tmp_path: Path):
    found = open_tensors(saved({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, tmp_path))
    assert {key: one.array()[0] for key, one in found.items()} == {"a.b": 0.0, "a.b~2": 1.0}


def test_any_bytes_are_true(tmp_path: Path):
    value = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    assert pt(value, tmp_path).array().tolist() == [False, True, True, True]
    assert value.tolist() == [False, True, True, True]


ONLY_TORCH = {  # and what they stand for
    "sparse": (lambda: torch.eye(3).to_sparse(), torch.eye(3)),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.tensor([0.5, 1]), 0.5, 0, torch.qint8),
        torch.tensor([0.5, 1]),
    ),
    "conjugated": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.tensor([1 - 2j, 3 + 4j])),
    "negated": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag, torch.tensor([-2.0, 4.0])),
}


@pytest.mark.parametrize(("make", "expected"), ONLY_TORCH.values(), ids=ONLY_TORCH)
def test_what_only_torch_knows_is_read_by_torch(make: Any, expected: torch.Tensor, tmp_path: Path):
    assert_holds(open_tensors(saved({"a": [make()]}, tmp_path))["a.0"], expected)


def test_npu_tensors_of_older_torch_npu(tmp_path: Path):
    """Their pickle calls a function of torch_npu: the arguments of _rebuild_tensor_v2, and a format that does not matter."""
    value = torch.arange(6.0).reshape(2, 3)
    of_torch = saved(value, tmp_path).read_bytes()
    with zipfile.ZipFile(tmp_path / "t.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    pickle = records["t/data.pkl"].replace(
        b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch_npu.utils.storage\n_rebuild_npu_tensor\n"
    )
    records["t/data.pkl"] = pickle.replace(b"R" + pickle[-8:], b"R" + pickle[-8:-6] + b"K\x02" + pickle[-6:])
    with zipfile.ZipFile(tmp_path / "npu.pt", "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    assert (tmp_path / "npu.pt").read_bytes() != of_torch
    assert_holds(open_tensor(tmp_path / "npu.pt"), value)


NPY = [np.dtype(t) for t in ("?", "i1", "u2", "<i4", ">i4", "i8", "u8", "<f2", ">f2", "f4", ">f8", "c8", ">c16")]


@pytest.mark.parametrize("dtype", NPY, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 4, 5)], ids=str)
def test_npy(dtype: np.dtype, order: Any, shape: tuple[int, ...], tmp_path: Path):
    values = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 100, shape)
    np.save(tmp_path / "a.npy", np.asarray(values.astype(dtype), order=order))
    expected = np.load(tmp_path / "a.npy")
    found = open_tensor(tmp_path / "a.npy")
    assert found.shape == shape
    assert found.array().dtype == dtype.newbyteorder("=")
    assert np.array_equal(found.array(), expected)
    assert np.array_equal(np.concatenate([np.empty(0), *found.blocks(7)]), expected.reshape(-1))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int], tmp_path: Path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3), version=version)
    assert open_tensor(tmp_path / "a.npy").array().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("name", "dtype", "short"),
    [
        ("a.npy", ml_dtypes.bfloat16, "bf16"),
        ("x.output.0.DefaultFormat.bfloat16.npy", ml_dtypes.bfloat16, "bf16"),
        ("x.output.0.DefaultFormat.float8_e4m3fn.npy", ml_dtypes.float8_e4m3fn, "e4m3"),
        ("a.npy", ml_dtypes.float8_e5m2, "e5m2"),
    ],
)
def test_npy_of_dtypes_that_numpy_lacks(name: str, dtype: Any, short: str, tmp_path: Path):
    values = np.array([0.5, -2.0, 448.0]).astype(dtype)
    np.save(tmp_path / name, values)
    found = open_tensor(tmp_path / name)
    assert found.dtype == short
    assert found.array().tobytes() == values.tobytes()
    assert found.array().dtype == dtype


def test_safetensors(tmp_path: Path):
    known = [d for d in DTYPES if d not in (torch.complex32, torch.complex128)]
    tensors = {str(d): random(d, 3, 5) for d in known if "fnuz" not in str(d)}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    safetensors.torch.save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    found = open_tensors(tmp_path / "m.safetensors")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert_holds(found[name], value)
    assert_holds(open_tensor(tmp_path / "m.safetensors", name="scalar"), tensors["scalar"])


def test_safetensors_of_the_collector(tmp_path: Path):
    """Dtypes that the format has no name for: of these, the file knows the number of elements only."""
    tensors = {str(d): random(d, 3, 5) for d in DTYPES}
    with (tmp_path / "m.safetensors").open("wb") as file:
        file.write(b"".join(safetensors_parts(tensors)))
    found = open_tensors(tmp_path / "m.safetensors")
    for name, value in tensors.items():
        unnamed = "fnuz" in name or value.dtype in (torch.complex32, torch.complex128)
        assert_holds(found[name], value.reshape(-1) if unnamed else value)


FILES = sorted(p for p in INTEROP.rglob("*") if p.suffix in (".pt", ".npy"))


def test_there_are_real_files():
    assert len(FILES) > 280


def test_interop_files():
    for path in FILES:
        if path.suffix == ".npy":
            expected = np.load(path)
            found = open_tensor(path)
            assert (found.shape, found.element) == (expected.shape, expected.dtype)
            assert found.array().tobytes() == expected.tobytes()
        elif path.name != "model_optim_rng.pt":
            assert_holds(open_tensor(path), torch.load(path, weights_only=True))


def test_interop_checkpoints():
    """tp1, the same at TP 2, and tp1 + 0.001; each has an argparse.Namespace beside the weights."""
    names = [
        "self_attention.linear_qkv.weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
        "input_layernorm.weight",
    ]
    for path in (INTEROP / "compare" / "checkpoint").rglob("*.pt"):
        with torch.serialization.safe_globals([argparse.Namespace]):
            expected = torch.load(path, weights_only=True)["model"]
        found = open_tensors(path)
        assert list(found) == [f"model.decoder.layers.0.{name}" for name in names]
        for name, value in expected.items():
            assert_holds(found[f"model.{name}"], value)


def test_reading_does_not_import_torch(tmp_path: Path):
    path = saved({"w": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))}, tmp_path)
    program = (
        "import sys; from numprobe.formats.tensors import open_tensor;"
        f"print(open_tensor({str(path)!r}).array().tolist(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[1.0, 1.0, 1.0] False\n"


def test_equal_bytes(tmp_path: Path):
    """Of views and wholes, small and large; dtype and shape count too."""
    value = random(torch.bfloat16, 1500, 1001)
    changed = value.clone().view(torch.int16)
    changed[-1, -1] ^= 1
    tensors = {
        "whole": value,
        "turned": value.t().contiguous().t(),
        "changed": changed.view(torch.bfloat16),
        "int16": value.view(torch.int16),
        "flat": value.reshape(-1),
    }
    for name, one in tensors.items():
        torch.save(one, tmp_path / f"{name}.pt")
    found = {name: open_tensor(tmp_path / f"{name}.pt") for name in tensors}
    assert [found["whole"].same_bytes(other) for other in found.values()] == [True, True, False, False, False]
    for shape in ((), (3,), (0,), (8, 8)):
        small = [pt(random(torch.uint8, *shape, seed=seed), tmp_path) for seed in (0, 0, 1)]
        assert small[0].same_bytes(small[1])
        assert small[0].same_bytes(small[2]) == (shape == (0,))
