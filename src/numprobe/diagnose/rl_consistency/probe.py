"""Which activation turns what the gate gave into what the next linear got, on each side by itself.

From tensors this is measured: the product f(gate) up is computed for every known f and compared. From figures it is a guess that
can only be consistent: of normally distributed numbers with the mean and the norm of the gate, f has a known norm, and the ratio
of both sides' norms tells which two activations it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from numprobe.align.roles.side import RoleSide
from numprobe.diagnose.rl_consistency import result as data
from numprobe.diagnose.rl_consistency.layouts import tensors_of
from numprobe.diagnose.rl_consistency.view import View, role_of
from numprobe.formats.msprobe.values import GIVEN
from numprobe.formats.tensors import TensorFile
from numprobe.record.dtypes import float_format
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, OUTPUT

Floats: TypeAlias = NDArray[np.float64]
SAMPLE = 1 << 18  # products that are computed
ROUNDINGS, LEAST = (
    8.0,
    1e-5,
)  # an activation fits up to so many units of u of the dtype; fast kernels are no better than 1e-6
NEAR = 2.0  # times the best: as good as it
SAME_NORM = 0.02  # relative, of figures
MOST_GUESSES = 3
EXCHANGED = "exchanged"  # gate and up are

_erf: Callable[[Floats], Floats] = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


# definitions as in torch.nn.functional; quick_gelu and relu2 as in transformers' table of activations
ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "none": lambda x: x,
}


def activation(view: View, pair: int, recorded: Sequence[set[str]]) -> data.Probe | None:
    """What fits on both sides, at the record behind the activation. ``recorded``: names that the dumps give, by side.

    None where the gate is recorded on one side only, or nothing can be told.
    """
    sides = (view.train, view.rollout)
    one, other = (_rows(side, view.name(pair)) for side in sides)
    if one is None or other is None:
        return None
    errors = [_errors(side, *rows) for side, rows in zip(sides, (one, other), strict=True)]
    if errors[0] and errors[1]:
        units = [_unit(side, rows[1]) for side, rows in zip(sides, (one, other), strict=True)]
        fits = [_fitting(of, unit) for of, unit in zip(errors, units, strict=True)]
        return data.Probe(True, fits[0], fits[1], errors[0], errors[1])
    guesses = _guessed(view, (one, other), recorded)
    return data.Probe(False, *guesses) if guesses else None


def _rows(side: RoleSide, name: str) -> tuple[int, int] | None:
    """Rows of what the gate gave, and of what came out of the product."""
    op = parse_name(name)
    gate = op.path.removesuffix(role_of(name)) + "gate_up"
    found = {}
    for record, other in enumerate(side.calls.ops):
        if other.path in (gate, op.path) and other.call == op.call:
            for row in side.calls.values.rows(record):
                found[other.path, side.calls.values.slots[side.calls.values.slot[row]][0]] = row
    before = found.get((gate, OUTPUT))
    behind = found.get((op.path, OUTPUT if role_of(name) == "act" else INPUT))
    return (before, behind) if before is not None and behind is not None else None


def _unit(side: RoleSide, row: int) -> float:
    kind = float_format(side.calls.values.kinds[side.calls.values.kind[row]][2])
    return 2.0**-kind.p if kind else 0.0


# --- from tensors ----------------------------------------------------------------------------------------------------


def _errors(side: RoleSide, before: int, behind: int) -> dict[str, float]:
    """Relative L2 error of f(gate) up by the name of f, over some of the tokens; empty without tensors."""
    tensors = tensors_of(side)
    files = side.calls.values.files
    if tensors is None or before not in files or behind not in files:
        return {}
    try:
        x, y = tensors.open(str(before)), tensors.open(str(behind))
        if x.shape[0] != y.shape[0] or x.shape[1] not in (y.shape[1], 2 * y.shape[1]):
            return {}
        given, wanted = _sample(x, y)
    except NumprobeError:
        return {}
    size = float(np.linalg.norm(wanted))
    if not math.isfinite(size) or not size or not np.isfinite(given).all():
        return {}
    with np.errstate(all="ignore"):
        return {name: float(np.linalg.norm(made - wanted)) / size for name, made in _made(given, wanted.shape[1])}


def _sample(x: TensorFile, y: TensorFile) -> tuple[Floats, Floats]:
    """Tokens all over both tensors."""
    tokens = x.shape[0]
    step = max(tokens * y.shape[1] // SAMPLE, 1)
    chosen = range(0, tokens, step)
    with x.reader() as one, y.reader() as other:
        parts = [(one.read(n * x.shape[1], x.shape[1]), other.read(n * y.shape[1], y.shape[1])) for n in chosen]
    return np.stack([a for a, _ in parts]).astype(np.float64), np.stack([b for _, b in parts]).astype(np.float64)


def _made(given: Floats, width: int) -> Iterator[tuple[str, Floats]]:
    if given.shape[1] == width:
        yield from ((name, f(given)) for name, f in ACTIVATIONS.items())
        return
    gate, up = given[:, :width], given[:, width:]
    for name, f in ACTIVATIONS.items():
        yield name, f(gate) * up
        if name != "none":
            yield f"{name} {EXCHANGED}", f(up) * gate


def _fitting(errors: dict[str, float], unit: float) -> list[str]:
    """Names whose error is rounding, the best first."""
    best = min(errors.values())
    most = max(ROUNDINGS * unit, LEAST)
    return sorted((n for n, e in errors.items() if e <= min(most, max(NEAR * best, unit))), key=lambda n: errors[n])


# --- from figures ----------------------------------------------------------------------------------------------------


def _guessed(
    view: View, rows: tuple[tuple[int, int], tuple[int, int]], recorded: Sequence[set[str]]
) -> tuple[list[str], list[str]] | None:
    """Activations of both sides under which their norms have the ratio that they have."""
    norms = [_norm(side, row[1]) for side, row in zip((view.train, view.rollout), rows, strict=True)]
    gates = [_gate(side, row[0]) for side, row in zip((view.train, view.rollout), rows, strict=True)]
    known = [gate for gate in gates if gate is not None and gate[2]] or [gate for gate in gates if gate is not None]
    if not all(norms) or not known:
        return None
    mean, rms, _ = known[0]
    expected = {name: _expected(f, mean, rms) for name, f in ACTIVATIONS.items()}
    ratio = math.log(norms[0] / norms[1])
    fits = [
        (a, b)
        for a in _allowed(recorded[0])
        for b in _allowed(recorded[1])
        if a != b and abs(math.log(expected[a] / expected[b]) - ratio) <= SAME_NORM
    ]
    one, other = sorted({a for a, _ in fits}), sorted({b for _, b in fits})
    if not fits or min(len(one), len(other)) > 1 or max(len(one), len(other)) > MOST_GUESSES:
        return None
    return one, other


def _allowed(recorded: set[str]) -> list[str]:
    """Activations that the names of a side allow."""
    return [name for name in ACTIVATIONS if name.split("_")[0] in recorded] if recorded else list(ACTIVATIONS)


def _norm(side: RoleSide, row: int) -> float:
    value = float(side.calls.values.figures[row, 3])
    return value if math.isfinite(value) and value > 0 else 0.0


def _gate(side: RoleSide, row: int) -> tuple[float, float, bool] | None:
    """Mean and rms of the gate, or of gate and up together; whether it is the gate alone."""
    source, values, raw = side.sources[row], side.calls.values, side.original.values
    alone = source.parts == 2 and len(source.rows) == 2
    table, at = (raw, source.rows[0]) if alone else (values, row)
    mean, norm = table.figures[at, 2:].tolist()
    if not (table.status[at, 2:] == GIVEN).all() or not math.isfinite(norm) or not table.numel[at] > 0:
        return None
    return mean, norm / math.sqrt(table.numel[at]), alone


def _expected(f: Callable[[Floats], Floats], mean: float, rms: float) -> float:
    """The root of the mean of f(x)^2 over the normal distribution of this mean and rms."""
    spread = math.sqrt(max(rms * rms - mean * mean, 1e-12))
    z = np.linspace(-8, 8, 2001)
    weight = np.exp(-z * z / 2)
    return float(np.sqrt((f(mean + spread * z) ** 2 * weight).sum() / weight.sum())) or 1e-30
