"""What lies between anchor and suspect is told with the side that recorded it: modules, and operators of the same name too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.page.screen import render_json_line, render_terminal
from numprobe.report.terminal import Style
from numprobe.synth.rl import simulate

from .recorded import compared


def names(folder: Path) -> set[str]:
    return {name for path in folder.rglob("dump.json") for name in json.loads(path.read_text())["data"]}


@pytest.mark.parametrize(
    "scenario", ["activation_mix", "activation", "activation_fsdp", "rotary_style", "attention_scale"]
)
def test_every_name_is_of_the_side_that_it_is_told_with(tmp_path: Path, scenario: str) -> None:
    told = 0
    for seed in range(6):
        folder = tmp_path / str(seed)
        simulate(scenario, folder, seed=seed, tensors=False)
        result = compared(folder / "train", folder / "rollout")
        recorded = {side: names(folder / side) for side in ("train", "rollout")}
        for f in result.findings:
            assert len(f.segment) == len(f.segment_sides)
            assert all(name in recorded[side] for side, name in zip(f.segment_sides, f.segment, strict=True))
            shown = view.between(f)
            assert sorted((*shown.train, *shown.rollout)) == sorted(f.segment)
            told += len(f.segment)
    assert told


def test_kernels_of_both_sides_are_told_apart(tmp_path: Path) -> None:
    simulate("activation_mix", tmp_path, seed=3)
    result = compared(tmp_path / "train", tmp_path / "rollout")
    (found,) = result.findings
    kernels = {(s, n) for s, n in zip(found.segment_sides, found.segment, strict=True) if not n.startswith("Module.")}
    assert {side for side, _ in kernels} == {"train", "rollout"}
    (line,) = json.loads(render_json_line(result, ""))["findings"]
    assert line["segment_sides"] == found.segment_sides
    lines = render_terminal(result, "en", Style(), "r").replace("\u2060", "").splitlines()
    for side, name in kernels:
        label = {"train": "training", "rollout": "rollout"}[side]
        assert any(label in text and name in text for text in lines)
