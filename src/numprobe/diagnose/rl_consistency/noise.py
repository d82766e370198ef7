"""What experts may differ by, beyond the arithmetic of their inputs: few tokens each, and near-ties of the routing."""

from __future__ import annotations

import math

from numprobe.align.leaves import LeafPairs
from numprobe.align.records import RecordPairs
from numprobe.align.roles.form import EXPERTS
from numprobe.align.roles.side import RoleSide
from numprobe.compare.expected import Allowed
from numprobe.compare.measure import Measures
from numprobe.record.names import parse_name
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER

MOST_GAIN = 100.0
TIES = (
    8.0  # share of the tokens whose choice an error of the logits changes, an error: 2 sides over a spacing of rms / 4
)
ANOTHER = 0.3  # relative change of a token's output that one other expert makes: the least likely of the chosen
MOST_ROUNDINGS, MOST_NOISE = 16.0, 1e-4  # errors above both are no noise
DILUTED = 0.5  # of that, what is left in the sum with the residual, from there on


def noise_of_experts(train: RoleSide, records: RecordPairs, leaves: LeafPairs, m: Measures) -> Allowed:
    """Relative errors by leaf row.

    The product act(g) u in front of an expert's second linear is as wrong as rms(g) rms(u) / rms(act(g) u) times its inputs: much
    more, where an expert has few tokens and the gate is closed for them. A token of which two experts are about equally likely
    may go to the other one: with an error e of the logits, TIES e of the tokens do. They are other tokens from there on.
    """
    noise: dict[int, float] = {}
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
                after = max(after, DILUTED * noise[row])
    return Allowed(noise=noise)


def _error(m: Measures, row: int) -> float:
    """The error of a row, as far as it is noise: behind a fault it is not."""
    most = max(MOST_ROUNDINGS * m.rounding[row], MOST_NOISE)
    return float(max(min(m.error[row], most) if m.error[row] == m.error[row] else 0.0, m.rounding[row]))
