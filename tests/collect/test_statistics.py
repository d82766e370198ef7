"""Figures of tensors: against numpy in float64, and against what msProbe wrote of the same tensors."""

from __future__ import annotations

import json
import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from numprobe.collect.pytorch import statistics as module  # noqa: E402
from numprobe.collect.pytorch.statistics import Statistics  # noqa: E402

pytestmark = pytest.mark.usefixtures("both_ways")
WITHOUT_KERNEL = (module, "_COMPILED", {})

SAMPLES = Path(__file__).parents[1] / "data" / "interop" / "pytorch"
FILES = Path(__file__).with_name("data")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def figures(tensor: torch.Tensor, mode: str = "statistics", **options: object) -> dict[str, object]:
    statistics = Statistics(mode, **options)  # type: ignore[arg-type]
    assert statistics.add(tensor) == 0
    [record] = statistics.resolve()
    assert not statistics.unsupported
    return record


def assert_figures(tensor: torch.Tensor, record: dict[str, object], places: float = 1e-6) -> None:
    """Max and Min exact; Mean and Norm as numpy has them in float64, relative to the mean magnitude and the norm."""
    exact = tensor.detach().to(torch.float64).numpy().ravel()
    assert (record["Max"], record["Min"]) == (exact.max(), exact.min())
    scale = np.abs(exact).max() or 1.0  # the squares may not fit in float64
    scaled = exact / scale
    mean, norm = record["Mean"] / scale, record["Norm"] / scale  # type: ignore[operator]
    assert abs(mean - scaled.mean()) <= places * np.abs(scaled).mean()
    assert norm == pytest.approx(np.sqrt(np.sum(scaled**2)), rel=places)
    assert record["stat_dtype"] == "float64"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 7, 4095, 4096, 4097, 40_001, 131_072, 131_073, 300_001, 600_000, 1_100_001])
def test_every_size(dtype: torch.dtype, count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    assert_figures(values.to(dtype), figures(values.to(dtype)))
    assert_figures(values.abs().to(dtype), figures(values.abs().to(dtype)))


@pytest.mark.parametrize("count", [4096, 65_536, 2_000_001])
def test_one_value_many_times_has_no_drift(count: int) -> None:
    for value in (0.1, 1 / 3, 3e4):
        for dtype in (torch.float32, torch.float16):
            tensor = torch.full((count,), value, dtype=dtype)
            assert_figures(tensor, figures(tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("share", [1e-3, 1e-9, 1e-20, 1e-30])
def test_magnitudes_whose_squares_overflow_or_vanish(dtype: torch.dtype, share: float) -> None:
    for count in (100, 200_000):
        limit = torch.finfo(dtype)
        values = torch.linspace(-1, 1, count, dtype=torch.float64)
        for tensor in ((values * limit.max * share).to(dtype), (values * limit.tiny / share * 10).to(dtype)):
            assert_figures(tensor, figures(tensor))


@example(torch.float16, [0.0, 0.0, 0.0, -0.0, math.inf], 2)
@given(
    st.sampled_from(FLOATS),
    st.lists(st.floats(width=16, allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    st.integers(1, 4000),
)
@settings(max_examples=150, deadline=None)
def test_special_values(dtype: torch.dtype, values: list[float], repeats: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype).repeat(repeats)
    record = figures(tensor)
    exact = tensor.to(torch.float64).numpy()
    if np.isfinite(exact).all():
        assert_figures(tensor, record)
        assert "nan" not in record
        return
    with np.errstate(invalid="ignore"):
        expected = [exact.max(), exact.min(), exact.mean(), math.nan if np.isnan(exact).any() else math.inf]
    got = [record[key] for key in ("Max", "Min", "Mean", "Norm")]
    # + 0.0 drops the sign of a zero: that of an extreme over 0 and -0 is not defined, and torch's depends on the kernel
    assert str([x + 0.0 for x in got]) == str([float(x) + 0.0 for x in expected])
    assert [record[key] for key in ("nan", "pos_inf", "neg_inf")] == [
        np.isnan(exact).sum(),
        (exact == np.inf).sum(),
        (exact == -np.inf).sum(),
    ]
    assert "nan" not in figures(tensor, counts=False)


@pytest.mark.parametrize("count", [3, 70_000, 300_000, 600_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_nan_is_seen_wherever_it_is(dtype: torch.dtype, count: int) -> None:
    for place in (0, count // 2, count - 1):
        tensor = torch.ones(count, dtype=dtype)
        tensor[place] = math.nan
        record = figures(tensor)
        assert math.isnan(record["Max"])  # type: ignore[arg-type]
        assert math.isnan(record["Min"])  # type: ignore[arg-type]
        assert (record["nan"], record["pos_inf"], record["neg_inf"]) == (1, 0, 0)


@pytest.mark.parametrize("dtype", [*INTEGERS, *UNSIGNED])
def test_integers_are_exact_and_have_a_mean(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    record = figures(torch.tensor([[limits.max, limits.min], [1, 2]], dtype=dtype))
    assert (record["Max"], record["Min"]) == (limits.max, limits.min)
    assert type(record["Max"]) is int
    exact = np.array([limits.max, limits.min, 1, 2], dtype=np.float64)
    assert record["Mean"] == pytest.approx(exact.mean(), rel=1e-12)
    assert record["Norm"] == pytest.approx(np.sqrt((exact**2).sum()), rel=1e-12)


def test_bool_is_any_and_all() -> None:
    assert figures(torch.tensor([True, False])) == {"Max": True, "Min": False, "Mean": None, "Norm": None}


def test_complex_goes_by_magnitude() -> None:
    record = figures(torch.tensor([3 + 4j, 0 - 1j]))
    assert (record["Max"], record["Min"], record["Mean"]) == (5.0, 1.0, 3.0)
    assert record["Norm"] == pytest.approx(math.sqrt(26))
    assert figures(torch.tensor([3 + 4j, 0 - 1j]).conj()) == record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = torch.tensor([3 + 4j, 0 - 1j]).to(torch.complex32)
    assert figures(half) == record
    assert figures(torch.tensor([3 + 4j, 0 - 1j]).conj().imag)["Max"] == 1.0  # a view with the negative bit
    assert figures(torch.tensor(3 + 4j))["Max"] == 5.0


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_narrow_floats_are_converted(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    tensor = torch.rand(70_000).to(dtype)
    assert_figures(tensor, figures(tensor))


def test_float4_is_decoded() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4")
    packed = torch.tensor([[0x7F, 0x01]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)  # -6, 6, 0.5, 0
    record = figures(packed)
    assert (record["Max"], record["Min"], record["Mean"]) == (6.0, -6.0, 0.125)
    assert record["Norm"] == pytest.approx(math.sqrt(72.25))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(-2.5), {"Max": -2.5, "Min": -2.5, "Mean": -2.5, "Norm": 2.5}),
        (torch.tensor(-3), {"Max": -3, "Min": -3, "Mean": -3, "Norm": 3}),
        (torch.tensor(-3.0, dtype=torch.bfloat16), {"Max": -3.0, "Min": -3.0, "Mean": -3.0, "Norm": 3.0}),
        (torch.tensor(True), {"Max": True, "Min": True, "Mean": None, "Norm": None}),
    ],
)
def test_scalars(value: torch.Tensor, expected: dict[str, object]) -> None:
    assert figures(value) == expected
    assert figures(torch.tensor(math.inf))["pos_inf"] == 1


NOTHING = {"Max": None, "Min": None, "Mean": None, "Norm": None}


def test_tensors_without_values_give_nulls() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    freed = torch.randn(10, 10)
    view = freed[5:]
    freed.untyped_storage().resize_(0)  # as FSDP does between uses
    with FakeTensorMode():
        fake = torch.randn(3)
    for tensor in (
        torch.empty(0, 4),
        torch.empty(0, dtype=torch.bool),
        torch.empty(2, device="meta"),
        freed,
        view,
        fake,
    ):
        for compat in (False, True):
            assert figures(tensor, compat=compat) == NOTHING


def test_wrappers_are_opened() -> None:
    plain = torch.tensor([[1.0, 0.0, -4.0]])
    want = figures(plain)
    assert figures(torch.nn.Parameter(plain)) == want
    assert figures(plain.clone().requires_grad_() * 1) == want

    class Own(torch.Tensor):
        pass

    assert figures(plain.as_subclass(Own)) == want
    assert figures(torch.nested.nested_tensor([plain[0], plain[0, :1]]))["Max"] == 1.0
    if hasattr(torch, "jagged"):
        assert figures(torch.nested.nested_tensor([plain[0], plain[0, :1]], layout=torch.jagged))["Min"] == -4.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
        assert figures(sparse.to_sparse())["Min"] == -1.0
        assert figures(sparse.to_sparse_csr())["Max"] == 2.0
        assert figures(torch.quantize_per_tensor(plain, 0.5, 8, torch.quint8))["Min"] == -4.0


def test_a_dtensor_is_its_local_shard(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("no torch.distributed")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensors, "DeviceMesh"):
        pytest.skip("DTensor is not public in this torch")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        tensor = tensors.distribute_tensor(
            torch.tensor([1.0, -3.0]), tensors.DeviceMesh("cpu", [0]), [tensors.Replicate()]
        )
        assert figures(tensor)["Min"] == -3.0
    finally:
        torch.distributed.destroy_process_group()


def test_transforms_of_functorch() -> None:
    seen = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        seen.append(figures(x))
        return (x * x).sum()

    torch.func.grad(loss)(torch.tensor([1.0, -2.0]))
    assert seen.pop()["Min"] == -2.0
    torch.func.vmap(loss)(torch.ones(2, 2))
    assert seen.pop() == NOTHING
    constant = torch.tensor([5.0, 6.0])
    torch.func.vmap(lambda x: seen.append(figures(constant)) or x)(torch.ones(2))
    assert seen.pop()["Max"] == 6.0


def test_modes_and_patches_do_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[object] = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    real, statistics = torch.randn(40), Statistics("hash")
    many = torch.randn(200_000).bfloat16()
    with FakeTensorMode():
        assert figures(real) == figures(real)
    with Dispatch(), Function():
        for tensor in (real, many):
            statistics.add(tensor)
        statistics.resolve()
    names = (
        "max",
        "min",
        "sum",
        "aminmax",
        "clone",
        "detach",
        "view",
        "to",
        "float",
        "numel",
        "item",
        "numpy",
        "split",
    )
    for name in names:
        for owner in (torch, torch.Tensor):
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, lambda *a, name=name, **k: seen.append(name))
    for mode in module.MODES:
        for compat in (False, True):
            statistics = Statistics(mode, compat=compat)
            for tensor in (real, many):
                statistics.add(tensor)
            statistics.resolve()
    assert seen == []


def test_autograd_autocast_and_inference_mode_are_left_alone() -> None:
    x = torch.randn(200, 900, requires_grad=True)
    y = x * 2
    want = figures(y.detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert figures(y) == want
        assert figures(y, compat=True) == figures(y.detach(), compat=True)
    y.sum().backward()
    assert x.grad is not None
    assert figures(x.grad)["Max"] == 2.0
    with torch.inference_mode():
        assert figures(torch.ones(3) * 2)["Max"] == 2.0
        assert figures(x)["Max"] == x.max().item()


def test_later_changes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for on_host in (True, False):
        monkeypatch.setattr(module, "_on_host", lambda _, on_host=on_host: on_host)
        for mode in ("statistics", "md5", "hash", "xor"):
            for compat in (False, True):
                statistics = Statistics(mode, compat=compat)
                tensors = [torch.ones(100_000), torch.tensor(1.0), torch.ones(5, dtype=torch.int64)]
                before = [figures(t.clone(), mode, compat=compat) for t in tensors]
                for tensor in tensors:
                    statistics.add(tensor)
                    tensor.zero_()
                after = statistics.resolve()
                for one, other in zip(before, after, strict=True):
                    one.pop("stat_dtype", None), other.pop("stat_dtype", None)
                    assert one == other


def test_strides_do_not_matter() -> None:
    base = torch.randn(6, 64, 700)
    for tensor in (
        base.transpose(0, 2),
        base[:, ::2, 3:],
        base.permute(1, 0, 2),
        base[0, 0].expand(500, 700),
        base[:, 5],
    ):
        for dtype in (torch.float32, torch.bfloat16):
            assert_figures(tensor.to(dtype), figures(tensor.to(dtype)))
        assert_figures(tensor, figures(tensor))


def test_the_way_of_devices_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched before resolve(); run here on the CPU."""
    tensors = [torch.randn(3), torch.randn(1 << 17), torch.randn(300, 301).t(), torch.randn(1 << 16).bfloat16()]
    tensors += [torch.arange(12).view(3, 4), torch.tensor([True, False]), torch.tensor(-3), torch.tensor(-1.5)]
    tensors += [torch.tensor([3 + 4j]), torch.rand(80).to(torch.float8_e4m3fn), torch.randn(9).double()]
    tensors += [torch.tensor([math.inf, 1.0]), torch.tensor([math.nan, 1.0])]
    tensors += [torch.ones(3, dtype=dtype) for dtype in UNSIGNED if dtype.itemsize < 8]
    want = [figures(t, counts=False) for t in tensors]
    wanted_of_reference = [figures(t, counts=False, compat=True) for t in tensors]
    monkeypatch.setattr(module, "_on_host", lambda _: False)
    monkeypatch.setattr(module, "_DEVICE_ROWS_FROM", 1 << 10)
    for compat, expected in ((False, want), (True, wanted_of_reference)):
        statistics = Statistics(compat=compat)
        statistics._direct = False
        for _ in range(200):  # more than a column holds loose
            for tensor in tensors:
                statistics.add(tensor)
        records = statistics.resolve()
        assert not statistics.unsupported
        assert len(records) == 200 * len(tensors)
        for record, other in zip(records, expected * 200, strict=True):
            record.pop("stat_dtype", None)
            assert record == {
                k: v if v is None else pytest.approx(v, rel=2e-6, abs=1e-7, nan_ok=True)
                for k, v in other.items()
                if k != "stat_dtype"
            }


def test_a_device_without_aminmax(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: torch.Tensor) -> None:
        raise NotImplementedError("aminmax")

    monkeypatch.setattr(module, "_aminmax", missing)
    monkeypatch.setattr(module, "_on_host", lambda _: False)
    monkeypatch.setattr(module, "_without_aminmax", set())
    statistics = Statistics()
    statistics._direct = False
    statistics.add(torch.tensor([1.0, 2.0]))
    assert statistics.resolve()[0]["Max"] == 2.0


def test_what_cannot_be_had_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = Statistics()
    odd = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
    assert statistics.add(odd) == 0
    assert statistics.add(torch.ones(2)) == 1
    assert statistics.add(None) == 2  # type: ignore[arg-type]
    assert statistics.resolve() == [NOTHING, figures(torch.ones(2)), NOTHING]
    assert statistics.unsupported == {"Tensor/bits8": 1, "NoneType/": 1}
    assert statistics.resolve() == []


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="expected one of statistics, md5, xor, hash"):
        Statistics("sha1")
    with pytest.raises(ValueError, match="expected low or high"):
        Statistics(precision="middle")


def test_modes() -> None:
    tensor = torch.arange(6, dtype=torch.float32).view(2, 3)
    plain = figures(tensor)
    assert figures(tensor, "md5") == {**plain, "md5": f"{zlib.crc32(struct.pack('<6f', *range(6))):08x}"}
    assert list(figures(tensor, "xor")) == ["md5"]
    assert figures(tensor, "hash").keys() == {*plain, "md5"}
    assert figures(torch.tensor(2.5), "xor") == {"md5": 2.5}
    assert figures(torch.tensor(255), "xor") == {"md5": "0xff"}
    assert figures(torch.empty(0), "xor") == {"md5": None}


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_the_short_way_of_host_tensors_gives_the_same(mode: str) -> None:
    """Of tensors that are read in another way than their memory says, too."""
    numbers = torch.tensor([1 + 2j, 3j]).conj()
    tensors = [numbers, numbers[0], numbers.imag, numbers.imag[0], torch.eye(3).to_sparse(), torch.empty(0)]
    tensors += [torch.quantize_per_tensor(t, 0.1, 0, torch.quint8) for t in (torch.ones(3), torch.tensor(1.0))]
    tensors += [torch.empty(2, device="meta"), torch.tensor(1.0).to(torch.float8_e5m2), torch.ones(3, 4).bfloat16().t()]
    for tensor in tensors:
        short, careful = Statistics(mode), Statistics(mode)
        careful._direct = False
        short.add(tensor)
        careful.add(tensor)
        assert short.resolve() == careful.resolve()


def test_reference_values_by_hand() -> None:
    assert figures(torch.tensor([1, 3]), compat=True) == {"Max": 3, "Min": 1, "Mean": None, "Norm": None}
    assert figures(torch.tensor([1.0, 3.0]).double(), compat=True)["Norm"] is None
    assert figures(torch.tensor(-2.5), compat=True) == {"Max": -2.5, "Min": -2.5, "Mean": -2.5, "Norm": -2.5}
    assert figures(torch.tensor(True), compat=True) == {"Max": True, "Min": True, "Mean": True, "Norm": True}
    assert figures(torch.tensor([True, False]), compat=True) == figures(torch.tensor([True, False]))
    assert figures(torch.tensor([3 + 4j]), compat=True) == {"Max": 5.0, "Min": 5.0, "Mean": 5.0, "Norm": None}
    assert figures(torch.ones(2).to(torch.float8_e5m2), compat=True) == NOTHING
    high = figures(torch.tensor([1.0, 2.0]), compat=True, precision="high")
    assert high == {"Max": 2.0, "Min": 1.0, "Mean": None, "Norm": None}
    assert figures(torch.tensor([1.0, math.nan]), compat=True)["nan"] == 1


def records_with_files(folder: Path) -> Iterator[tuple[dict[str, object], Path]]:
    [dump] = (folder / "dump").glob("step*/*/dump.json")

    def walk(value: object) -> Iterator[dict[str, object]]:
        if isinstance(value, dict):
            if "data_name" in value:
                yield value
            else:
                for part in value.values():
                    yield from walk(part)
        elif isinstance(value, list):
            for part in value:
                yield from walk(part)

    for record in walk(json.loads(dump.read_text())["data"]):
        yield record, FILES / folder.name / str(record["data_name"])


@pytest.mark.parametrize("sample", ["b_tensor_mix_fp32", "f_tensor_mix_bf16"])
def test_the_figures_that_msprobe_wrote(sample: str) -> None:
    """dump.json against the .pt files that lay beside it (every ninth is in tests/collect/data): bit for bit."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("older reductions add in another order")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    checked = 0
    for record, path in records_with_files(SAMPLES / sample):
        if not path.exists():
            continue
        tensor = torch.load(path, weights_only=True, map_location="cpu")
        if record["data_name"].startswith("Functional.scaled_dot_product_attention"):  # type: ignore[attr-defined]
            tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)  # as in the model: sums depend on the strides
        got = figures(tensor, compat=True)
        assert got == {key: record[key] for key in got}
        ours = figures(tensor)
        assert (ours["Max"], ours["Min"]) == (record["Max"], record["Min"])
        checked += 1
    torch.set_num_threads(threads)
    assert checked >= 40


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_transposed_tensor_has_the_same_figures_to_the_last_bit(dtype: torch.dtype) -> None:
    """Comparisons take copies and views of a weight for the same by that."""
    values = torch.randn(37, 129, generator=torch.Generator().manual_seed(7)).to(dtype)
    assert figures(values.t()) == figures(values)
