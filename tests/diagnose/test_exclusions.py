"""Look-alikes by their effect: what a mask, an allocation or an infinity that is masked out leaves, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.diagnose.nan_overflow.digest import RankDigest

from .samples import INF, NAN, Record, all_reduce, analysed, call, digest_of, scalar, t, write_rank, write_step

MASKED = t(3.0, -INF)


def events(digest: RankDigest) -> list[tuple[str, str]]:
    return [(e.name, e.kind) for e in digest.events]


def looks(digest: RankDigest) -> dict[str, str]:
    return {look.name: look.reason for look in digest.look_alikes}


def test_a_mask_is_noise(tmp_path: Path):
    """masked_fill with -inf, and a softmax that absorbs it."""
    digest = digest_of(
        tmp_path,
        {
            "Functional.linear.0.forward": call(t(1.0), t(0.1), out=t(3.0)),
            "Tensor.masked_fill.0.forward": call(t(3.0), scalar(-INF), out=MASKED),
            "Functional.softmax.0.forward": call(MASKED, dim=scalar(-1), out=t(1.0, 0.0)),
        },
    )
    assert events(digest) == []
    assert looks(digest) == {"Tensor.masked_fill.0.forward": "fill"}


def test_the_same_operator_with_nan_is_a_candidate(tmp_path: Path):
    digest = digest_of(tmp_path, {"Tensor.masked_fill.0.forward": call(t(3.0), scalar(-INF), out=t(NAN))})
    assert events(digest) == [("Tensor.masked_fill.0.forward", "introduced")]


def test_a_softmax_row_of_masks_only(tmp_path: Path):
    step = write_step(
        tmp_path / "step0",
        {
            "Tensor.masked_fill.0.forward": call(t(3.0), scalar(-INF), out=MASKED),
            "Functional.softmax.0.forward": call(MASKED, dim=scalar(-1), out=t(NAN)),
        },
    )
    result = analysed(step)
    assert result.first is not None
    assert (result.first.op_name, result.clazz) == ("Functional.softmax.0.forward", "fully_masked_row")


@pytest.mark.parametrize("name", ["Torch.empty", "Torch.empty_like", "Tensor.new_empty", "NPU.npu_alloc_empty"])
@pytest.mark.parametrize("garbage", [t(NAN), t(INF, 0.0), t(INF, -INF)])
def test_memory_that_is_overwritten_before_use_is_noise(name: str, garbage: Record, tmp_path: Path):
    """empty, clone, then the buffer is written by something that leaves no record: nobody computes with the garbage."""
    digest = digest_of(
        tmp_path,
        {
            f"{name}.0.forward": call(scalar(4), scalar(8), out=garbage),
            "Tensor.clone.0.forward": call(garbage, out=garbage),
            "Torch.add.0.forward": call(t(1.0), t(2.0), out=t(3.0)),
        },
    )
    assert events(digest) == []
    assert looks(digest) == {f"{name}.0.forward": "allocation", "Tensor.clone.0.forward": "allocation_copied"}


def test_memory_that_is_used_unwritten(tmp_path: Path):
    """empty -> clone -> add with no write in between."""
    process = write_rank(
        tmp_path / "step0" / "proc7",
        {
            "Torch.empty.0.forward": call(scalar(4), scalar(8), out=t(NAN)),
            "Tensor.clone.0.forward": call(t(NAN), out=t(NAN)),
            "Torch.add.0.forward": call(t(1.0), t(NAN), out=t(NAN)),
            "Torch.mul.0.forward": call(t(NAN), t(2.0), out=t(NAN)),
        },
    )
    result = analysed(process)
    assert result.first is not None
    assert (result.first.op_name, result.clazz) == ("Torch.add.0.forward", "uninitialised_memory_used")
    assert result.evidence[0].message.values == {"allocation": "Torch.empty.0.forward", "op": "Torch.add.0.forward"}


def test_an_infinity_that_is_masked_out_is_noise(tmp_path: Path):
    """x / 0 gives +inf, where drops it."""
    digest = digest_of(
        tmp_path,
        {
            "Tensor.__truediv__.0.forward": call(t(2.0, 1.0), t(4.0, 0.0), out=t(INF, 0.3)),
            "Torch.where.0.forward": call(t(True, False, dtype="bool"), t(INF, 0.3), t(0.0), out=t(2.0, 0.0)),
        },
    )
    assert events(digest) == []
    assert looks(digest) == {"Tensor.__truediv__.0.forward": "absorbed"}


def test_an_infinity_that_becomes_nan_is_a_candidate(tmp_path: Path):
    """The same division, whose infinity is subtracted from itself."""
    digest = digest_of(
        tmp_path,
        {
            "Tensor.__truediv__.0.forward": call(t(2.0, 1.0), t(4.0, 0.0), out=t(INF, 0.3)),
            "Torch.sub.0.forward": call(t(INF, 0.3), t(INF, 0.3), out=t(NAN)),
        },
    )
    assert events(digest) == [("Tensor.__truediv__.0.forward", "introduced")]
    assert digest.events[0].converted_at == 1


def test_a_mask_of_the_most_negative_number_is_finite(tmp_path: Path):
    """Its mean overflows in the recorder: Max and Min decide, Mean and Norm never."""
    low = t(0.0, -3.4028234663852886e38, norm=INF) | {"Mean": -INF}
    digest = digest_of(
        tmp_path, {"Torch.full.0.forward": call(scalar(4), out=low), "Torch.add.0.forward": call(low, t(1.0), out=low)}
    )
    assert (events(digest), looks(digest), digest.dirty_records) == ([], {}, 0)


def test_placeholder_outputs_of_the_attention_kernel(tmp_path: Path):
    """Outputs 4 and 5 of npu_fusion_attention hold nothing."""
    outputs = [t(1.0), t(1.0), t(1.0), t(1.0), t(NAN), t(NAN)]
    digest = digest_of(tmp_path, {"NPU.npu_fusion_attention.0.forward": call(t(1.0), t(1.0), t(1.0), out=outputs)})
    assert (events(digest), looks(digest)) == ([], {"NPU.npu_fusion_attention.0.forward": "placeholder_output"})
    bad = digest_of(
        tmp_path / "b", {"NPU.npu_fusion_attention.0.forward": call(t(1.0), t(1.0), t(1.0), out=[t(NAN), *outputs[1:]])}
    )
    assert events(bad) == [("NPU.npu_fusion_attention.0.forward", "introduced")]


def test_a_bad_parameter_is_its_own_origin(tmp_path: Path):
    digest = digest_of(tmp_path, {"Functional.linear.0.forward": call(t(1.0), t(NAN), out=t(NAN))})
    assert events(digest) == [("Functional.linear.0.forward", "parameter")]


def test_an_operator_that_left_no_record_is_a_gap(tmp_path: Path):
    digest = digest_of(
        tmp_path,
        {
            "Torch.exp.0.forward": call(t(1.0), out=t(2.7)),
            "Torch.mul.0.forward": call(t(NAN, shape=(7,)), t(2.0, shape=(7,)), out=t(NAN, shape=(7,))),
        },
        construct={
            "Torch.exp.0.forward": "Module.net.Net.forward.0",
            "Torch.mul.0.forward": "Module.net.Net.forward.0",
        },
    )
    (event,) = digest.events
    assert (event.name, event.kind, event.after_name) == ("Torch.mul.0.forward", "gap", "Torch.exp.0.forward")


@pytest.mark.parametrize("made_from", [-1.0, -INF])
def test_masks_that_are_sent_along_make_no_rank_dirty(made_from: float, tmp_path: Path):
    """A -inf mask goes out by broadcast: nobody is a victim. Its fill may not be recorded: triu of -inf."""
    mask = t(0.0, -INF)
    ring: Record = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "g"}
    root = {
        "Torch.triu.0.forward": call(t(0.0, made_from), out=mask),
        "Distributed.broadcast.0.forward": {
            "input_args": [mask, scalar(0)],
            "input_kwargs": {"group": ring},
            "output": [mask, scalar(0), ring],
        },
    }
    other = {
        "Distributed.broadcast.0.forward": {
            "input_args": [t(0.0), scalar(0)],
            "input_kwargs": {"group": ring},
            "output": [mask, scalar(0), ring],
        }
    }
    result = analysed(write_step(tmp_path / "step0", root, other))
    assert (result.verdict, [row.role for row in result.ranks]) == ("no_overflow", ["clean", "clean"])


def test_infinite_gradients_in_a_sum_are_found_though_nothing_recorded_made_them(tmp_path: Path):
    """The weight's gradient is in no record before it is reduced; masks are about, and must not hide it."""
    sum_of = {"type": "torch.distributed.ReduceOp", "value": "RedOpType.SUM"}
    mask = {
        "Tensor.masked_fill.0.forward": call(t(3.0), scalar(-INF), out=MASKED),
        "Functional.linear.0.backward": call(t(1.0), out=t(1.0)),
    }
    bad = mask | {"Distributed.all_reduce.0.forward": all_reduce(t(INF, 0.0), t(INF, 0.0), 0, 1)}
    good = mask | {"Distributed.all_reduce.0.forward": all_reduce(t(1.0), t(INF, 0.0), 0, 1)}
    result = analysed(write_step(tmp_path / "sum" / "step0", bad, good))
    assert result.first is not None
    assert (result.verdict, result.source_ranks) == ("overflow_found", [0])
    assert (result.first.op_name, result.first.gap_after, result.first.phase) == (
        "Distributed.all_reduce.0.forward",
        "Functional.linear.0.backward",
        "backward",
    )
    for one in (bad, good):
        one["Distributed.all_reduce.0.forward"]["input_kwargs"]["op"] = sum_of | {"value": "RedOpType.MIN"}
    assert analysed(write_step(tmp_path / "min" / "step0", bad, good)).first is None


def test_an_empty_expert_is_clean(tmp_path: Path):
    """A rank without tokens has empty tensors, whose statistics are null; shapes differ by rank."""
    none = t(None, shape=(0, 8), norm=None)
    full = {"NPU.npu_grouped_matmul.0.forward": call(t(1.0), t(0.1, shape=(8, 8)), out=t(2.0))}
    empty = {"NPU.npu_grouped_matmul.0.forward": call(none, t(0.1, shape=(8, 8)), out=none)}
    result = analysed(write_step(tmp_path / "step0", full, empty))
    assert (result.verdict, result.exit_code) == ("no_overflow", 0)
