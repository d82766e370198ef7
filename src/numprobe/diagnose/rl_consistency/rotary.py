"""Which elements of a head a rotary embedding turns together, told from the tensors before and behind it.

A rotation leaves the length of every pair as it was. Where the pairs are the two halves of a head, x[i] and x[i + d/2] keep
theirs; where they are neighbours, x[2 i] and x[2 i + 1] do. Neither positions nor base have to be known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.rules import STACKED
from numprobe.align.roles.side import RoleSide
from numprobe.align.roles.strips import segments
from numprobe.diagnose.rl_consistency.layouts import tensors_of
from numprobe.diagnose.rl_consistency.view import View, role_of
from numprobe.formats.tensors import TensorFile
from numprobe.record.dtypes import float_format
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.record.trace import OUTPUT

STYLE, ANGLE = "rotary", "rotary_angle"
TURNED = (STYLE, ANGLE)
ROUNDINGS, LEAST = 16.0, 1e-5  # of pair lengths, in units of u of the dtype
SAMPLE = 1 << 20  # elements
_Q, _K = "input_args.0", "input_args.1"


def rotary(view: View, pair: int, row: int) -> str:
    """``rotary`` where the two sides turn other pairs, ``rotary_angle`` where they turn the same by other angles; empty where the
    tensors do not tell, or q or k is changed otherwise."""
    slot = view.slot(row)
    if slot not in (_Q, _K) or not view.measures.from_tensors[row]:
        return ""
    rows = int(view.leaves.target[row]), int(view.leaves.golden[row])
    styles = [_style(side, view.name(pair), slot, n) for side, n in zip((view.train, view.rollout), rows, strict=True)]
    if "" in styles:
        return ""
    return STYLE if styles[0] != styles[1] else ANGLE


def _style(side: RoleSide, name: str, slot: str, row: int) -> str:
    """``halves`` or ``neighbours``, whichever keeps its lengths; empty: neither, or both."""
    tensors = tensors_of(side)
    if tensors is None or not tensors.heads.known:
        return ""
    d = tensors.heads.size
    values = side.calls.values
    kind = float_format(values.kinds[values.kind[row]][2])
    most = max(ROUNDINGS * 2.0**-kind.p, LEAST) if kind else 0.0
    try:
        before = _before(side, name, slot)
        behind = _start(tensors.open(str(row)))
    except NumprobeError:
        return ""
    if before is None or before.shape != behind.shape or behind.shape[1] % d:
        return ""
    kept = [style for style in ("halves", "neighbours") if _changed(before, behind, d, style) <= most]
    return kept[0] if len(kept) == 1 else ""


def _before(side: RoleSide, name: str, slot: str) -> NDArray[np.float64] | None:
    """q or k as the projection gave it, or the norm behind it."""
    tensors, values, op = tensors_of(side), side.calls.values, parse_name(name)
    inside = op.path.removesuffix(role_of(name))
    found: dict[str, int] = {}
    for record, other in enumerate(side.calls.ops):
        if other.path.startswith(inside) and other.call == op.call:
            for row in values.rows(record):
                if values.slots[values.slot[row]] == (OUTPUT, "output.0") and row in values.files:
                    found[other.path.removeprefix(inside)] = row
    normed = "q_norm" if slot == _Q else "k_norm"
    if tensors is None or not {normed, "qkv"} & found.keys():
        return None
    if normed in found:
        return _start(tensors.open(str(found[normed])))
    whole = _start(tensors.open(str(found["qkv"])))
    [(begin, length)] = segments(STACKED, whole.shape[1], tensors.heads)[0 if slot == _Q else 1]
    return whole[:, begin : begin + length]


def _start(tensor: TensorFile) -> NDArray[np.float64]:
    """The first tokens."""
    tokens = min(tensor.shape[0], max(SAMPLE // tensor.shape[1], 2))
    with tensor.reader() as reader:
        return reader.read(0, tokens * tensor.shape[1]).astype(np.float64).reshape(tokens, tensor.shape[1])


def _changed(before: NDArray[np.float64], behind: NDArray[np.float64], d: int, style: str) -> float:
    """The relative error of the lengths of pairs."""
    one, other = (_lengths(x, d, style) for x in (before, behind))
    size = float(np.linalg.norm(one))
    return float(np.linalg.norm(one - other)) / size if size else 0.0


def _lengths(x: NDArray[np.float64], d: int, style: str) -> NDArray[np.float64]:
    pairs = x.reshape(len(x), -1, 2, d // 2) if style == "halves" else x.reshape(len(x), -1, d // 2, 2).swapaxes(2, 3)
    return np.asarray(np.hypot(pairs[:, :, 0], pairs[:, :, 1]))
