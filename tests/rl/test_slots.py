"""slots.csv: the figures of every place, as they stand in the dumps."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from numprobe.diagnose.rl_consistency.command import run_to_folder
from numprobe.synth.rl import simulate


def test_every_place_has_the_figures_of_both_dumps(tmp_path: Path) -> None:
    simulate("activation", tmp_path / "pair", seed=3, layers=3)
    sides = {side: tmp_path / "pair" / side / "step0" for side in ("train", "rollout")}
    result, run = run_to_folder(sides["train"], sides["rollout"], out=tmp_path / "out")
    data = {s: json.loads((f / "rank0" / "dump.json").read_text(encoding="utf-8"))["data"] for s, f in sides.items()}
    with (run.path / "slots.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["place"] for row in rows} == {pair.place for pair in result.mapping}
    checked = 0
    for pair in result.mapping:
        for row in (r for r in rows if r["place"] == pair.place and r["slot"] == "parameters.weight"):
            for side, names in (("train", pair.train), ("rollout", pair.rollout)):
                stored = data[side][names[0]].get("parameters", {}).get("weight") if len(names) == 1 else None
                if stored and row[f"{side}_norm"]:
                    checked += 1
                    for key in ("Max", "Min", "Norm"):
                        assert float(row[f"{side}_{key.lower()}"]) == pytest.approx(stored[key], rel=1e-12)
    assert checked > 20
    finding = result.findings[0]
    place = next(p.place for p in result.mapping if finding.suspect.train in p.train)
    row = next(r for r in rows if r["place"] == place and r["slot"] == finding.slot)
    figures = next(x for x in finding.figures if x.slot == finding.slot)
    assert float(row["error"]) == figures.error
    assert float(row["expected"]) == figures.expected
    assert row["verdict"] == figures.verdict
    worst = next(p for p in result.mapping if p.place == place)
    assert max(float(r["ratio"]) for r in rows if r["place"] == place and r["ratio"]) == worst.ratio
