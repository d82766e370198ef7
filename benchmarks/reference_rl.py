"""The rules of the reference scripts for training against rollout, with a perfect mapping, to score them on the same dumps.

Written from the published behaviour (specification RLC-5 to RLC-20), not from their code: of every pair of modules output 0,
input 0 and the weight are compared by Max, Min, Mean and Norm, more than 1e-4 apart is a mismatch; what follows is a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
WARN = 1e-4
ALIGNED, MISMATCH, MISSING = "aligned", "mismatch", "missing"
FUSED = (("linear_q_down_proj", "fused_qkv_a_proj"), ("linear_kv_down_proj", "fused_qkv_a_proj"))
ACTIVATION = ("act_fn", "silu", "swiglu", "gelu", "mul", "activation")
CLASSES = {
    "parameter_sync_mismatch": "parameter_difference",
    "module_impl_mismatch": "implementation_difference",
    "upstream_propagation_or_amplification": "upstream_propagation",
    "systemic_misalignment": "upstream_propagation",
}


@dataclass(frozen=True)
class Suspect:
    train: str
    rollout: str
    rank: int
    clazz: str


def suspects(train: Mapping[str, Record], rollout: Mapping[str, Record], pairs: Mapping[str, str]) -> list[Suspect]:
    """First the operators that only one side has, then by priority, then as training ran."""
    names = [name for name in train if name in pairs and pairs[name] in rollout]
    states = {name: _outputs(train[name], rollout[pairs[name]]) for name in names}
    found = []
    for name in names:
        bucket, rank = _bucket(train[name], rollout[pairs[name]])
        if rank > 2 or any(a in name and b in pairs[name] for a, b in FUSED):
            continue
        extra = _extra(name, train, rollout, pairs, states)
        found.append(Suspect(name, pairs[name], 0 if extra else rank, "missing_operator" if extra else CLASSES[bucket]))
    return sorted(found, key=lambda s: s.rank)


def _outputs(one: Record, other: Record) -> str:
    return _state(_first(one.get("output")), _first(other.get("output")))


def _first(slots: Any) -> Any:
    return slots[0] if isinstance(slots, list) and slots else None


def _state(one: Any, other: Any) -> str:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return MISSING
    worst = 0.0
    for figure in ("Max", "Min", "Mean", "Norm"):
        a, b = one.get(figure), other.get(figure)
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            worst = max(worst, abs(a - b) / max(abs(b), 1e-12))
    return MISMATCH if worst > WARN else ALIGNED


def _bucket(one: Record, other: Record) -> tuple[str, int]:
    output = _outputs(one, other)
    weight = _state((one.get("parameters") or {}).get("weight"), (other.get("parameters") or {}).get("weight"))
    inputs = [_state(_first(one.get("input_args")), _first(other.get("input_args")))]
    shared = set(one.get("input_kwargs", {})) & set(other.get("input_kwargs", {}))
    inputs += [_state(one["input_kwargs"][k], other["input_kwargs"][k]) for k in shared]
    known = [state for state in inputs if state != MISSING]
    entering = MISMATCH if MISMATCH in known else ALIGNED if known else MISSING
    if output != MISMATCH:
        return "aligned", 5 if output == ALIGNED else 3
    if entering == ALIGNED:
        return ("module_impl_mismatch", 1) if weight == ALIGNED else ("parameter_sync_mismatch", 1)
    return ("upstream_propagation_or_amplification" if weight == ALIGNED else "systemic_misalignment", 2)


def _place(name: str) -> tuple[str, str]:
    """Layer and block."""
    layer = re.search(r"\.layers\.(\d+)\.", name)
    blocks = ((".mlp.", "mlp"), ("self_att", "attn"), ("attention", "attn"), ("norm", "norm"), ("embed", "embed"))
    return layer[1] if layer else "-", next((block for part, block in blocks if part in name), "other")


def _extra(
    suspect: str,
    train: Mapping[str, Record],
    rollout: Mapping[str, Record],
    pairs: Mapping[str, str],
    states: Mapping[str, str],
) -> bool:
    """Is there an activation without a partner between the suspect and the last place before it, in its block, that agrees?"""
    before = list(states)[: list(states).index(suspect)]
    anchor = next((n for n in reversed(before) if _place(n) == _place(suspect) and states[n] == ALIGNED), None)
    if anchor is None:
        return False
    partners = set(pairs.values())
    between = [
        *_between(list(rollout), pairs[anchor], pairs[suspect], partners),
        *_between(list(train), anchor, suspect, set(pairs)),
    ]
    return any(word in name.lower() for name in between for word in ACTIVATION)


def _between(names: Sequence[str], first: str, last: str, paired: set[str]) -> list[str]:
    begin, end = names.index(first) + 1, names.index(last)
    return [name for name in names[begin:end] if name not in paired]
