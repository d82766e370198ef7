"""Ranks that are there and were not read, and records that the user rules out, keep a verdict open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from numprobe.diagnose import overview
from numprobe.diagnose.nan_overflow.messages import say
from numprobe.record.errors import NumprobeError

from .samples import DATA, GLOO, analysed

H = DATA / "interop" / "pytorch" / "h_distributed_4rank_nan" / "dump"


def step_of(path: Path) -> Path:
    return next(p for p in sorted(path.rglob("step*")) if p.is_dir())


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_one_rank_named_cannot_convict_the_communication(rank: int) -> None:
    result = analysed(step_of(H) / f"rank{rank}")
    assert result.verdict == "inconclusive"
    assert result.clazz == "source_outside_view"
    assert 2 in result.alternatives[0].suspects


def test_the_source_alone_is_found_and_the_others_are_named_as_left_out() -> None:
    result = analysed(step_of(H) / "rank2")
    assert (result.verdict, result.source_ranks) == ("overflow_found", [2])
    left_out = next(m for m in result.limits if m.key == "limit.left_out")
    assert left_out.values["ranks"] == [0, 1, 3]


def test_naming_a_rank_and_choosing_it_say_the_same() -> None:
    named, chosen = analysed(step_of(H) / "rank1"), analysed(H, ranks=frozenset({1}))
    assert (named.verdict, named.clazz, named.confidence) == (chosen.verdict, chosen.clazz, chosen.confidence)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_recorded_communication_a_gap_may_come_from_an_unread_rank(rank: int) -> None:
    result = analysed(step_of(GLOO / "pipeline_1f1b_L0") / f"rank{rank}")
    assert result.verdict == "inconclusive"
    assert result.next_checks[0].key == "check.whole_step"
    assert "term.rank_unread" in [t.message.key for t in result.alternatives[0].terms]


def test_an_operator_with_clean_inputs_needs_no_other_rank() -> None:
    result = analysed(step_of(GLOO / "fsdp2") / "rank1")
    assert (result.verdict, result.source_ranks) == ("overflow_found", [1])


def test_excluding_the_only_source_is_no_all_clear() -> None:
    whole = analysed(GLOO / "moe_all_to_all")
    assert whole.first is not None
    result = analysed(GLOO / "moe_all_to_all", exclude=(whole.first.op_name,))
    assert result.verdict == "inconclusive"
    assert result.headline is not None
    assert whole.first.op_name in say("en", result.headline.key, **result.headline.values)


def test_an_exclusion_that_matches_nothing_is_said() -> None:
    result = analysed(GLOO / "fsdp2", exclude=("Torch.no_such",))
    assert [m.values for m in result.notes if m.key == "note.exclude_unused"] == [{"names": "Torch.no_such"}]


def test_several_clean_steps_are_counted_together(tmp_path: Path) -> None:
    first = step_of(GLOO / "clean_masks")
    for step in (0, 1):
        shutil.copytree(first, tmp_path / f"step{step}")
    one, two = analysed(GLOO / "clean_masks"), analysed(tmp_path)
    assert (two.verdict, two.records, two.bytes) == ("no_overflow", 2 * one.records, 2 * one.bytes)
    assert one.headline is not None
    assert two.headline is not None
    assert two.headline.values["records"] == two.records


def test_inspect_fails_where_no_rank_can_be_read(tmp_path: Path) -> None:
    for rank in ("rank0", "rank1"):
        (tmp_path / "step0" / rank).mkdir(parents=True)
        (tmp_path / "step0" / rank / "dump.json").write_text("nonsense")
    with pytest.raises(NumprobeError, match="E-FMT-014"):
        overview.inspect(tmp_path)


def test_inspect_names_the_ranks_that_can_be_chosen() -> None:
    with pytest.raises(NumprobeError) as raised:
        overview.inspect(H, ranks=frozenset({9}))
    assert raised.value.found == "ranks 0 to 3"
