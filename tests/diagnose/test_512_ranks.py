"""ACC-5 at CI size: 512 ranks, a grouped matmul on rank 168 gives NaN, rank 311 is cut short, rank 77 is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.synth.nan import CI, Truth, simulate

from .samples import analysed, benchmark


@dataclass
class Job:
    dump: Path
    truth: Truth
    result: NanResult


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    dump = tmp_path_factory.mktemp("ci") / "dump"
    truth = simulate("grouped_matmul_nan", dump, seed=0, size=CI)
    return Job(dump, truth, analysed(dump))


def test_the_source_and_its_operator(job: Job):
    result, first = job.result, job.result.first
    assert first is not None
    assert (result.verdict, result.step, result.source_ranks, result.rank) == ("overflow_found", 0, [168], 168)
    assert [c.op_name for c in result.sources] == ["NPU.npu_grouped_matmul.3.forward"] == [job.truth.first_op]
    assert [link.name for link in first.chain] == [
        "NPU.npu_grouped_matmul.3.forward",
        "Module.layers.3.mlp.MoELayer.forward.0",
    ]
    assert (first.layer, first.micro_batch, first.gap_after) == (3, 0, None)
    assert first.frame is not None
    assert (first.frame.file, first.frame.function) == ("moe/experts.py", "forward")
    assert result.alternatives == []


def test_the_kernel_is_at_fault_by_the_bound(job: Job):
    first = job.result.first
    assert first is not None
    bound = first.bound
    assert bound is not None
    assert (job.result.clazz, bound.rule, bound.dtype, bound.contradicts_output) == (
        "kernel_fault",
        "K*max|x|*max|w|",
        "bf16",
        True,
    )
    assert bound.formula.startswith("512 x ")
    assert bound.value is not None
    assert bound.value < 8 * 0.2 * 512


def test_ranks_that_were_not_read_are_named_and_cost_little(job: Job):
    result, first = job.result, job.result.first
    assert first is not None
    assert (result.partial_ranks, result.missing_ranks) == ([311], [77])
    assert result.confidence is not None
    assert 0.7 <= result.confidence <= 0.97
    terms = {t.message.key: (t.value, t.message.values.get("ranks")) for t in first.terms}
    assert terms["term.rank_unread"] == (-0.2, [77])
    assert terms["term.unread_irrelevant"] == (-0.02, [311])


def test_the_role_of_every_rank(job: Job):
    roles = {row.rank: row.role for row in job.result.ranks}
    assert roles.pop(77) == "missing"
    truth = {r: role for r, role in job.truth.roles.items() if r != 77}
    assert roles == truth
    assert sum(role == "source" for role in roles.values()) == 1
    assert {"relay", "victim"} < set(roles.values())


def test_the_first_arrival_at_every_rank(job: Job):
    """First dirty record and the communication that brought it, as the simulator has it."""
    found = {row.rank: (row.first_dirty, spelled(row.via)) for row in job.result.ranks if row.rank != 77}
    truth = {r: (d["op"], d["instance"] or "") for r, d in job.truth.first_dirty.items() if r != 77}
    assert found == truth
    assert job.result.spread[0].new_ranks == [168]
    assert job.result.spread[1].api == "all_to_all_single"
    assert 168 in job.result.spread[1].from_ranks
    assert job.result.spread[-1].total_dirty == 511


def spelled(via: str) -> str:
    """``p2p@128-0#0`` as the truth spells it: ``send@128->0#0``."""
    return via.replace("p2p@", "send@").replace("-", "->") if via.startswith("p2p@") else via


def test_no_look_alike_is_a_candidate(job: Job):
    names = {c.op_name.split(".")[1] for c in [*job.result.sources, *job.result.alternatives]}
    assert names == {"npu_grouped_matmul"}
    excluded = {(e.op, e.reason) for e in job.result.excluded}
    assert {
        ("Torch.empty", "allocation_overwritten"),
        ("Tensor.masked_fill", "mask_fill"),
        ("Tensor.__truediv__", "absorbed"),
    } <= excluded
    counted = {e.op: (e.count, e.ranks) for e in job.result.excluded if e.op == "Tensor.__truediv__"}
    assert counted["Tensor.__truediv__"][1] == 1  # rank 40


def test_a_merge_by_record_name_blames_others(job: Job):
    """msProbe's rule, on the source's tensor-parallel group and one such group of each other pipeline stage."""
    reference = benchmark("reference_nan")
    ranks = {}
    for rank in [r + i for r in (0, 168, 256, 384) for i in range(4)]:
        text = (job.dump / "step0" / f"rank{rank}" / "dump.json").read_text()
        ranks[rank] = json.loads(text)["data"]
    blamed = reference.cross_rank(ranks).ranks
    assert blamed != (168,)
    assert set(blamed) & set(range(256, 512))
