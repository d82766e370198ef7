"""Simulated dumps against the simulator's own truth: the variants a to k of ACC-6 and what users meet weekly."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.synth.nan import UNIT, Truth, simulate

from .samples import SMALL, all_source_ranks, analysed

VARIANTS = {
    "a": "fully_masked_row",
    "c": "replicated_source",
    "d": "after_last_collective",
    "f": "uninitialised_used",
    "g": "backward_only",
    "h": "bad_parameter",
    "k": "communication_fault",
}
WEEKLY = (
    "grouped_matmul_nan",
    "empty_batch",
    "tied_weights",
    "filtered_list",
    "domain_error",
    "zero_times_inf",
    "bad_input_data",
    "recompute_differs",
    "hidden_communication",
    "gap",
    "two_steps",
)
NO_CALLS = {"level": "mix", "risk": "ALL", "unrecorded": ("Distributed.",), "partial": (), "missing": ()}
SHOWN = {"backward_only": {"level": "mix"}}  # at L0 and L1 a weight's gradient is in no record


def check(dump: Path, truth: Truth) -> None:
    """Verdict, step, every source rank, first operator and class."""
    result = analysed(dump)
    first = result.first
    assert (result.verdict, result.exit_code) == ("overflow_found", 1)
    assert first is not None
    assert result.step == truth.step
    assert all_source_ranks(result) == sorted(truth.source_ranks)
    assert first.op_name in truth.first_ops
    assert result.clazz in truth.classes
    assert result.partial_ranks == list(truth.partial)
    assert result.missing_ranks == list(truth.missing)
    roles = {row.rank: row.role for row in result.ranks}
    assert {r for r, role in roles.items() if role == "source"} == set(truth.source_ranks)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scenario", [*VARIANTS.values(), *WEEKLY])
def test_a_fault_is_found(scenario: str, seed: int, tmp_path: Path):
    check(tmp_path, simulate(scenario, tmp_path, seed=seed, size=SMALL, **SHOWN.get(scenario, {})))


@pytest.mark.parametrize("risk", ["FOCUS", "CORE"])
@pytest.mark.parametrize("scenario", ["grouped_matmul_nan", "fully_masked_row", "bad_parameter", "replicated_source"])
def test_a_fault_is_found_under_the_collectors_risk_filters(scenario: str, risk: str, tmp_path: Path):
    check(tmp_path, simulate(scenario, tmp_path, seed=4, size=SMALL, risk=risk))


def test_b_fp16_leaves_its_range_in_a_matmul(tmp_path: Path):
    truth = simulate("fp16_overflow", tmp_path, seed=1, size=UNIT, partial=(), missing=())
    check(tmp_path, truth)
    result = analysed(tmp_path)
    assert result.first is not None
    assert result.clazz == "range_overflow"
    assert result.first.slots[0].dtype == "torch.float16"
    assert max(abs(float(result.first.slots[0].max or 0)), abs(float(result.first.slots[0].min or 0))) > 2e4


def test_c_one_fault_on_all_tensor_parallel_peers_is_one_finding(tmp_path: Path):
    truth = simulate("replicated_source", tmp_path, seed=3, size=SMALL, level="mix", partial=(), missing=())
    result = analysed(tmp_path)
    assert len(result.sources) == 1
    assert result.sources[0].ranks == result.source_ranks == list(truth.source_ranks)
    assert len(truth.source_ranks) == 2
    assert result.rank == min(truth.source_ranks)


def test_e_a_single_card_has_no_rank(tmp_path: Path):
    truth = simulate("single_card", tmp_path, seed=1, size=SMALL)
    result = analysed(tmp_path)
    assert result.first is not None
    assert (result.verdict, result.first.rank_key, result.rank, result.source_ranks) == (
        "overflow_found",
        "proc123",
        None,
        [],
    )
    assert result.first.op_name in truth.first_ops
    assert result.clazz == "kernel_fault"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("scenario", ["clean", "clean_masks_only", "saturated_mask"])
def test_i_noise_alone_is_no_overflow(scenario: str, seed: int, tmp_path: Path):
    simulate(scenario, tmp_path, seed=seed, size=SMALL)
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code, result.first, result.alternatives) == ("no_overflow", 0, None, [])
    assert {row.role for row in result.ranks} == {"clean"}


def test_i_the_look_alikes_are_listed_with_their_reasons(tmp_path: Path):
    simulate("clean", tmp_path, seed=1, size=SMALL, level="mix", risk="ALL")
    reasons = {(e.op, e.reason) for e in analysed(tmp_path).excluded}
    assert ("Torch.empty", "allocation_overwritten") in reasons
    assert ("Tensor.masked_fill", "mask_fill") in reasons
    assert ("Tensor.__truediv__", "absorbed") in reasons
    assert ("Tensor.clone", "carried") in reasons


def test_j_two_sources_are_both_listed_and_ordered(tmp_path: Path):
    truth = simulate("two_sources", tmp_path, seed=1, size=SMALL, partial=(), missing=())
    result = analysed(tmp_path)
    assert [(c.ranks, c.op_name) for c in result.sources] == [
        (list(s.ranks), s.first_op) for s in sorted(truth.sources, key=lambda s: str(s.first_op))
    ]
    assert len(result.sources) == 2
    assert result.source_ranks == result.sources[0].ranks
    assert result.sources[0].concurrent_with == [result.sources[1].op_name]


def test_j_naming_more_nodes(tmp_path: Path):
    """-k lists independent nodes in order; the concurrent ones are always listed."""
    simulate("two_sources", tmp_path, seed=1, size=SMALL, partial=(), missing=())
    one, five = analysed(tmp_path, top=1), analysed(tmp_path, top=5)
    assert [c.op_name for c in five.sources][:2] == [c.op_name for c in one.sources]
    assert len(five.sources) <= 5


def test_k_all_inputs_clean_one_output_dirty(tmp_path: Path):
    truth = simulate("communication_fault", tmp_path, seed=1, size=SMALL, level="mix", partial=(), missing=())
    result = analysed(tmp_path)
    assert result.first is not None
    assert (result.clazz, result.first.kind) == ("communication_fault", "communication")
    assert result.source_ranks == list(truth.source_ranks)
    claims = {e.message.key: e.message.values for e in result.evidence}
    assert claims["evidence.communication_inputs"]["members"] in (2, 4)


# --- what was not read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_missing_rank_is_the_source(seed: int, tmp_path: Path):
    """Readable inputs are all clean and still no communication fault is claimed: the missing rank may have sent it."""
    truth = simulate("source_missing", tmp_path, seed=seed, size=SMALL)
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code) == ("inconclusive", 3)
    assert (result.source_ranks, result.rank, result.first) == ([], None, None)
    assert result.clazz == "source_outside_view"
    assert result.missing_ranks == list(truth.suspects)
    assert set(truth.suspects) <= set(result.alternatives[0].suspects)
    assert result.confidence == result.alternatives[0].confidence < 0.75


def test_a_clean_dump_with_a_rank_missing(tmp_path: Path):
    """Every group of rank 5 ends clean in its readable members: it cannot have made NaN."""
    simulate("clean", tmp_path, seed=1, size=SMALL, missing=(5,), partial=(), level="mix")
    result = analysed(tmp_path)
    assert (result.verdict, result.missing_ranks) == ("no_overflow", [5])
    limit = result.limits[0]
    assert (limit.key, limit.values) == ("limit.rank_missing", {"ranks": [5]})


def test_a_clean_dump_of_modules_with_a_rank_missing(tmp_path: Path):
    """Without communication records nothing speaks for rank 5."""
    simulate("clean", tmp_path, seed=1, size=SMALL, missing=(5,), partial=(), level="L0")
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code) == ("inconclusive", 3)
    assert result.headline is not None
    assert (result.headline.key, result.headline.values) == ("headline.unread", {"ranks": [5]})


def test_a_step_that_is_clean_where_it_was_read_does_not_hide_the_next(tmp_path: Path):
    truth = simulate("two_steps", tmp_path, seed=2, size=SMALL, **NO_CALLS)
    (tmp_path / "step0" / "rank15" / "dump.json").unlink()
    result = analysed(tmp_path)
    assert (result.verdict, result.step) == ("overflow_found", 1)
    assert all_source_ranks(result) == list(truth.source_ranks)
    first = result.steps[0]
    assert (first.step, first.state, first.missing) == (0, "look_alikes_only", [15])


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_is_dirty_from_the_start(seed: int, tmp_path: Path):
    simulate("all_dirty_from_start", tmp_path, seed=seed, size=SMALL)
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code, result.source_ranks) == ("inconclusive", 3, [])
    assert result.headline is not None
    assert result.headline.key == "headline.dirty_from_start"
    assert result.next_checks[0].key == "check.earlier_step"
    assert result.clazz != "bad_input_data"


# --- loss scaling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_scaled_gradients_may_overflow(seed: int, tmp_path: Path):
    simulate("loss_scale", tmp_path, seed=seed, size=SMALL)
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code, result.source_ranks) == ("no_overflow", 0, [])
    assert "note.loss_scaling" in [n.key for n in result.notes]


def test_an_overflow_at_scale_1_is_a_finding(tmp_path: Path):
    truth = simulate("loss_scale", tmp_path, seed=1, size=SMALL, loss_scale=1.0)
    result = analysed(tmp_path)
    assert (result.verdict, result.exit_code) == ("overflow_found", 1)
    assert result.first is not None
    assert result.first.phase == "backward"
    assert result.first.op_name.endswith(".backward")
    assert {r for r, role in truth.roles.items() if role == "source"} == set(result.source_ranks)


def test_an_overflow_with_an_update_is_a_finding(tmp_path: Path):
    simulate("loss_scale", tmp_path, seed=1, size=SMALL, update_skipped=False)
    assert analysed(tmp_path).verdict == "overflow_found"


def test_scaling_that_never_settles_is_a_finding(tmp_path: Path):
    simulate("loss_scale", tmp_path, seed=1, size=SMALL)
    step0 = tmp_path / "step0"
    for step in (1, 2):
        (tmp_path / f"step{step}").symlink_to(step0)
    three = analysed(tmp_path)
    assert (three.verdict, len(three.steps)) == ("no_overflow", 3)
    (tmp_path / "step3").symlink_to(step0)
    four = analysed(tmp_path)
    assert (four.verdict, four.step, four.exit_code) == ("overflow_found", 3, 1)
