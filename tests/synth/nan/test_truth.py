"""The truth of each scenario against the files, by reasoning that is as naive as can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numprobe.record.errors import NumprobeError
from numprobe.synth.nan import HELD_OUT, SCENARIOS, UNIT, Truth, simulate

from . import dumps

PLAIN = {"level": "mix", "risk": "ALL", "partial": (), "missing": (), "quoted": (), "old_style": ()}
UNWRITTEN = ("Torch.empty", "Tensor.new_empty", "Tensor.clone", "Tensor.detach", "Tensor.to.")


def first_nan(records: dict[str, dumps.Record]) -> str | None:
    """The first record that shows NaN and neither allocates nor copies unwritten memory; receive buffers do not count."""
    for name, record in records.items():
        if name.startswith(UNWRITTEN):
            continue
        if name.startswith("Distributed.batch_isend_irecv"):
            shown = [op["tensor"] for op in record["output"][0]]
        else:
            shown = list(record.values())
        if dumps.holds_nan(shown):
            return name
    return None


ONE_PLACE = [
    "grouped_matmul_nan",
    "replicated_source",
    "domain_error",
    "two_sources",
    "tied_weights",
    "fully_masked_row",
]


@pytest.mark.parametrize("scenario", [*ONE_PLACE, "held_out_last_loss", "zero_times_inf", "recompute_differs"])
@pytest.mark.parametrize("seed", [1, 2])
def test_first_dirty_records_are_the_first_with_nan(scenario: str, seed: int, tmp_path: Path) -> None:
    truth = simulate(scenario, tmp_path, seed=seed, **PLAIN)
    data = dumps.ranks(tmp_path / "step0")
    found = {rank: first_nan(records) for rank, records in data.items()}
    if truth.settings["spread"] != "div":  # a reciprocal of zero is infinite first
        assert {r: n for r, n in found.items() if n} == {r: d["op"] for r, d in truth.first_dirty.items()}
    # who did not receive it made it: everybody else's first NaN comes out of a communication
    made = {r for r, n in found.items() if n and not n.startswith("Distributed.")}
    assert made == set(truth.source_ranks)
    assert {found[r] for r in made} <= set(truth.first_ops) or truth.settings["spread"] == "div"
    assert {r for r, role in truth.roles.items() if role == "clean"} == {r for r, n in found.items() if n is None}


@pytest.mark.parametrize("scenario", ["clean", "clean_masks_only", "saturated_mask", "loss_scale"])
@pytest.mark.parametrize("seed", [0, 1])
def test_controls_end_without_finding(scenario: str, seed: int, tmp_path: Path) -> None:
    truth = simulate(scenario, tmp_path, seed=seed, quoted=(), old_style=(), level="mix")
    assert (truth.verdict, truth.exit_code, truth.cls, truth.source_ranks, truth.first_op) == (
        "no_overflow",
        0,
        None,
        (),
        None,
    )
    data = dumps.ranks(tmp_path / "step0")
    if scenario != "loss_scale":
        assert {first_nan(records) for records in data.values()} == {None}
        assert set(truth.roles.values()) == {"clean"}
    text = "".join((tmp_path / "step0" / f"rank{r}" / "dump.json").read_text() for r in data)
    assert ('"Min": -Infinity' in text) == (scenario != "saturated_mask")
    assert ('"Mean": -Infinity' in text) == (scenario != "clean_masks_only" or truth.settings["masks"] == "inf")


def test_relays_and_victims_follow_from_the_arrivals(tmp_path: Path) -> None:
    truth = simulate("grouped_matmul_nan", tmp_path, seed=2, **PLAIN)
    arrivals = {r: d["instance"] for r, d in truth.first_dirty.items()}
    assert [r for r, i in arrivals.items() if i is None] == list(truth.source_ranks)
    for rank, instance in arrivals.items():
        if instance and instance.startswith("send@"):
            sender, receiver = instance.removeprefix("send@").split("#")[0].split("->")
            assert int(receiver) == rank
            assert truth.roles[int(sender)] in ("source", "relay")
    assert set(truth.roles.values()) <= {"source", "relay", "victim"}
    assert len(truth.roles) == UNIT.world


@pytest.mark.parametrize(
    "scenario", sorted(set(SCENARIOS) - {"clean", "clean_masks_only", "saturated_mask", "loss_scale"})
)
def test_truth_names_records_that_exist(scenario: str, tmp_path: Path) -> None:
    truth = simulate(scenario, tmp_path, seed=11)
    assert json.loads((tmp_path / "truth.json").read_text())["class"] == truth.cls == truth.classes[0]
    undecidable = scenario in ("source_missing", "all_dirty_from_start")
    assert truth.verdict == ("inconclusive" if undecidable else "overflow_found")
    assert truth.source_ranks
    check_names(truth, tmp_path)


def check_names(truth: Truth, out: Path) -> None:
    known: dict[str, int] = {}
    for rank in truth.source_ranks:
        if rank in truth.missing:
            continue
        folder = "proc123" if len(truth.roles) == 1 else f"rank{rank}"
        names = list(json.loads((out / f"step{truth.step}" / folder / "dump.json").read_text())["data"])
        known |= {name: i for i, name in enumerate(names)}
        shown = truth.first_dirty[rank]["op"]
        assert shown in names
        if truth.gap_after and shown == truth.first_op:
            assert names.index(truth.gap_after) == names.index(str(shown)) - 1
    if not set(truth.source_ranks) <= set(truth.missing):
        assert truth.first_op in known
        assert set(truth.first_ops) <= set(known)


def test_gap_has_a_dirty_first_record_and_a_clean_one_before(tmp_path: Path) -> None:
    truth = simulate("gap", tmp_path, seed=5, **{k: v for k, v in PLAIN.items() if k != "level"})
    (rank,) = truth.source_ranks
    data = dumps.ranks(tmp_path / "step0")[rank]
    assert truth.first_op
    assert truth.gap_after
    assert dumps.holds_nan(data[truth.first_op]["input_args"])
    assert not dumps.holds_nan(list(data[truth.gap_after].values()))


def test_missing_source_leaves_no_folder(tmp_path: Path) -> None:
    truth = simulate("source_missing", tmp_path, seed=1)
    (rank,) = truth.source_ranks
    assert truth.missing == truth.suspects == (rank,)
    assert not (tmp_path / "step0" / f"rank{rank}").exists()
    assert (truth.verdict, truth.exit_code, truth.cls, truth.first_op) == (
        "inconclusive",
        3,
        "source_outside_view",
        None,
    )


def test_partial_rank_ends_inside_a_record(tmp_path: Path) -> None:
    truth = simulate("grouped_matmul_nan", tmp_path, seed=3, partial=(9,), missing=())
    text = (tmp_path / "step0" / "rank9" / "dump.json").read_text()
    assert truth.partial == (9,)
    assert text.rfind('"Max": ') == len(text) - len('"Max": ') - 2
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_two_steps(tmp_path: Path) -> None:
    truth = simulate("two_steps", tmp_path, seed=1, **PLAIN)
    assert truth.step == 1
    assert {first_nan(r) for r in dumps.ranks(tmp_path / "step0").values()} == {None}
    assert first_nan(dumps.ranks(tmp_path / "step1")[truth.source_ranks[0]]) == truth.first_op


def test_two_sources_share_no_group_of_their_layer(tmp_path: Path) -> None:
    truth = simulate("two_sources", tmp_path, seed=1, **PLAIN)
    first, second = (s.ranks[0] for s in truth.sources)
    assert set(UNIT.group("tp", first)).isdisjoint(UNIT.group("tp", second))
    assert set(UNIT.group("ep", first)).isdisjoint(UNIT.group("ep", second))


def test_fp16_overflows_where_the_bound_allows_it(tmp_path: Path) -> None:
    truth = simulate("fp16_overflow", tmp_path, seed=1, **PLAIN)
    record = dumps.ranks(tmp_path / "step0")[truth.source_ranks[0]][str(truth.first_op)]
    x, w = record["input_args"][0], record["input_args"][1]
    assert 2e4 < max(abs(x["Max"]), abs(x["Min"])) <= 65504
    assert x["shape"][-1] * max(abs(x["Max"]), abs(x["Min"])) * max(abs(w["Max"]), abs(w["Min"])) > 65504
    assert record["output"][0]["Max"] == float("inf")


def test_grouped_matmul_cannot_reach_its_output(tmp_path: Path) -> None:
    truth = simulate("grouped_matmul_nan", tmp_path, seed=1, **PLAIN)
    record = dumps.ranks(tmp_path / "step0")[truth.source_ranks[0]][str(truth.first_op)]
    x, w = record["input_args"][0][0], record["input_args"][1][0]
    assert max(abs(x["Max"]), abs(x["Min"])) <= 8
    assert max(abs(w["Max"]), abs(w["Min"])) <= 0.1
    assert dumps.holds_nan(record["output"])


def test_held_out_scenarios_are_there() -> None:
    assert len(HELD_OUT) >= 3
    assert set(SCENARIOS) > HELD_OUT


def test_unknown_scenario_and_used_folder(tmp_path: Path) -> None:
    with pytest.raises(NumprobeError, match="no scenario 'x'"):
        simulate("x", tmp_path)
    simulate("clean", tmp_path)
    with pytest.raises(NumprobeError, match="holds a dump already"):
        simulate("clean", tmp_path)
