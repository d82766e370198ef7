"""What is expected of weights, which are copies, and of experts: few tokens each, and near-ties of the routing."""

from __future__ import annotations

import math

import numpy as np

from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.align.roles.form import EXPERTS
from numprobe.align.roles.side import RoleSide
from numprobe.compare.expected import Allowed
from numprobe.compare.measure import Measures
from numprobe.formats.msprobe.values import ValueTable
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

MOST_GAIN = 100.0
TIES = (
    8.0  # share of the tokens whose choice an error of the logits changes, an error: 2 sides over a spacing of rms / 4
)
ANOTHER = 0.3  # relative change of a token's output that one other expert makes: the least likely of the chosen
MOST_ROUNDINGS, MOST_NOISE = 16.0, 1e-4  # errors above both are no noise
DILUTED = 0.5  # of that, what is left in the sum with the residual, from there on


COPIED = 2.0**-16  # relative: how far the figures of one tensor are apart, computed on two devices
MOST_COPIED = 0.75  # of the weights that both sides have in one dtype


def expect_copies(m: Measures, leaves: LeafPairs, train: ValueTable, rollout: ValueTable) -> None:
    """Where most weights of one dtype are copies to their last digit, all are expected to be: none has its dtype's rounding to
    spare."""
    roles = np.array([role == PARAMETER for role, _ in train.slots], bool)
    rows = np.flatnonzero(leaves.both & m.is_float)
    rows = rows[roles[train.slot[leaves.target[rows]]]]
    short = [np.array([name for _, _, name in side.kinds]) for side in (train, rollout)]
    one = short[0][train.kind[leaves.target[rows]]]
    rows = rows[one == short[1][rollout.kind[leaves.golden[rows]]]]
    copied = (m.d_norm[rows] <= COPIED + m.stat[rows]) & (m.d_extreme[rows] <= COPIED)
    if len(rows) and copied.mean() >= MOST_COPIED:
        m.bound[rows] = COPIED


def noise_of_experts(train: RoleSide, records: RecordPairs, leaves: LeafPairs, m: Measures) -> Allowed:
    """Relative errors by leaf row.

    The product act(g) u in front of an expert's second linear is as wrong as rms(g) rms(u) / rms(act(g) u) times its inputs: much
    more, where an expert has few tokens and the gate is closed for them. A token of which two experts are about equally likely
    may go to the other one: with an error e of the logits, TIES e of the tokens do. They are other tokens from there on, so that
    only what all tokens have in common tells.
    """
    noise: dict[int, float] = {}
    elsewhere: set[int] = set()
    after = 0.0
    names = train.calls.values.names
    row_of = {
        (names[records.target[pair]], *train.calls.values.slots[train.calls.values.slot[t]]): row
        for row, (pair, t, g) in enumerate(zip(leaves.pair, leaves.target, leaves.golden, strict=True))
        if t >= 0 and g >= 0
    }
    for (name, role, path), row in row_of.items():
        op = parse_name(name)
        if after and role != PARAMETER:
            noise[row] = after
            elsewhere.add(row)
        if role == INPUT and op.path.endswith(".down") and EXPERTS in op.path.split("."):
            before = row_of.get((name.replace(".down.", ".gate_up."), OUTPUT, "output.0"))
            if before is not None and m.rms[row] > 0:
                gain = min(max(m.rms[before] ** 2 / m.rms[row], 1.0), MOST_GAIN)
                noise[row] = math.hypot(gain * _error(m, before), after)
        elif role == OUTPUT and path == "output.0" and op.path.endswith(".moe"):
            router = name.replace(".moe.MixtureOfExperts.", ".router.Linear.")
            given = row_of.get((router, OUTPUT, "output.0"), row_of.get((router, INPUT, "input_args.0")))
            if given is not None:
                noise[row] = ANOTHER * math.sqrt(min(TIES * _error(m, given), 1.0))
                elsewhere.add(row)
                after = max(after, DILUTED * noise[row])
    return Allowed(noise=noise, elsewhere=frozenset(elsewhere))


def _error(m: Measures, row: int) -> float:
    """The error of a row, as far as it is noise: behind a fault it is not."""
    most = max(MOST_ROUNDINGS * m.rounding[row], MOST_NOISE)
    return float(max(min(m.error[row], most) if m.error[row] == m.error[row] else 0.0, m.rounding[row]))
