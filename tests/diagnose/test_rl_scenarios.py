"""The RL skill on computed pairs with known truth, as ``make score`` scores it: every scenario, from figures and from tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.synth.rl import SCENARIOS

from .samples import benchmark

score_rl = benchmark("score_rl")


@pytest.mark.parametrize("seed", [300, 301])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", score_rl.MODES)
def test_every_scenario(mode: str, scenario: str, seed: int, tmp_path: Path) -> None:
    scored = score_rl.score(f"{mode}:{scenario}", seed, str(tmp_path))
    assert scored.right, f"got {scored.got}\nwant {scored.want}"
    assert scored.mapping == 1.0 or (scored.mapping is None and mode == "figures" and "decode" in scenario)
