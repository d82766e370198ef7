"""The sums of :mod:`numprobe.metrics.sums` and :mod:`numprobe.metrics.reference`, computed by torch on a device.

A block is moved there as it lies in the file, and everything is computed there in float64: counts, extremes and histograms are
the same as numpy's, sums agree to 1e-12 of the sum of the sizes. What torch has no arithmetic for (unsigned integers of more than
8 bits, two sides of one 64-bit integer, some formats of 8 bits) is computed by numpy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from numprobe.metrics import reference
from numprobe.metrics.histogram import BINS, FIRST, SHIFT
from numprobe.metrics.reference import Columns
from numprobe.metrics.stream import Array
from numprobe.metrics.sums import DEVICE_FAILED, Kernel, OneSide, Plan, Sums, block_sums, parts, plan
from numprobe.record.errors import NumprobeError

T = TypeVar("T")
_SIGN = -(1 << 63)
_CLOSE = 1e-12
# dtypes of elements -> how their bits are given to torch, and what they are called there
_CARRIED: dict[np.dtype[Any], tuple[str, str]] = {
    np.dtype(np.float64): ("f8", "float64"),
    np.dtype(np.float32): ("f4", "float32"),
    np.dtype(np.float16): ("f2", "float16"),
    np.dtype(ml_dtypes.bfloat16): ("i2", "bfloat16"),
    np.dtype(ml_dtypes.float8_e4m3fn): ("u1", "float8_e4m3fn"),
    np.dtype(ml_dtypes.float8_e5m2): ("u1", "float8_e5m2"),
    **{np.dtype(name): (name, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64")},
}


@dataclass(frozen=True)
class Device:
    """A device that computes. ``sums`` and ``columns`` stand for :func:`~numprobe.metrics.sums.block_sums` and for what
    :func:`~numprobe.metrics.reference.tensor_columns` computes of a block.

    Both raise NumprobeError (E-CMP-017) where the device fails.
    """

    name: str
    sums: Kernel
    columns: Columns


@lru_cache
def device(name: str) -> Device:
    """The device of that name: ``cuda``, ``cuda:1``, ``npu``, ``cpu`` or any other that torch knows.

    Raises:
        NumprobeError: E-CMP-016 torch is not there, knows no such device or has none, or it does not compute in float64.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise NumprobeError(
            "E-CMP-016",
            "--device {device} needs PyTorch, which is not installed",
            do="install torch, or leave --device out: then numpy computes",
            device=name,
        ) from None
    if name.partition(":")[0] == "npu":
        try:  # torch has no npu of its own
            importlib.import_module("torch_npu")
        except ImportError:
            raise NumprobeError(
                "E-CMP-016",
                "--device {device} needs torch_npu, which is not installed",
                do="install torch_npu, or leave --device out: then numpy computes",
                device=name,
            ) from None
    try:
        found = _Torch(torch, torch.device(name))
        torch.zeros(1, device=found.device).cpu()
        made = Device(name, found.sums, found.columns)
        reason = "" if _as_numpy(made) else "it does not compute in float64 as numpy does"
    except (RuntimeError, AssertionError, ValueError, NotImplementedError, NumprobeError) as error:
        reason = _line(error)
    if reason:
        raise NumprobeError(
            "E-CMP-016",
            "--device {device} cannot be used: {reason}",
            do="write cuda, cuda:1, npu or cpu, as this PyTorch has them, or leave --device out: then numpy computes",
            device=name,
            reason=reason,
        )
    return made


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _as_numpy(made: Device) -> bool:
    """A device that has no float64, or gives other figures, is found out by a small pair."""
    golden = np.concatenate([np.linspace(-3.0, 5.0, 4093), [np.nan, np.inf, 1e-300]])
    target = golden * (1 + 1e-9)
    how = plan(golden.dtype, golden.dtype, None)
    one, other = made.sums(0, target, golden, how), block_sums(0, target, golden, how)
    return all(
        np.allclose(getattr(one, f.name), getattr(other, f.name), rtol=_CLOSE, atol=0)
        for f in fields(Sums)
        if f.name not in ("target", "golden")
    )


class _Torch:
    """torch, and one of its devices."""

    def __init__(self, torch: Any, where: Any) -> None:
        self.torch, self.device = torch, where
        self.carried = {
            dtype: (np.dtype(bits), getattr(torch, called))
            for dtype, (bits, called) in _CARRIED.items()
            if hasattr(torch, called)
        }
        self.integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def sums(self, start: int, target: Array, golden: Array, how: Plan) -> Sums:
        target, golden = parts(np.ascontiguousarray(target), np.ascontiguousarray(golden))
        if how.wide or target.dtype not in self.carried or golden.dtype not in self.carried:
            return block_sums(start, target, golden, how)
        return self._guarded(lambda: self._sums(start, target, golden, how))

    def columns(self, target: Array, golden: Array, single: type[np.float32 | np.float64]) -> reference.Sums | None:
        n, b = (np.ascontiguousarray(a.real if a.dtype.kind == "c" else a) for a in (target, golden))
        if n.dtype not in self.carried or b.dtype not in self.carried:
            return reference.block_columns(target, golden, single)
        return self._guarded(lambda: self._columns(n, b, single))

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (RuntimeError, TypeError, NotImplementedError) as error:  # torch raises what it likes
            raise NumprobeError(
                DEVICE_FAILED,
                "device {device} failed: {reason}",
                do="run again with another --device, or without: then numpy computes",
                device=str(self.device),
                reason=_line(error),
            ) from None

    def put(self, array: Array) -> Any:
        """The elements on the device."""
        bits, called = self.carried[array.dtype]
        raw = array.view(bits)
        carried = self.torch.from_numpy(raw if raw.flags.writeable else raw.copy()).to(self.device)
        return carried if carried.dtype == called else carried.view(called)

    def bits(self, values: Any) -> Any:
        """The elements' bits as integers with a sign."""
        return values.view(self.integers[values.element_size()])

    def _sums(self, start: int, target: Array, golden: Array, how: Plan) -> Sums:
        torch = self.torch
        raw_t, raw_g = self.put(target), self.put(golden)
        t, g = raw_t.to(torch.float64), raw_g.to(torch.float64)
        if how.scale != 1.0:
            t, g = t * how.scale, g * how.scale
        places = torch.arange(len(target), device=self.device)
        none = len(target)
        nothing = torch.zeros((), dtype=torch.int64, device=self.device)

        def first(mask: Any) -> Any:
            return torch.where(mask, places, none).min()

        kinds = [(torch.isnan(v), v == float("inf"), v == float("-inf")) for v in (t, g)]
        finite = [~(nan | pos | neg) for nan, pos, neg in kinds]
        both = finite[0] & finite[1]
        unlike = [one != other for one, other in zip(*kinds, strict=True)]
        mismatch = unlike[0] | unlike[1] | unlike[2]
        numbers: list[Any] = []  # of each side total, squares, max and min, then those of both
        for values, mask in ((t, finite[0]), (g, finite[1])):
            kept = torch.where(mask, values, 0.0)
            numbers += [kept.sum(), (kept * kept).sum()]
            numbers += [torch.where(mask, values, float("-inf")).max(), torch.where(mask, values, float("inf")).min()]
        t, g = torch.where(both, t, 0.0), torch.where(both, g, 0.0)
        d = t - g
        size, base = d.abs(), g.abs()
        shown = torch.where(both, size, -1.0)
        largest = shown.max()
        relative = torch.where(size > 0, size / base, 0.0).max()
        numbers += [
            (t * t).sum(),
            (g * g).sum(),
            (d * d).sum(),
            d.sum(),
            (d * t).sum(),
            (d * g).sum(),
            largest,
            relative,
        ]
        counts = [mask.sum() for of_side in kinds for mask in of_side]
        counts += [mask.sum() for mask in unlike]
        counts += [mismatch.sum(), first(mismatch), both.sum(), (size != 0).sum(), first(shown == largest)]
        counts.append(size.max().to(torch.int64) if how.integers else nothing)
        absolute, slope = how.tolerance or (0.0, 0.0)
        counts.append((size > base * slope + absolute * how.scale).sum())
        same = target.dtype == golden.dtype
        counts.append((self.bits(raw_t) == self.bits(raw_g)).all().to(torch.int64) if same else nothing)
        bins = [self._bins(both, size)]
        if how.ulp is not None:
            steps = self._steps(raw_t, raw_g, target, golden, both, how.ulp)
            counts.append((steps ^ _SIGN).max())  # the order of integers without a sign
            bins.append(self._bins(both, _unsigned(torch, steps)))
        else:
            counts.append(nothing)
        results = [torch.stack(numbers).view(torch.int64), torch.stack(counts), *bins]
        fetched = torch.cat(results).cpu().numpy()  # all at once: each fetch waits for the device
        floats = fetched[: len(numbers)].view(np.float64).tolist()
        whole = fetched[len(numbers) : len(numbers) + len(counts)].tolist()
        return _gathered(start, none, how, floats, whole, fetched[len(numbers) + len(counts) :])

    def _steps(self, raw_t: Any, raw_g: Any, target: Array, golden: Array, both: Any, ulp: np.dtype[np.generic]) -> Any:
        """Units in the last place between the two sides, as integers modulo 2**64; 0 where a side is not finite."""
        called = self.carried[ulp][1]
        sides = []
        for raw, array in ((raw_t, target), (raw_g, golden)):
            twice = array.dtype.itemsize == 8 and ulp.itemsize < 4  # torch would round two times
            if array.dtype != ulp and (twice or ulp.itemsize == 1):  # and ends formats of 8 bits elsewhere
                with np.errstate(all="ignore"):
                    raw = self.put(array.astype(ulp))
            bits = self.bits(raw.to(called)).to(self.torch.int64)
            size = bits & ((1 << (8 * ulp.itemsize - 1)) - 1)
            sides.append(self.torch.where(bits < 0, -size, size))
        t, g = sides
        return self.torch.where(both, self.torch.maximum(t, g) - self.torch.minimum(t, g), 0)

    def _bins(self, both: Any, values: Any) -> Any:
        """The histogram of :mod:`numprobe.metrics.histogram` over what is finite on both sides."""
        places = ((values.view(self.torch.int64) >> SHIFT) - FIRST).clamp(0, BINS - 1)
        return self.torch.bincount(self.torch.where(both, places, BINS), minlength=BINS + 1)[:BINS]

    def _columns(self, target: Array, golden: Array, single: type[np.float32 | np.float64]) -> reference.Sums | None:
        torch = self.torch
        n, b = self.put(target).to(torch.float64), self.put(golden).to(torch.float64)
        apart = (torch.isnan(n) != torch.isnan(b)) | (torch.isinf(n) != torch.isinf(b))
        n, b = torch.where(torch.isfinite(n), n, 0.0), torch.where(torch.isfinite(b), b, 0.0)
        d = n - b
        narrow = torch.float32 if single is np.float32 else torch.float64
        n1, b1 = n.to(narrow), b.to(narrow)
        epsilon = float(np.finfo(single).eps)
        n1, b1 = torch.where(b1 == 0, n1 + epsilon, n1), torch.where(b1 == 0, epsilon, b1)
        relative = ((n1 - b1) / b1).abs()
        numbers = [(n * b).sum(), (n * n).sum(), (b * b).sum(), (d * d).sum(), d.abs().max(), relative.max()]
        below = [(relative < limit).sum() for limit in (0.001, 0.005)]
        found = torch.stack([v.to(torch.float64) for v in (*numbers, *below, apart.any())]).cpu().tolist()
        dot, t_squares, g_squares, d_squares, largest, worst, *counts, differ = found
        return (
            None if differ else reference.Sums(dot, t_squares, g_squares, d_squares, largest, worst, *map(int, counts))
        )


def _unsigned(torch: Any, steps: Any) -> Any:
    """Integers modulo 2**64 as the float64 next to them."""
    values = steps.to(torch.float64)
    return torch.where(values < 0, values + 2.0**64, values)


def _gathered(start: int, none: int, how: Plan, floats: list[float], counts: list[int], bins: Array) -> Sums:
    """What was fetched, in its places; ``none`` is the place of an element that there is not."""
    kinds, (nan, pos, neg, mismatch, mismatch_at, finite, differing, at, integer, over, equal, steps) = (
        counts[:6],
        counts[6:],
    )
    one, other = (OneSide(*kinds[3 * i : 3 * i + 3], *floats[4 * i : 4 * i + 4]) for i in range(2))
    t_squares, g_squares, d_squares, d_sum, d_target, d_golden, largest, relative = floats[8:]
    return Sums(
        target=one,
        golden=other,
        nan_mismatch=nan,
        pos_inf_mismatch=pos,
        neg_inf_mismatch=neg,
        nonfinite_mismatch=mismatch,
        nonfinite_mismatch_at=start + mismatch_at if mismatch_at < none else -1,
        equal_bits=bool(equal),
        finite=finite,
        differing=differing,
        target_squares=t_squares,
        golden_squares=g_squares,
        d_squares=d_squares,
        d_sum=d_sum,
        d_target=d_target,
        d_golden=d_golden,
        max_abs=largest if finite else -1.0,
        max_abs_at=start + at if finite else -1,
        max_relative=relative,
        max_integer=integer if how.integers else 0,
        over=over if how.tolerance is not None else 0,
        max_ulp=(steps ^ _SIGN) % (1 << 64) if how.ulp is not None else 0,
        abs_bins=bins[:BINS].copy(),
        ulp_bins=bins[BINS:].copy() if how.ulp is not None else np.zeros(BINS, np.int64),
    )
