"""What to record next: a configuration for each side, with the tensors that decide what figures leave open."""

from __future__ import annotations

from collections.abc import Mapping

from numprobe.diagnose.rl_consistency.result import Finding, RlResult

FILES = {"train": "config_train.json", "rollout": "config_rollout.json"}
OPEN = ("missing_operator", "implementation_difference")  # classes of which tensors say more


def configurations(result: RlResult) -> Mapping[str, object]:
    """By side, a ``config.json`` of the collector for the tensors from anchor to suspect and of what tells tokens and heads
    apart; empty where nothing is left open, or tensors were compared already."""
    if not result.findings or result.tensors or result.findings[0].clazz not in OPEN:
        return {}
    named = {side: _names(result, result.findings[0], side) for side in FILES}
    if not all(named.values()):
        return {}
    return {side: _configuration(side, names) for side, names in named.items()}


def _names(result: RlResult, f: Finding, side: str) -> list[str]:
    """Records without the number of their call, in the order of execution."""
    rows = [(pair.place, pair.train if side == "train" else pair.rollout) for pair in result.mapping]
    ends = [getattr(key, side) for key in (f.anchor, f.suspect) if key is not None]
    places = [n for n, (_, records) in enumerate(rows) if any(end in records for end in ends)]
    if not places:
        return []
    chosen = [records for n, (place, records) in enumerate(rows) if min(places) <= n <= max(places) or place == "embed"]
    return list(dict.fromkeys(name.rpartition(".")[0] for records in chosen for name in records))


def _configuration(side: str, names: list[str]) -> dict[str, object]:
    return {
        "task": "tensor",
        "dump_path": f"./dump_{side}_tensors",
        "rank": [],
        "step": [],
        "level": "L0",
        "tensor": {"scope": [], "list": names, "data_mode": ["forward"]},
    }
