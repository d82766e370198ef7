"""Max, Min, Mean and Norm of tensors, at little cost to the program that made them.

Host tensors are finished when they are added: a fetch is free there. Tensors of a device leave a few numbers in its memory
(at most three kernel launches, no synchronisation), which :meth:`Statistics.resolve` fetches all at once.

Sums are taken in float32 over rows and the rows are combined in float64: nothing is converted to float64 as a whole, and the
error stays near that of one row of SIMD lanes. Mean and Norm therefore are those of float64 (``stat_dtype``) to 1e-6
of the mean magnitude and the norm, where a plain float32 reduction of eight million values is wrong by 2e-4. A zero Max or
Min has the sign that the device's kernel gives it, which for 0 beside -0 depends on where they lie.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from numprobe.collect.pytorch import devices, digests
from numprobe.collect.pytorch.plain import (
    BASE,
    FLOAT4,
    LINALG,
    NARROW_FLOATS,
    PLAIN_TYPES,
    UNSIGNED,
    VARIABLE,
    array_of,
    data_of,
    data_ptr,
    decoded_float4,
    flat,
    float32_at,
    holds_no_memory,
    is_contiguous,
    modes_active,
    numel,
    out_of_sight,
    plain_of,
    to,
    view,
)
from numprobe.native import kernels

Number: TypeAlias = "float | int | bool | None"
Record: TypeAlias = "dict[str, object]"
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

MODES = ("statistics", "md5", "xor", "hash")

_aminmax, _min, _max, _sum = VARIABLE.aminmax, VARIABLE.min, VARIABLE.max, VARIABLE.sum
_vector_norm = LINALG.linalg_vector_norm
_item, _split, _float = BASE.item, BASE.split, BASE.float
_dot = np.dot
_highest, _lowest = np.maximum.reduce, np.minimum.reduce  # NaN wins in both

_ROW = 2048  # elements of a BLAS dot product, far below the 10,000 from which OpenBLAS starts threads of its own
_TORCH_ROW = 512  # elements of a row of torch's reductions, which add 8 lanes one after another
_SMALL = 1 << 18  # up to here one thread of numpy is faster than waking torch's
_PART = 1 << 19  # elements converted to float32 at a time: 2 MB stay in cache and are recycled by malloc
_ONES = {np.dtype(kind): np.ones(_ROW, kind) for kind in (np.float32, np.float64)}
# Magnitudes whose squares neither overflow nor lose digits when a row of them is added in that format.
_SQUARES_FIT = {np.dtype(np.float32): (1e-12, 1e17), np.dtype(np.float64): (1e-140, 1e150)}
_HALVES = frozenset({torch.float16, torch.bfloat16})
# The compiled kernel looks at a tensor once, with one thread; torch looks three times, with all of its threads.
_MANY_THREADS = 4
_figures: Callable[[int, int, int], tuple[float, float, float, float] | None]
_COMPILED: dict[torch.dtype, int] = {}
if kernels is not None:
    _figures = kernels.figures
    _COMPILED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_DEVICE_ROWS = 64  # row sums a tensor leaves on its device: 512 bytes
_DEVICE_ROWS_FROM = 1 << 16

if hasattr(np, "vecdot"):
    _row_dots: Callable[[Array, Array], Array] = np.vecdot
else:  # numpy 1.26

    def _row_dots(rows: Array, other: Array) -> Array:
        products: Array = np.matmul(rows[:, None, :], other[..., None])
        return products.reshape(-1)


class Figures(NamedTuple):
    """What is known of a tensor; ``counts`` are NaN, +Inf, -Inf, None when all are finite or nobody counted."""

    max: Number
    min: Number
    mean: Number
    norm: Number
    counts: tuple[int, int, int] | None = None
    stat_dtype: str | None = None


NOTHING = Figures(None, None, None, None)


class Statistics:
    """Figures of tensors: computed where the tensor lies when it is added, fetched all at once by :meth:`resolve`.

    ``mode`` is the reference's ``summary_mode``: ``statistics``; ``md5`` adds the CRC-32; ``xor`` gives the XOR digest alone;
    ``hash`` (ours) adds an order-sensitive 64-bit digest. ``compat`` gives the reference's own values, rounded in the tensor's
    dtype, with ``precision="high"`` as its code has it: no Mean and Norm. ``counts``: count NaN and Inf of host tensors that are
    not finite; for a device that would need a synchronisation, there Max and Min tell.

    A tensor whose figures cannot be had gives nulls and is counted in ``unsupported`` by type and dtype; no error leaves
    :meth:`add`. May be called from several threads.
    """

    def __init__(
        self, mode: str = "statistics", *, compat: bool = False, precision: str = "low", counts: bool = True
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"summary mode {mode!r}: expected one of {', '.join(MODES)}")
        if precision not in ("low", "high"):
            raise ValueError(f"precision {precision!r}: expected low or high")
        self.mode = mode
        self.compat = compat
        self.precision = precision
        self.counts = counts
        self.unsupported: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pending: list[Record | Callable[[], Record]] = []
        self._columns: dict[Hashable, _Column] = {}  # by device, dtype and stream
        # Host tensors in the commonest modes: our values, with the CRC or no digest.
        self._direct = mode in ("statistics", "md5") and not compat
        self._md5 = mode == "md5"

    def add(self, tensor: Tensor) -> int:
        """The tensor's number since the last resolve. Its figures are those of now: later in-place changes do not matter."""
        record: Record = {}
        result = record if self.enter(record, tensor) else self._carefully(tensor)
        with self._lock:
            self._pending.append(result)
            return len(self._pending) - 1

    def enter(self, record: Record, tensor: Tensor) -> bool:
        """Enter the figures into ``record`` if they are there at once: of a plain host tensor, in the commonest modes.

        False: nothing was entered, and :meth:`add` takes the tensor.
        """
        if not self._direct or type(tensor) not in PLAIN_TYPES or not tensor.is_cpu or modes_active():
            return False
        digest = None
        try:
            if self._md5:
                if tensor.is_quantized:
                    return False
                if not holds_no_memory(tensor):
                    digest = digests.crc32_beside(tensor)
            _enter_on_host(record, tensor, self.counts)
        except Exception:  # sparse, nested, conjugated, freed, ...: the slower way knows them
            if digest is not None:
                digest()  # which waits until nothing reads the tensor any more
            return False
        if digest is not None and record["Max"] is not None:
            record["md5"] = digest()
        return True

    def resolve(self) -> list[Record]:
        """One dict a tensor, in the order they were added; waits for the devices. Forgets them."""
        with self._lock:
            pending, self._pending = self._pending, []
            columns, self._columns = self._columns, {}
        for column in columns.values():
            column.fetch()
        return [entry if type(entry) is dict else self._finished(entry) for entry in pending]  # type: ignore[arg-type]

    def take_unsupported(self) -> Counter[str]:
        """What ``unsupported`` has counted since the last time."""
        with self._lock:
            taken, self.unsupported = self.unsupported, Counter()
        return taken

    def _finished(self, entry: Callable[[], Record]) -> Record:
        try:
            return entry()
        except Exception as error:
            self._refuse(f"resolve/{type(error).__name__}")
            return self._nulls()

    def _carefully(self, tensor: Tensor) -> Record | Callable[[], Record]:
        try:
            with out_of_sight():
                plain = plain_of(tensor)
                if plain is None:
                    return self._nulls()
                if not plain.is_cpu and devices.is_capturing(plain.device):
                    self._refuse("captured for a graph")
                    return self._nulls()
                return self._entry(plain)
        except Exception:
            kind = type(tensor).__name__
            self._refuse(f"{kind}/{str(getattr(tensor, 'dtype', '')).removeprefix('torch.')}")
            return self._nulls()

    def _refuse(self, what: str) -> None:
        with self._lock:
            self.unsupported[what] += 1

    def _nulls(self) -> Record:
        return {"md5": None} if self.mode == "xor" else _record(NOTHING)

    def _entry(self, plain: Tensor) -> Record | Callable[[], Record]:
        """The record, or what makes it once the columns have been fetched."""
        figures = NOTHING if self.mode == "xor" else self._figures_of(plain)
        digest = self._digest_of(plain)
        if isinstance(figures, Figures) and not callable(digest):
            return self._with_digest(figures, digest)
        return lambda: self._with_digest(
            figures if isinstance(figures, Figures) else figures(), digest() if callable(digest) else digest
        )

    def _with_digest(self, figures: Figures, digest: object) -> Record:
        if self.mode == "xor":
            return {"md5": digest}
        record = _record(figures)
        if digest is not None:
            record["md5"] = digest
        return record

    def _digest_of(self, plain: Tensor) -> object | Callable[[], object]:
        if self.mode == "statistics":
            return None
        if self.mode == "md5":
            return digests.crc32_later(plain)
        if self.mode == "xor" and plain.ndim == 0:
            if plain.is_cpu:
                return _scalar_as_xor(_item(plain))
            fetched = self._put(VARIABLE.clone(plain))
            return lambda: _scalar_as_xor(fetched()[0])
        words = digests.xor64_word(plain) if self.mode == "xor" else digests.hash64_word(plain)
        spell = digests.spell_xor64 if self.mode == "xor" else digests.spell_hash64
        if words.is_cpu:
            return spell(int(_item(words)))
        fetched = self._put(words)
        return lambda: spell(int(fetched()[0]))

    def _put(self, values: Tensor) -> Callable[[], list[float]]:
        device = values.device
        stream = devices.current_stream(device)
        key = (device, values.dtype, stream)
        with self._lock:
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column(device, stream)
            return column.put(values)

    def _figures_of(self, plain: Tensor) -> Figures | Callable[[], Figures]:
        """Figures of a strided, detached, non-empty tensor; one kernel that does all of it would go here."""
        if _on_host(plain):
            return self._reference_on_host(plain) if self.compat else _host_figures(plain, self.counts)
        return self._reference_on_device(plain) if self.compat else self._device_figures(plain)

    def _device_figures(self, plain: Tensor) -> Callable[[], Figures]:
        dtype = plain.dtype
        if plain.ndim == 0 and not dtype.is_complex and dtype not in NARROW_FLOATS:
            value = self._put(VARIABLE.clone(plain))
            return lambda: _of_scalar(value()[0])
        plain = _computable(plain)
        low, high = _extremes(plain)
        lows, highs = self._put(low), self._put(high)
        if dtype is torch.bool:
            return lambda: Figures(highs()[0], lows()[0], None, None)
        values = plain if plain.dtype.is_floating_point else to(plain, devices.wide_float(plain.device))
        accumulate = torch.float64 if values.dtype is torch.float64 else torch.float32
        count = numel(values)
        rows, axes = values, list(range(values.ndim))
        if count >= _DEVICE_ROWS_FROM and count % _DEVICE_ROWS == 0 and is_contiguous(values):
            rows, axes = view(values, _DEVICE_ROWS, -1), [1]
        sums = self._put(_sum(rows, axes, dtype=accumulate))
        norms = self._put(_vector_norm(rows, 2, axes, dtype=accumulate))
        return lambda: _on_device(highs()[0], lows()[0], sums(), norms(), count, accumulate)

    def _reference_on_host(self, plain: Tensor) -> Figures:
        """The reference's values (STA-1 to STA-4), with our counts."""
        found = [None if part is None else _item(part) for part in self._reference(plain)]
        counts = None
        if self.counts and plain.is_floating_point() and plain.ndim > 0 and not _finite(found[0], found[1]):
            counts = _host_figures(plain, True).counts
        return Figures(found[0], found[1], found[2], found[3], counts)

    def _reference_on_device(self, plain: Tensor) -> Callable[[], Figures]:
        columns = [None if part is None else self._put(part) for part in self._reference(plain)]
        return lambda: Figures(*(None if column is None else column()[0] for column in columns))  # type: ignore[arg-type]

    def _reference(self, plain: Tensor) -> list[Tensor | None]:
        """Max, Min, Mean, Norm as four reductions in the tensor's own dtype."""
        dtype = plain.dtype
        if dtype in NARROW_FLOATS or dtype == FLOAT4:
            return [None] * 4
        if dtype.is_complex:
            magnitudes = VARIABLE.abs(plain)
            if plain.ndim == 0:
                return [magnitudes] * 4
            return [_max(magnitudes), _min(magnitudes), VARIABLE.mean(magnitudes), None]
        if plain.ndim == 0:
            return [VARIABLE.clone(plain)] * 4
        if dtype in UNSIGNED and dtype.itemsize < 8:
            plain = to(plain, torch.int64)
        low, high = (_min(plain), _max(plain)) if dtype is not torch.bool else _extremes(plain)
        if not dtype.is_floating_point or dtype is torch.float64 or self.precision == "high":
            return [high, low, None, None]
        return [high, low, VARIABLE.mean(plain), _vector_norm(plain)]


class _Column:
    """Numbers of one dtype on one stream of a device: put there one after another, fetched in one transfer.

    Only that stream is waited for. All of a device might wait for a peer that waits for this process.
    """

    def __init__(self, device: torch.device, stream: Any) -> None:
        self._device, self._stream = device, stream
        self._loose: list[Tensor] = []
        self._packed: list[Tensor] = []
        self._size = 0
        self._values: list[float] = []

    def put(self, values: Tensor) -> Callable[[], list[float]]:
        begin = self._size
        end = self._size = begin + numel(values)
        self._loose.append(view(values, -1))
        if len(self._loose) >= 512:  # an allocation each, of 512 bytes on CUDA
            self._packed.append(VARIABLE.cat(self._loose))
            self._loose = []
        return lambda: self._values[begin:end]

    def fetch(self) -> None:
        with out_of_sight(), devices.on_stream(self._device, self._stream):
            self._values = BASE.tolist(VARIABLE.cat(self._packed + self._loose))
        self._packed, self._loose = [], []


def _on_host(tensor: Tensor) -> bool:
    return tensor.is_cpu


def _scalar_as_xor(value: Any) -> object:
    """The reference's digest of a 0-d tensor: the value itself, integers in hexadecimal."""
    return f"0x{value:x}" if isinstance(value, int) and not isinstance(value, bool) else value


def _record(figures: Figures) -> Record:
    high, low, mean, norm, counts, stat_dtype = figures
    record: Record = {"Max": high, "Min": low, "Mean": mean, "Norm": norm}
    if stat_dtype is not None:
        record["stat_dtype"] = stat_dtype
    if counts is not None:
        record["nan"], record["pos_inf"], record["neg_inf"] = counts
    return record


def _enter_on_host(record: Record, tensor: Tensor, counts: bool) -> None:
    """Enter the figures of a strided CPU tensor: the hot path of a collector on a CPU, where a Python call is felt.

    Raises before anything is entered.
    """
    if holds_no_memory(tensor):
        record.update(_record(NOTHING))
        return
    count = numel(tensor)
    found = _at_once(tensor, count) if count and tensor.ndim else None
    if found is None:
        record.update(_record(_patiently(data_of(tensor), counts)))
        return
    record["Max"], record["Min"], record["Mean"], record["Norm"] = found
    record["stat_dtype"] = "float64"


def _at_once(tensor: Tensor, count: int) -> tuple[float, float, float, float] | None:
    """Max, Min, Mean, Norm of a strided CPU tensor of the usual dtypes, with one thread; None where that is not the way.

    Elements are added in the order of the memory: a transposed tensor has the figures of the other to the last bit.
    """
    dtype = tensor.dtype
    kind = _COMPILED.get(dtype)
    if kind is not None and (count <= _SMALL or torch.get_num_threads() < _MANY_THREADS):
        if is_contiguous(tensor) and not tensor.is_neg():
            return _figures(data_ptr(tensor), count, kind)
        array = array_of(_float(data_of(tensor)) if dtype in _HALVES else tensor).ravel("K")
        return _figures(array.ctypes.data, count, 0)
    if kind is not None or count > _SMALL:
        return None
    values = _float(data_of(tensor)) if dtype in _HALVES else tensor  # to be kept while the array is looked at
    if values is tensor and dtype is not torch.float32:
        return None
    plain = is_contiguous(values) and not values.is_neg()
    return _small(float32_at(data_ptr(values), count) if plain else array_of(values).ravel("K"))


def _host_figures(tensor: Tensor, counts: bool) -> Figures:
    """Figures of a strided, detached CPU tensor, now. Raises what torch or numpy raise for tensors that are not plain."""
    count = numel(tensor)
    found = _at_once(tensor, count) if count and tensor.ndim else None
    return _patiently(tensor, counts) if found is None else Figures(*found, None, "float64")


def _patiently(tensor: Tensor, counts: bool) -> Figures:
    """As :func:`_host_figures`, of any dtype, size and values."""
    dtype = tensor.dtype
    if numel(tensor) == 0:
        return NOTHING
    if tensor.ndim == 0:
        if dtype.is_complex:
            tensor = _magnitudes(tensor)
        elif dtype in NARROW_FLOATS:
            tensor = to(tensor, torch.float32)
        return _of_scalar(_item(tensor), counts)
    if dtype is torch.bool:
        array = array_of(tensor)
        return Figures(bool(array.any()), bool(array.all()), None, None)
    if dtype is torch.float32 or dtype is torch.float64:
        parts: Iterable[Tensor] = (tensor,)
    elif dtype.is_complex:
        parts = (_magnitudes(tensor),)
    elif dtype.is_floating_point:
        parts = _as_float32(tensor)
    else:
        return _of_integers(array_of(tensor))
    return Figures(*_combined([_of_part(part, counts) for part in parts]), "float64")


class _Part(NamedTuple):
    """Figures of some elements; ``bad`` counts NaN, +Inf, -Inf."""

    size: int
    high: float
    low: float
    mean: float
    norm: float
    bad: tuple[int, int, int] | None = None


def _of_part(values: Tensor, counts: bool) -> _Part:
    """Figures of a float32 or float64 CPU tensor."""
    count = numel(values)
    small = count <= _SMALL
    if not small:
        values = flat(values)
    array = array_of(values).ravel("K")
    found = _small(array) if small else _large(values, array)
    if found is not None:
        return _Part(count, *found)
    high, low = float(_highest(array)), float(_lowest(array))
    if _finite(high, low):
        return _Part(count, high, low, *_scaled(array, max(high, -low)))
    return _Part(count, high, low, *_of_nonfinite(high, low), _count_bad(array) if counts else None)


def _small(array: Array) -> tuple[float, float, float, float] | None:
    """Max, Min, Mean, Norm with one thread; None if they are not finite or their squares do not fit."""
    high, low = float(_highest(array)), float(_lowest(array))
    bounds = _SQUARES_FIT[array.dtype]
    if not bounds[0] < (high if high > -low else -low) < bounds[1]:
        return (high, low, 0.0, 0.0) if high == 0 == low else None  # None also where they are NaN
    count = len(array)
    total, squares = _sums(array, count)
    return high, low, total / count, math.sqrt(squares)


def _large(values: Tensor, array: Array) -> tuple[float, float, float, float] | None:
    """As :func:`_small`, with torch's threads; ``array`` has the memory of the flat ``values``."""
    lowest, highest = _aminmax(values)
    high, low = _item(highest), _item(lowest)
    bounds = _SQUARES_FIT[array.dtype]
    if not bounds[0] < (high if high > -low else -low) < bounds[1]:
        return None
    count = len(array)
    whole = count - count % _TORCH_ROW
    rows = view(values if whole == count else values[:whole], -1, _TORCH_ROW)
    totals = array_of(_sum(rows, 1))
    norms = array_of(_vector_norm(rows, 2, [1])).astype(np.float64)
    total, squares = _sums(array[whole:], count - whole) if whole < count else (0.0, 0.0)
    total += float(np.add.reduce(totals, dtype=np.float64))
    squares += float(np.add.reduce(norms * norms))
    return high, low, total / count, math.sqrt(squares)


def _sums(array: Array, count: int) -> tuple[float, float]:
    """Sum and sum of squares; a row in the array's own format (its dot products use SIMD), rows together in float64."""
    ones = _ONES[array.dtype]
    if count <= _ROW:
        return float(_dot(array, ones[:count])), float(_dot(array, array))
    whole = count - count % _ROW
    rows = array[:whole].reshape(-1, _ROW)
    total, squares = sum(_row_dots(rows, ones).tolist()), sum(_row_dots(rows, rows).tolist())
    if whole < count:
        rest = _sums(array[whole:], count - whole)
        return total + rest[0], squares + rest[1]
    return total, squares


def _scaled(array: Array, largest: float) -> tuple[float, float]:
    """Mean and Norm in float64 of values divided by the largest magnitude: their squares would overflow or vanish."""
    if largest == 0:
        return 0.0, 0.0
    total = squares = 0.0
    for begin in range(0, len(array), _PART):
        part = array[begin : begin + _PART].astype(np.float64) / largest
        total += float(np.add.reduce(part))
        squares += float(np.add.reduce(part * part))
    return largest * (total / len(array)), largest * math.sqrt(squares)


def _of_integers(array: Array) -> Figures:
    if array.size == 0:
        return NOTHING
    array = array.ravel("K")
    mean, norm = _scaled(array, 1.0)
    return Figures(int(array.max()), int(array.min()), mean, norm, None, "float64")


def _of_scalar(value: Number, counts: bool = False) -> Figures:
    """0-d: every figure is the value, the norm its magnitude."""
    if value is None or isinstance(value, bool):
        return Figures(value, value, None, None)
    bad = None
    if counts and not _finite(value, value):
        bad = (int(value != value), int(value == math.inf), int(value == -math.inf))
    return Figures(value, value, value, abs(value), bad)


def _of_nonfinite(high: float, low: float) -> tuple[float, float]:
    """Mean and Norm of values of which one at least is NaN or infinite."""
    if high != high:
        return math.nan, math.nan
    if high == math.inf:
        return (math.nan if low == -math.inf else math.inf), math.inf
    return -math.inf, math.inf


def _combined(parts: Sequence[_Part]) -> tuple[float, float, float, float, tuple[int, int, int] | None]:
    if len(parts) == 1:
        return parts[0][1:]
    high, low = max(p.high for p in parts), min(p.low for p in parts)
    bads = [part.bad for part in parts if part.bad is not None]
    bad = (sum(b[0] for b in bads), sum(b[1] for b in bads), sum(b[2] for b in bads)) if bads else None
    if any(p.high != p.high for p in parts):  # max() and min() pass over NaN
        return math.nan, math.nan, math.nan, math.nan, bad
    if not _finite(high, low):
        return high, low, *_of_nonfinite(high, low), bad
    count = sum(p.size for p in parts)
    return high, low, sum(p.mean * (p.size / count) for p in parts), math.hypot(*(p.norm for p in parts)), None


def _on_device(
    high: float, low: float, sums: Sequence[float], norms: Sequence[float], count: int, accumulate: torch.dtype
) -> Figures:
    """Figures from what was fetched. A norm beyond float32 is inf there: Max and Min tell that the values are finite."""
    mean, norm = sum(sums) / count, math.hypot(*norms)
    if not _finite(high, low):
        mean, norm = _of_nonfinite(high, low)
    return Figures(high, low, mean, norm, None, str(accumulate).removeprefix("torch."))


def _finite(high: Number, low: Number) -> bool:
    return high is not None and low is not None and high - high == 0 and low - low == 0


def _count_bad(array: Array) -> tuple[int, int, int]:
    count = np.count_nonzero
    return int(count(array != array)), int(count(array == np.inf)), int(count(array == -np.inf))


def _as_float32(tensor: Tensor) -> Iterator[Tensor]:
    """A narrower float tensor as float32, in parts that stay in the cache."""
    if tensor.dtype == FLOAT4:
        tensor = decoded_float4(tensor)
    if numel(tensor) <= _PART:
        yield _float(tensor)
    else:
        for part in _split(flat(tensor), _PART):
            yield _float(part)


def _magnitudes(tensor: Tensor) -> Tensor:
    return VARIABLE.abs(tensor if tensor.dtype is not torch.complex32 else to(tensor, torch.complex64))


def _extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Min and Max; by two kernels where a device has no aminmax for the dtype."""
    key = (tensor.device.type, tensor.dtype)
    if key not in _without_aminmax:
        try:
            return _aminmax(tensor)
        except (RuntimeError, NotImplementedError):
            _without_aminmax.add(key)
    return _min(tensor), _max(tensor)


_without_aminmax: set[tuple[str, torch.dtype]] = set()


def _computable(tensor: Tensor) -> Tensor:
    """A dtype that reductions know: magnitudes of complex, bfloat16 (exact) of narrow floats, wider for unsigned."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return _magnitudes(tensor)
    if dtype == FLOAT4:
        return decoded_float4(tensor)
    if dtype in NARROW_FLOATS:
        return to(tensor, torch.bfloat16)
    if dtype in UNSIGNED:
        return to(tensor, torch.int64 if dtype.itemsize < 8 else devices.wide_float(tensor.device))
    return tensor
