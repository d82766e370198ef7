"""Which mechanism made the non-finite value, from the recorded figures of the record (and of its forward call).

Every test gives a class with the message that shows it; where several fit, the order of ``CLASSES`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.bound import bound_of, magnitude, matmul_estimate, output_of, tensors
from numprobe.diagnose.nan_overflow.digest import Event
from numprobe.diagnose.nan_overflow.result import CLASSES, Bound, Params, Values
from numprobe.record.dtypes import float_format, short_dtype
from numprobe.record.names import BACKWARD, PARAMETERS_GRAD
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, Record, Value

NEAR_LIMIT = 0.1  # share of the largest finite value from which an input counts as close to it
IGNORE_INDEX = -100
_NAN, _INF = int(Kinds.NAN), int(Kinds.POS_INF | Kinds.NEG_INF)


@dataclass(frozen=True)
class Finding:
    """A class, the messages that show it, and whether the recorded figures prove the mechanism."""

    clazz: str
    messages: tuple[Params, ...]
    bound: Bound | None
    proved: bool


def classify(kind: str, event: Event, record: Record, forward: Record | None, show: Callable[[float], str]) -> Finding:
    """The class of an origin. ``forward``: the forward call of a backward record, where it is recorded."""
    bound = bound_of(record, show)
    fixed = _by_kind(kind, event, record)
    if fixed is not None:
        return Finding(fixed[0], fixed[1], bound if kind == "introduced" else None, fixed[2])
    tests = (_masked_row, _empty_batch, _zero_times_inf, _domain, _recompute, _range)
    found: list[tuple[str, Params]] = []
    for test in tests:
        hit = test(event, record, forward)
        if hit is not None:
            found.append(hit)
    found.sort(key=lambda f: CLASSES.index(f[0]))
    if found and not (bound.contradicts_output and found[0][0] == "range_overflow"):
        return Finding(found[0][0], (found[0][1],), bound, True)
    if bound.contradicts_output:
        message = Params("evidence.bound", _bound_values(bound))
        return Finding("kernel_fault", (message,), bound, True)
    if record.name.direction == BACKWARD:
        return Finding("gradient_overflow", (), bound, False)
    if _modest(record) and apis.is_kernel(record.name):
        return Finding("kernel_fault", (), bound, False)
    return Finding("unknown", (), bound, False)


def _by_kind(kind: str, event: Event, record: Record) -> tuple[str, tuple[Params, ...], bool] | None:
    op = record.name.name
    dirty = [v for v in record.of(INPUT, PARAMETER) if v.kinds.dirty]
    slot = dirty[0].path if dirty else ""
    kinds = Kinds(dirty[0].kinds if dirty else event.kinds).words()
    if kind == "parameter":
        return "bad_parameter", (Params("evidence.parameter", {"slot": slot, "op": op, "kinds": kinds}),), True
    if kind == "input_data":
        return "bad_input_data", (Params("evidence.input_data", {"slot": slot, "op": op, "kinds": kinds}),), True
    if kind == "uninitialised":
        message = Params("evidence.allocation", {"allocation": event.after_name, "op": op})
        return "uninitialised_memory_used", (message,), True
    if record.name.kind == PARAMETERS_GRAD:  # what backward got is finite: the sum of the gradient has overflowed
        return "gradient_overflow", (Params("evidence.gap", {"after": event.after_name, "op": op}),), False
    if kind in ("gap", "container"):
        if event.after_name:
            return "unknown", (Params("evidence.gap", {"after": event.after_name, "op": op}),), False
        return "unknown", (Params("evidence.gap_from_start", {"op": op}),), False
    return None


def _masked_row(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    """Softmax of a row of -inf only: -inf (and no +inf) goes in, NaN comes out."""
    if not event.kinds & _NAN or not (apis.is_softmax(record.name) or apis.is_attention(record.name)):
        return None
    for v in record.of(INPUT):
        if v.kinds & DIRTY == Kinds.NEG_INF:
            return "fully_masked_row", Params("evidence.masked_row", {"slot": v.path, "op": record.name.name})
    return None


def _empty_batch(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    """An average over nothing: 0/0, the mean of an empty tensor, a loss all of whose targets are ignored."""
    if not event.kinds & _NAN:
        return None
    name = apis.base(record.name).lower()
    inputs = [v for v in record.of(INPUT) if v.is_tensor]
    if name in apis.DIVISIONS and name != "reciprocal":
        operands = [v for v in record.of(INPUT) if v.is_tensor or _scalar(v) is not None]
        if len(operands) >= 2 and _all_zero(operands[0]) and _all_zero(operands[1]):
            return "empty_batch", Params("evidence.zero_by_zero", {"slot": operands[1].path, "op": record.name.name})
    if name in apis.MEANS or apis.is_loss(record.name):
        for v in inputs:
            if v.shape is not None and 0 in v.shape:
                return _empty(record, v)
            whole = isinstance(v.max, int) and not isinstance(v.max, bool)
            if whole and v.max == v.min == IGNORE_INDEX:
                return _empty(record, v)
    return None


def _zero_times_inf(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    """A gradient 0 meets an infinite derivative: the forward call was finite, or its infinity was masked out."""
    name = apis.base(record.name).lower()
    if record.name.direction != BACKWARD:
        if name in ("mul", "multiply") and event.given & _INF:
            for v in record.of(INPUT):
                if v.kinds == Kinds.CLEAN and _touches_zero(v):
                    return _edge("zero_times_inf", record.name.name, v, "zero")
        return None
    if forward is None or not event.kinds & (_NAN | _INF):
        return None
    for v in forward.of(INPUT, OUTPUT):
        if v.kinds & _INF and not v.kinds & _NAN:
            return _edge("zero_times_inf", forward.name.name, v, "inf")
    singular = name in (
        apis.LOGS | apis.ROOTS | apis.DIVISIONS | apis.POWERS | {"norm", "log1p", "vector_norm", "renorm"}
    )
    for v in forward.of(INPUT):
        if singular and v.is_tensor and _touches_zero(v):
            edge = "zero" if (v.min or 0) == 0 else "domain"
            return _edge("zero_times_inf", forward.name.name, v, edge)
    return None


def _domain(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    """An argument outside of the function's domain, or on its edge."""
    source = forward if record.name.direction == BACKWARD else record
    if source is None:
        return None
    name = apis.base(source.name).lower()
    operands = [v for v in source.of(INPUT) if v.is_tensor or _scalar(v) is not None]
    if not operands:
        return None
    x = operands[0]
    if name in apis.DIVISIONS:
        below = operands[0] if name == "reciprocal" else operands[1] if len(operands) > 1 else None
        if below is not None and _touches_zero(below):
            return _stat("domain_error", source, below, "Min", "zero")
        return None
    low, high = _low(x), _high(x)
    if low is None or high is None:
        return None
    if ((name in apis.LOGS or name == "rsqrt") and low <= 0) or (name == "sqrt" and low < 0):
        return _stat("domain_error", source, x, "Min", "negative" if low < 0 else "zero")
    if (
        (name == "log1p" and low <= -1)
        or (name in apis.UNIT_DOMAIN and low < -1)
        or (name in apis.ABOVE_ONE and low < 1)
    ):
        return _stat("domain_error", source, x, "Min", "domain")
    if name in apis.UNIT_DOMAIN and high > 1:
        return _stat("domain_error", source, x, "Max", "domain")
    if name in apis.POWERS and len(operands) > 1:
        power = _low(operands[1])
        if power is not None and ((low < 0 and power != int(power)) or (low <= 0 <= high and power < 0)):
            return _stat("domain_error", source, x, "Min", "negative" if low < 0 else "zero")
    return None


def _recompute(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    if event.phase == "recompute" and event.twin_clean:
        return "recompute_differs", Params("evidence.recompute_twin", {"twin": event.module or record.name.name})
    return None


def _exp(x: float) -> float:
    """exp(x), inf where it leaves fp64 too."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _range(event: Event, record: Record, forward: Record | None) -> tuple[str, Params] | None:
    """Figures of the size of the dtype's limit."""
    out = output_of(record)
    form = float_format(out.dtype) if out is not None else None
    if out is None or form is None:
        return None
    name = apis.base(record.name).lower()
    estimate = matmul_estimate(record) if record.name.direction != BACKWARD else None
    sizes = [(v, s) for v in tensors(record) if (s := magnitude(v)) is not None and not is_fill_value(v)]
    if estimate is None and len(sizes) == 2 and name in ("mul", "multiply") and record.name.direction != BACKWARD:
        estimate = sizes[0][1] * sizes[1][1]
    if estimate is None and sizes and record.name.direction != BACKWARD:
        x = sizes[0][1]
        if name in apis.EXPONENTIALS:
            high = _high(sizes[0][0]) or 0.0
            estimate = _exp(high)
        elif any(word in name for word in ("swiglu", "geglu", "reglu")):  # one half of the input times the other
            estimate = x * x
        elif name in ("pow", "square", "float_power"):
            power = next((s for v in record.of(INPUT) if not v.is_tensor and (s := _scalar(v)) is not None), 2.0)
            estimate = _exp(power * math.log(x)) if x > 0 else None
        elif name in ("sum", "cumsum"):
            total = sizes[0][0]
            if total.mean is not None and total.numel and math.isfinite(total.mean):
                estimate = abs(float(total.mean)) * total.numel / max(out.numel or 1, 1)
    if estimate is not None and estimate >= 0.5 * form.max:
        values: Values = {
            "estimate": estimate,
            "dtype": form.name,
            "dtype_max": form.max,
        }
        return "range_overflow", Params("evidence.estimate", values)
    for v, size in sizes:
        own = float_format(v.dtype)
        if own is not None and size >= NEAR_LIMIT * min(own.max, form.max):
            near: Values = {
                "slot": v.path,
                "value": size,
                "share": size / own.max,
                "dtype": short_dtype(v.dtype),
                "dtype_max": own.max,
            }
            return "range_overflow", Params("evidence.input_near_limit", near)
    return None


def is_fill_value(v: Value) -> bool:
    """A finite fill value rather than data: Min (or Max) exactly at the dtype's limit, as masks have (refinement 5)."""
    form = float_format(v.dtype)
    if form is None or v.max is None or v.min is None:
        return False
    at_low = math.isclose(float(v.min), -form.max, rel_tol=1e-6) or float(v.min) <= -0.5 * form.max
    return at_low and float(v.max) < 0.5 * form.max


def _modest(record: Record) -> bool:
    """All tensor inputs are known, finite and far from the limit."""
    inputs = tensors(record)
    if not inputs:
        return False
    for v in inputs:
        size, form = magnitude(v), float_format(v.dtype)
        if size is None or form is None or (size > NEAR_LIMIT * form.max and not is_fill_value(v)):
            return False
    return True


def _bound_values(bound: Bound) -> Values:
    return {"bound": bound.value or 0.0, "dtype": bound.dtype, "dtype_max": bound.dtype_max or 0.0}


def _scalar(v: Value) -> float | None:
    if isinstance(v.scalar, bool) or not isinstance(v.scalar, (int, float)):
        return None
    return float(v.scalar)


def _low(v: Value) -> float | None:
    s = _scalar(v)
    return s if s is not None else None if v.min is None else float(v.min)


def _high(v: Value) -> float | None:
    s = _scalar(v)
    return s if s is not None else None if v.max is None else float(v.max)


def _touches_zero(v: Value) -> bool:
    """0 may be among the values: an extremum is 0, or it cannot be told (Min < 0 < Max) and zero is no evidence."""
    low, high = _low(v), _high(v)
    return low is not None and high is not None and (low == 0 or high == 0)


def _all_zero(v: Value) -> bool:
    return _low(v) == 0 and _high(v) == 0


def _empty(record: Record, v: Value) -> tuple[str, Params]:
    values: Values = {"slot": v.path, "op": record.name.name}
    if v.shape is not None:
        values["shape"] = f"[{', '.join(map(str, v.shape))}]"
    return "empty_batch", Params("evidence.empty_batch", values)


def _edge(clazz: str, op: str, v: Value, edge: str) -> tuple[str, Params]:
    return clazz, Params("evidence.forward_edge", {"forward_op": op, "slot": v.path, "edge": edge})


def _stat(clazz: str, record: Record, v: Value, stat: str, edge: str) -> tuple[str, Params]:
    value = _low(v) if stat == "Min" else _high(v)
    values: Values = {
        "slot": v.path,
        "op": record.name.name,
        "stat": stat,
        "value": value if value is not None else 0.0,
        "edge": edge,
    }
    return clazz, Params("evidence.domain", values)
