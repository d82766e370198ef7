"""Pairs of tensors and of statistics that the released msProbe 26.2.0 was asked about; data/msprobe_*.json has its answers.

To ask again, write each pair as one record of two tensor (or statistics) dumps and run ``msprobe compare``.
"""

from __future__ import annotations

import itertools

import torch

T = torch.tensor
INF, NAN = float("inf"), float("nan")
F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]


def tensor_pairs() -> Pairs:
    """(target, golden) by name."""
    return {**_dtypes(), **_nonfinite(), **_one_element(), **_shapes(), **_magnitudes(), **_large()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def _dtypes() -> Pairs:
    g = torch.Generator().manual_seed(1)
    a = torch.randn(3, 7, generator=g, dtype=F64) * 20
    b = a + torch.randn(3, 7, generator=g, dtype=F64) * 0.02
    b[0, 0] = b[1, 1] = b[2, 2] = a[1, 1] = 0
    a[2, 2] = 3
    pairs: Pairs = {}
    for d in (F64, F32, F16, BF16, *INTS, torch.complex64, torch.complex128, E4M3, E5M2):
        x, y = (a.abs(), b.abs()) if d == torch.uint8 else (a, b)
        if d.is_complex:
            pairs[f"same_{_name(d)}"] = torch.complex(a, b).to(d), torch.complex(b, a * 2).to(d)
        elif d == torch.bool:
            pairs["same_bool"] = a > 0, b > 1
        else:
            pairs[f"same_{_name(d)}"] = x.to(d), y.to(d)
            if not d.is_floating_point:
                pairs[f"same_{_name(d)}"][1][0, 3] += 1
    for d, e in itertools.permutations((F64, F32, F16, BF16, E4M3), 2):
        pairs[f"mix_{_name(d)}_{_name(e)}"] = a.to(d), b.to(e)
    return pairs


def _nonfinite() -> Pairs:
    x = torch.arange(1.0, 13.0)
    y = x + 0.25

    def put(t: torch.Tensor, **values: float) -> torch.Tensor:
        t = t.clone()
        for place, value in values.items():
            t[int(place[1:])] = value
        return t.reshape(3, 4)

    return {
        "nan_same": (put(x, _0=NAN, _7=NAN), put(y, _0=NAN, _7=NAN)),
        "nan_other": (put(x, _0=NAN), put(y, _1=NAN)),
        "nan_one_side": (put(x, _0=NAN), put(y)),
        "inf_sign": (put(x, _0=INF, _3=-INF), put(y, _0=-INF, _3=-INF)),
        "inf_nan": (put(x, _0=INF), put(y, _0=NAN)),
        "inf_other": (put(x, _0=INF), put(y, _1=INF)),
        "mixed": (put(x, _0=INF, _1=NAN, _2=-INF), put(y, _0=INF, _1=NAN, _2=-INF)),
        "all_nan": (torch.full((4,), NAN), torch.full((4,), NAN)),
        "all_inf": (torch.full((4,), INF), torch.full((4,), INF)),
        "nan_e5m2": (T([1.0, 2, NAN]).to(E5M2), T([1.0, 3, NAN]).to(E5M2)),
        "complex_nan": (T([complex(NAN, 1), 2]), T([complex(1, 1), 2])),
        "complex_nan_imag": (T([complex(1, NAN), 2]), T([complex(1, 1), 2])),
        "complex_nan_imag_both": (T([complex(1, NAN), 2]), T([complex(1.5, NAN), 2])),
    }


def _one_element() -> Pairs:
    values = {
        "nan": (NAN, NAN),
        "nan1": (NAN, 1.0),
        "inf": (INF, INF),
        "inf2": (INF, -INF),
        "inf3": (1.0, -INF),
        "zero": (0.0, 0.0),
        "zero1": (0.5, 0.0),
        "int": (5, 4),
        "int0": (5, 0),
        "bool": (True, False),
        "bool2": (False, True),
        "complex": (1 + 2j, 1.5 - 7j),
        "complex_real": (1 + 2j, 1.5),
        "wide": (2**53 + 1, 2**53),
        "wider": (2**62 + 1, 2**62),
    }
    pairs: Pairs = {f"scalar_{name}": (T(t), T(g)) for name, (t, g) in values.items()}
    for d, e in itertools.product((F64, F32, F16, BF16, E4M3), repeat=2):
        pairs[f"scalar_{_name(d)}_{_name(e)}"] = T(0.3).to(d), T(17.1).to(e)
        pairs[f"scalar_to_zero_{_name(d)}_{_name(e)}"] = T(0.3).to(d), T(0.0).to(e)
    for d in INTS:
        low, high = (0, 1) if d == torch.bool else (torch.iinfo(d).min, torch.iinfo(d).max)
        pairs[f"scalar_down_{_name(d)}"] = T(high).to(d), T(low).to(d)
        pairs[f"scalar_up_{_name(d)}"] = T(low).to(d), T(high).to(d)
        pairs[f"scalar_{_name(d)}_float"] = T(low).to(d), T(2.5)
        pairs[f"scalar_half_{_name(d)}"] = T(2.5).to(F16), T(high).to(d)
        pairs[f"half_{_name(d)}"] = T([2.5, 3]).to(F16), T([high, 3]).to(d)
    pairs["scalar_complex_half"] = T(1 + 2j), T(1.3).to(F16)
    pairs["scalar_complex128"] = T(1 + 2j).to(torch.complex128), T(1.5 - 7j).to(torch.complex128)
    pairs["scalar_uint8_int8"] = T(200, dtype=torch.uint8), T(-100, dtype=torch.int8)
    return pairs


def _shapes() -> Pairs:
    return {
        "one_by_one": (T([[1.25]]), T([[[1.5]]])),
        "one_to_scalar": (T([[1.25]]), T(1.5)),
        "one_to_two": (T([[1.25]]), T([1.5, 2])),
        "squeezed": (torch.ones(4, 1, 5), torch.ones(4, 5) * 2),
        "turned": (torch.ones(5, 4), torch.ones(4, 5)),
        "empty_target": (torch.zeros(0, 3), torch.zeros(2, 3)),
        "empty_golden": (torch.zeros(2, 3), torch.zeros(0, 3)),
        "empty_both": (torch.zeros(0, 3), torch.zeros(3, 0)),
    }


def _magnitudes() -> Pairs:
    full = torch.full
    return {
        "tiny64": (full((4,), 1e-200, dtype=F64), full((4,), 2e-200, dtype=F64)),
        "tiny_to_one": (full((4,), 1e-17, dtype=F64), full((4,), 1.0, dtype=F64)),
        "epsilon": (full((1, 2), 1.5e-16, dtype=F64), full((2,), 1.0, dtype=F64)),
        "tiny32": (full((4,), 1e-20), full((4,), 2e-20)),
        "huge32": (full((4,), 3e38), full((4,), -3e38)),
        "huge64": (full((4,), 1e300, dtype=F64), full((4,), 1.1e300, dtype=F64)),
        "huge16": (T([60000.0, -60000]).to(F16), T([-60000.0, 60000]).to(F16)),
        "subnormal": (full((4,), 1e-44), full((4,), 3e-44)),
        "small_golden": (T([1.0, 2]), T([1e-40, 2])),
        "int64": (T([2**53 + 1, 5]), T([2**53, 5])),
        "int64_wide": (T([2**62, -(2**62)]), T([-(2**62), 2**62])),
        "uint8": (T([1, 255], dtype=torch.uint8), T([2, 0], dtype=torch.uint8)),
        "uint16": (T([1, 65535], dtype=torch.uint16), T([2, 0], dtype=torch.uint16)),
        "int8": (T([127, 1], dtype=torch.int8), T([-128, 1], dtype=torch.int8)),
        "int32": (T([2**31 - 1, 5], dtype=torch.int32), T([-(2**31), 5], dtype=torch.int32)),
        "thousandths32": (T([1.001, 1.005, 1.0009, 1.0049]), torch.ones(4)),
        "thousandths64": (T([1.001, 1.005, 1.0009, 1.0049], dtype=F64), torch.ones(4, dtype=F64)),
        "cosine": (T([1.0, 2, 3]), T([3.0, -2, 0.1])),
        "cosine_above": (T([1.0, 2, 3]), T([1.0, 2, 3.05])),
        "cosine_below": (T([1.0, 2, 3]), T([1.0, 2, 3.1])),
        "zeros": (torch.zeros(3), torch.zeros(3)),
        "zero_golden": (T([1e-3, 0]), torch.zeros(2)),
        "zero_target": (torch.zeros(2), T([1e-3, 0])),
        "complex_to_real": (T([1 + 2j, 3]), T([1.5, 3])),
    }


def _large() -> Pairs:
    """More than one block of 2**20 elements."""
    g = torch.Generator().manual_seed(5)
    big, noise = torch.randn(1100, 1000, generator=g), torch.randn(1100, 1000, generator=g)
    return {
        "large": (big + 1e-3 * noise, big),
        "large_bf16": ((big + 1e-3).to(BF16), big),
        "large_cosine": (big + 1.4e-2 * noise, big),
    }


STATISTICS = [0, 0.0, -0.0, 1, 1.0, 5, -5, 2.5, -2.5, 1e-3, 1e300, -1e300, 2**53 + 1, 2**53, 10**20, True, False]
STATISTICS += [None, NAN, INF, -INF, "npu", "cpu", "npu:0", "cuda", "hello", "1.0", "", "N/A", "nan"]
