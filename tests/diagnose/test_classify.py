"""One mechanism a record: which class its figures show, and which message says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from numprobe.diagnose.nan_overflow.classify import Finding, classify, is_fill_value
from numprobe.diagnose.nan_overflow.digest import Event
from numprobe.diagnose.nan_overflow.result import CLASSES
from numprobe.formats.msprobe.members import record_from
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import INPUT, Record

from .samples import INF, NAN, call, scalar, t


def record(name: str, *inputs: Any, out: Any, **keywords: Any) -> Record:
    return record_from(name, 0, json.dumps(call(*inputs, out=out, **keywords)).encode(), 0)


def classified(
    kind: str, what: Record, forward: Record | None = None, *, phase: str = "forward", **more: Any
) -> Finding:
    event = Event(0, what.name.name, kind, int(what.kinds("output")), int(what.kinds(INPUT)), phase, **more)
    return classify(kind, event, what, forward, lambda x: f"{x:g}")


@dataclass(frozen=True)
class Case:
    want: str
    message: str
    record: Record
    forward: Record | None = None


BAD = t(NAN)
HALF = {"dtype": "float16"}
CASES = {
    "log of a negative": Case("domain_error", "evidence.domain", record("Torch.log.0.forward", t(1.0, -2.0), out=BAD)),
    "log of zero": Case(
        "domain_error", "evidence.domain", record("Torch.log.0.forward", t(1.0, 0.0), out=t(0.0, -INF))
    ),
    "sqrt of a negative": Case(
        "domain_error", "evidence.domain", record("Torch.sqrt.0.forward", t(1.0, -0.1), out=BAD)
    ),
    "rsqrt of zero": Case(
        "domain_error", "evidence.domain", record("Torch.rsqrt.0.forward", t(1.0, 0.0), out=t(INF, 1.0))
    ),
    "log1p below -1": Case("domain_error", "evidence.domain", record("Torch.log1p.0.forward", t(1.0, -1.5), out=BAD)),
    "acos above 1": Case("domain_error", "evidence.domain", record("Torch.acos.0.forward", t(1.4, 0.0), out=BAD)),
    "acosh below 1": Case("domain_error", "evidence.domain", record("Torch.acosh.0.forward", t(2.0, 0.5), out=BAD)),
    "division by zero": Case(
        "domain_error", "evidence.domain", record("Torch.div.0.forward", t(2.0), t(1.0, 0.0), out=t(INF, -INF))
    ),
    "reciprocal of zero": Case(
        "domain_error", "evidence.domain", record("Torch.reciprocal.0.forward", t(1.0, 0.0), out=t(INF, 1.0))
    ),
    "root of a negative by pow": Case(
        "domain_error", "evidence.domain", record("Tensor.__pow__.0.forward", t(1.0, -1.0), scalar(0.5), out=BAD)
    ),
    "zero over zero": Case(
        "empty_batch",
        "evidence.zero_by_zero",
        record("Tensor.__truediv__.0.forward", t(0.0, 0.0), t(0.0, 0.0), out=BAD),
    ),
    "mean of nothing": Case(
        "empty_batch", "evidence.empty_batch", record("Torch.mean.0.forward", t(None, shape=(0, 4), norm=None), out=BAD)
    ),
    "all targets ignored": Case(
        "empty_batch",
        "evidence.empty_batch",
        record("Functional.cross_entropy.0.forward", t(3.0), t(-100, -100, dtype="int64"), out=BAD),
    ),
    "softmax of a masked row": Case(
        "fully_masked_row", "evidence.masked_row", record("Functional.softmax.0.forward", t(2.0, -INF), out=BAD)
    ),
    "attention with a masked row": Case(
        "fully_masked_row",
        "evidence.masked_row",
        record(
            "Functional.scaled_dot_product_attention.0.forward", t(1.0), t(1.0), t(1.0), out=BAD, attn_mask=t(0.0, -INF)
        ),
    ),
    "zero times infinity": Case(
        "zero_times_inf", "evidence.forward_edge", record("Torch.mul.0.forward", t(1.0, 0.0), t(INF, 1.0), out=BAD)
    ),
    "gradient of log at zero": Case(
        "zero_times_inf",
        "evidence.forward_edge",
        record("Torch.log.0.backward", t(0.0), out=BAD),
        record("Torch.log.0.forward", t(1.0, 0.0), out=t(0.0, -INF)),
    ),
    "gradient of sqrt at zero": Case(
        "zero_times_inf",
        "evidence.forward_edge",
        record("Torch.sqrt.0.backward", t(0.0), out=BAD),
        record("Torch.sqrt.0.forward", t(1.0, 0.0), out=t(1.0, 0.0)),
    ),
    "exp of 100 in fp16": Case(
        "range_overflow", "evidence.estimate", record("Torch.exp.0.forward", t(100.0, **HALF), out=t(INF, 0.0, **HALF))
    ),
    "square of 300 in fp16": Case(
        "range_overflow",
        "evidence.estimate",
        record("Torch.pow.0.forward", t(300.0, **HALF), scalar(2), out=t(INF, 0.0, **HALF)),
    ),
    "gated product in fp16": Case(
        "range_overflow",
        "evidence.estimate",
        record("NPU.npu_swiglu.0.forward", t(4964.0, **HALF), out=t(INF, -INF, **HALF)),
    ),
    "product in fp16": Case(
        "range_overflow",
        "evidence.estimate",
        record("Torch.mul.0.forward", t(300.0, **HALF), t(300.0, **HALF), out=t(INF, -INF, **HALF)),
    ),
    "fp16 activations near the limit": Case(
        "range_overflow",
        "evidence.input_near_limit",
        record(
            "Functional.linear.0.forward",
            t(6e4, shape=(4, 512), norm=INF, **HALF),
            t(0.5, shape=(8, 512), norm=9.0, **HALF),
            out=t(INF, -INF, shape=(4, 8), **HALF),
        ),
    ),
    "a small product": Case(
        "kernel_fault",
        "evidence.bound",
        record("Functional.linear.0.forward", t(8.0, shape=(4, 512)), t(0.1, shape=(8, 512)), out=BAD),
    ),
    "dirty softmax of finite scores": Case(
        "kernel_fault", "evidence.bound", record("Functional.softmax.0.forward", t(5.0), out=BAD)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mechanism(case: Case):
    found = classified("introduced", case.record, case.forward)
    assert (found.clazz, found.messages[0].key, found.proved) == (case.want, case.message, True)


def test_a_modest_kernel_without_a_bound():
    found = classified("introduced", record("Functional.layer_norm.0.forward", t(3.0), out=BAD))
    assert (found.clazz, found.messages, found.proved) == ("kernel_fault", (), False)


def test_a_backward_kernel():
    found = classified("introduced", record("Functional.linear.0.backward", t(3.0), out=BAD), phase="backward")
    assert (found.clazz, found.proved) == ("gradient_overflow", False)


def test_copies_and_unknown_inputs_say_nothing():
    assert classified("introduced", record("Tensor.clone.0.forward", t(3.0), out=BAD)).clazz == "unknown"
    assert classified("introduced", record("Functional.gelu.0.forward", t(None, norm=None), out=BAD)).clazz == "unknown"


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("parameter", "bad_parameter"),
        ("input_data", "bad_input_data"),
        ("uninitialised", "uninitialised_memory_used"),
        ("gap", "unknown"),
        ("container", "unknown"),
    ],
)
def test_the_kind_decides(kind: str, want: str):
    """Even where figures of the record would fit another class."""
    found = classified(kind, record("Torch.log.0.forward", t(NAN), out=BAD), after_name="Torch.exp.0.forward")
    assert found.clazz == want


def test_a_recomputed_call_whose_first_call_was_clean():
    gelu = record("Functional.layer_norm.1.forward", t(3.0), out=BAD)
    assert classified("introduced", gelu, phase="recompute", twin_clean=True).clazz == "recompute_differs"
    assert classified("introduced", gelu, phase="recompute", twin_clean=False).clazz == "kernel_fault"


def test_the_more_specific_class_wins():
    """log of a negative number in a recomputation whose twin was clean: the domain is the narrower statement."""
    log = record("Torch.log.1.forward", t(1.0, -2.0), out=BAD)
    assert classified("introduced", log, phase="recompute", twin_clean=True).clazz == "domain_error"
    assert CLASSES.index("domain_error") < CLASSES.index("recompute_differs") < CLASSES.index("kernel_fault")


def test_an_edge_that_the_function_allows_is_no_domain_error():
    for name, x in (("Torch.sqrt", t(1.0, 0.0)), ("Torch.acos", t(1.0, -1.0)), ("Torch.acosh", t(2.0, 1.0))):
        assert classified("introduced", record(f"{name}.0.forward", x, out=BAD)).clazz != "domain_error"
    assert (
        classified("introduced", record("Torch.div.0.forward", t(1.0), t(2.0, -2.0), out=BAD)).clazz != "domain_error"
    )


def test_a_mask_of_finite_minima_is_no_overflow():
    """|x| near the limit in a mask is a fill value, not range_overflow; data of that size is."""
    mask = t(0.0, -65504.0, dtype="float16")
    scores = record("Functional.softmax.0.forward", mask, out=t(NAN, dtype="float16"))
    assert is_fill_value(scores.of(INPUT)[0])
    assert classified("introduced", scores).clazz == "kernel_fault"
    data = record("Functional.layer_norm.0.forward", t(65000.0, -65504.0, dtype="float16"), out=t(NAN, dtype="float16"))
    assert not is_fill_value(data.of(INPUT)[0])
    assert classified("introduced", data).clazz == "range_overflow"


def test_bf16_has_room():
    """What overflows fp16 does not overflow bf16."""
    product = record(
        "Torch.mul.0.forward", t(300.0, dtype="bfloat16"), t(300.0, dtype="bfloat16"), out=t(NAN, dtype="bfloat16")
    )
    found = classified("introduced", product)
    assert (found.clazz, found.bound and found.bound.value) == ("kernel_fault", 90000.0)


def test_kinds_of_the_cases_are_dirty():
    """The table tests what it says: every record has a non-finite output."""
    assert all(c.record.kinds("output") & (Kinds.NAN | Kinds.POS_INF | Kinds.NEG_INF) for c in CASES.values())
    assert {c.want for c in CASES.values()} >= {"domain_error", "empty_batch", "fully_masked_row", "zero_times_inf"}
