"""The skill on dumps that msProbe wrote of real runs: gloo jobs with an injected fault, and the interop samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.record.names import parse_name

from .samples import COMPARE, GLOO, PYTORCH, all_source_ranks, analysed, filtered

CASES = sorted(p.parent.name for p in GLOO.glob("*/expected.json"))


def expected(case: str) -> dict[str, Any]:
    want: dict[str, Any] = json.loads((GLOO / case / "expected.json").read_text())
    return want


def one_of(accepted: Any) -> list[Any]:
    return accepted if isinstance(accepted, list) else [accepted]


@pytest.mark.parametrize("case", [c for c in CASES if expected(c)["verdict"] == "overflow_found"])
def test_gloo_fault(case: str):
    want = expected(case)
    result = analysed(GLOO / case)
    assert (result.verdict, result.exit_code, result.step) == ("overflow_found", want["exit_code"], want["step"])
    first = result.first
    assert first is not None
    assert first.op_name in want["first_ops"]
    assert first.gap_after in one_of(want["gap_after"])
    assert result.clazz in want["classes"]
    if want["source_ranks"] == ["proc1000"]:  # a process folder: nobody recorded its rank
        assert (first.rank_key, result.source_ranks, result.rank) == ("proc1000", [], None)
    else:
        assert all_source_ranks(result) == result.source_ranks == want["source_ranks"]
        assert result.rank == want["source_ranks"][0]


@pytest.mark.parametrize("case", [c for c in CASES if expected(c)["verdict"] == "no_overflow"])
def test_gloo_control(case: str):
    result = analysed(GLOO / case)
    assert (result.verdict, result.exit_code, result.step) == ("no_overflow", 0, None)
    assert (result.clazz, result.confidence, result.first, result.rank) == (None, None, None, None)
    assert result.source_ranks == []
    assert result.alternatives == []
    assert {row.role for row in result.ranks} == {"clean"}


def test_there_are_cases():
    assert len(CASES) >= 20


def test_loss_scaling_is_expected_and_noted():
    result = analysed(GLOO / "loss_scale")
    assert "note.loss_scaling" in [n.key for n in result.notes]


# --- sample h: four ranks, rank 2 takes the logarithm of negative numbers in its second MLP ------------------------

H = PYTORCH / "h_distributed_4rank_nan" / "dump"


def test_h_as_it_is():
    result = analysed(H)
    assert result.first is not None
    assert (result.source_ranks, result.first.op_name, result.clazz) == ([2], "Torch.log.0.forward", "domain_error")
    assert result.first.gap_after is None
    log = [(s.slot, s.max, s.min, s.state) for s in result.first.slots]
    assert log[0] == ("input_args.0", -98.77692413330078, -100.27826690673828, "finite")
    assert (log[1][0], log[1][3]) == ("output.0", "NaN")
    assert [link.name for link in result.first.chain] == [
        "Torch.log.0.forward",
        "Module.blocks.1.mlp.ShardedMLP.forward.0",
        "Module.blocks.1.Block.forward.0",
    ]
    frame = result.first.frame
    assert frame is not None
    assert (frame.file.split("/")[-1], frame.line, frame.function) == ("run_dist.py", 24, "forward")
    assert {row.rank: row.role for row in result.ranks} == {0: "victim", 1: "victim", 2: "source", 3: "victim"}


def test_h_without_communication_records(tmp_path: Path):
    result = analysed(filtered(H, tmp_path / "dump", lambda name: not name.startswith("Distributed.")))
    assert result.first is not None
    assert (result.source_ranks, result.first.op_name, result.clazz) == ([2], "Torch.log.0.forward", "domain_error")
    assert "limit.no_communication" in [p.key for p in result.limits]


def test_h_with_modules_only(tmp_path: Path):
    """The literal rule "clean input, dirty output" clears rank 2 here and blames ranks 0, 1 and 3."""
    dump = filtered(H, tmp_path / "dump", lambda name: name.startswith("Module."))
    literal = [r for r in range(4) if clean_in_dirty_out(dump / "step0" / f"rank{r}" / "dump.json")]
    assert literal == [0, 1, 3]
    result = analysed(dump)
    assert result.first is not None
    assert result.source_ranks == all_source_ranks(result) == [2]
    assert result.first.op_name == "Module.blocks.1.mlp.down_proj.Linear.forward.0"
    assert result.first.gap_after == "Module.blocks.1.mlp.up_proj.Linear.forward.0"
    assert result.clazz == "unknown"
    assert (result.confidence or 0) < 0.75


def clean_in_dirty_out(file: Path) -> bool:
    """Of the first record with NaN: is NaN in its output only?"""
    data = json.loads(file.read_text())["data"]
    for record in data.values():
        given, got = json.dumps(record.get("input_args")), json.dumps(record.get("output"))
        if "NaN" in given + got:
            return "NaN" not in given
    return False


# --- the other samples ---------------------------------------------------------------------------------------------


def test_e_names_the_first_operator_that_reads_the_bad_weight():
    result = analysed(PYTORCH / "e_statistics_mix_nan" / "dump")
    assert result.first is not None
    assert (result.first.op_name, result.clazz, result.step) == ("Functional.linear.12.forward", "bad_parameter", 0)
    assert (result.first.rank_key, result.rank, result.source_ranks) == ("proc1000", None, [])
    assert [s.slot for s in result.first.slots if s.state == "NaN" and s.role != "output"] == ["input_args.1"]


def test_two_ranks_and_a_sum():
    result = analysed(COMPARE / "overflow")
    assert result.first is not None
    assert (result.source_ranks, result.first.op_name) == ([1], "Torch.exp.0.forward")


def test_two_groups_break_on_their_own():
    """Ranks 2 and 3 break before their third all_reduce, ranks 0 and 1 before their sixth."""
    result = analysed(COMPARE / "overflow_groups")
    assert [(c.ranks, c.op_name) for c in result.sources] == [
        ([2, 3], "Torch.mul.1.forward"),
        ([0, 1], "Torch.mul.4.forward"),
    ]
    assert (result.source_ranks, result.rank) == ([2, 3], 2)
    assert result.sources[0].concurrent_with == ["Torch.mul.4.forward"]


def test_a_nested_output_counts():
    result = analysed(COMPARE / "overflow_nested")
    assert result.first is not None
    assert (result.source_ranks, result.first.op_name) == ([0], "Torch.split.0.forward")


def test_a_dump_without_figures_decides_nothing():
    result = analysed(PYTORCH / "g_structure_mix")
    assert (result.verdict, result.exit_code, result.source_ranks, result.rank) == ("inconclusive", 3, [], None)
    assert result.headline is not None
    assert (result.headline.key, result.headline.values) == ("headline.no_statistics", {"task": "structure"})


@pytest.mark.parametrize(
    "sample", ["a_statistics_mix_2steps", "c_statistics_L1_md5", "d_statistics_L0", "f_tensor_mix_bf16"]
)
def test_a_clean_run(sample: str):
    result = analysed(PYTORCH / sample)
    assert (result.verdict, result.exit_code, result.first, result.step) == ("no_overflow", 0, None, None)


def test_the_first_dirty_step_is_taken():
    result = analysed(GLOO / "single")
    assert [(s.step, s.state) for s in result.steps] == [(0, "clean"), (1, "dirty")]
    result = analysed(PYTORCH / "e_statistics_mix_nan" / "dump")
    assert [(s.step, s.state) for s in result.steps] == [(0, "dirty"), (1, "not_scanned")]


def test_one_rank_of_a_job_alone():
    """A rank folder by itself: rank 2 still shows its own fault."""
    alone = analysed(H / "step0" / "rank2")
    assert alone.first is not None
    assert (alone.source_ranks, alone.first.op_name) == ([2], "Torch.log.0.forward")


def test_a_receiver_alone_is_not_blamed():
    """Only rank 0: dirt comes out of an all_reduce whose other members are not in view."""
    alone = analysed(H, ranks=frozenset({0}))
    check_outside(alone, [1, 2, 3])


def check_outside(result: NanResult, suspects: list[int]) -> None:
    assert (result.verdict, result.exit_code, result.clazz) == ("inconclusive", 3, "source_outside_view")
    assert result.source_ranks == []
    assert result.alternatives[0].suspects == suspects
    assert parse_name(result.alternatives[0].op_name).api == "all_reduce"
