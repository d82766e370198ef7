"""One decoder in many parallel layouts, run for real over gloo: clean layouts agree, and a fault on one rank names that rank."""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from numprobe.compare.page.markdown import render_markdown
from numprobe.compare.result import CompareResult, Finding
from numprobe.compare.run import CompareOptions, compare
from numprobe.record.errors import NumprobeError

from .parallel import CASES

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "tests" / "data" / "interop" / "engines"
MODES = ("statistics", "tensor")


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, run once a session whatever the number of workers."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "parallel"
    with (base / "parallel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "tests.compare.parallel", str(folder), *CASES],
                cwd=ROOT,
                check=True,
            )
    return folder


def compared(target: Path, golden: Path, by: str = "statistics", *, merge: bool = False) -> CompareResult:
    return compare(target, golden, CompareOptions(by=by, use_cache=False, jobs=1, merge=merge)).result


def errors(result: CompareResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "error"]


def cases_of(result: CompareResult) -> dict[str, int]:
    """How many leaves were found to be what, of the side that was put together."""
    [note] = [n for n in result.notes if n.startswith("merged:")]
    return {name: int(n) for name, n in (pair.split("=") for pair in note.split(":")[3].split(","))}


# --- clean -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", MODES)
@pytest.mark.parametrize(
    ("target", "golden"),
    [
        ("tp2", "one"),
        ("one", "tp2"),
        ("sp2", "one"),
        ("tp4", "one_separate"),  # two k and v heads for four ranks
        ("tp4", "tp2_separate"),
        ("pp2", "one_deep"),
        ("pp2_listed", "one_deep"),
        ("vpp2", "one_deep"),
        ("one_listed", "vpp2"),
        ("tp2vpp2", "one_listed"),
        ("tp2pp2", "one_deep"),
        ("tp2pp2", "tp2_deep"),
        ("one_deep", "tp2pp2"),
        ("dp2", "one"),
        ("tp2dp2", "one"),
    ],
)
def test_another_layout_of_the_same_weights_agrees(dumps: Path, target: str, golden: str, by: str) -> None:
    result = compared(dumps / target, dumps / golden, by)
    assert result.verdict == "pass"
    assert not result.findings
    assert result.mode == by
    left = {k: n for k, n in result.counts.items() if n}
    assert set(left) <= {"pass", "incomparable"}
    assert result.coverage > 0.88
    assert all(pair.status == "ok" for pair in result.ranks)


@pytest.mark.parametrize(("target", "golden"), [("one_listed", "one_deep"), ("one_deep", "one_listed")])
def test_a_list_of_one_model_is_that_model(dumps: Path, target: str, golden: str) -> None:
    result = compared(dumps / target, dumps / golden)
    assert (result.verdict, result.coverage, result.findings) == ("pass", 1.0, [])


@pytest.mark.parametrize("chunks", [False, True], ids=["pp2", "vpp2"])
def test_stages_inside_of_wrappers(dumps: Path, tmp_path: Path, chunks: bool) -> None:
    """As Megatron records them: ``Module.0.module.module.layers``."""
    wrapped = tmp_path / "wrapped"
    shutil.copytree(dumps / ("vpp2" if chunks else "pp2_listed"), wrapped)
    for name in ("dump.json", "construct.json"):
        for file in wrapped.rglob(name):
            file.write_text(re.sub(r"(?<=\"Module\.\d)\.", ".module.module.", file.read_text()))
    result = compared(wrapped, dumps / "one_deep")
    assert (result.verdict, result.findings) == ("pass", [])
    assert result.coverage > 0.88


@pytest.mark.parametrize("by", MODES)
@pytest.mark.parametrize(("target", "golden"), [("cp2", "one"), ("one", "cp2"), ("tp2cp2", "tp2")])
def test_sequences_shared_in_zigzag_order(dumps: Path, target: str, golden: str, by: str) -> None:
    """Context parallel ranks: gradients of the mean over half a sequence are twice those over all of it."""
    result = compared(dumps / target, dumps / golden, by)
    assert (result.verdict, errors(result), result.mode) == ("pass", [], by)
    assert result.counts["warning"] == 0
    assert 0.5 < result.coverage < 0.6  # forward only


@pytest.mark.parametrize("by", MODES)
def test_low_precision_shards_against_a_high_precision_whole(dumps: Path, by: str) -> None:
    result = compared(dumps / "tp2_bf16", dumps / "one", by)
    assert result.verdict == "pass"
    assert not errors(result)
    assert result.dtypes[0] == "bf16/fp32"


def test_every_leaf_has_a_case(dumps: Path) -> None:
    tensor, sequence = (cases_of(compared(dumps / d, dumps / "one")) for d in ("tp2", "sp2"))
    assert set(tensor) == set(sequence) == {"replicated", "split", "partial"}
    assert sequence["split"] > tensor["split"] + 200  # norms and the residual stream too
    heads = cases_of(compared(dumps / "tp4", dumps / "one_separate"))
    assert heads["split"] > 0
    assert set(heads) == {"replicated", "split", "partial"}


@pytest.mark.parametrize(("target", "golden"), [("megatron_tp2", "megatron"), ("megatron", "megatron_tp2")])
def test_the_table_has_the_case_of_every_row(tmp_path: Path, target: str, golden: str) -> None:
    from numprobe.compare.table import read_parquet

    options = CompareOptions(by="statistics", use_cache=False, jobs=1)
    comparison = compare(ENGINES / target, ENGINES / golden, options, parts=tmp_path)
    [part] = comparison.parts
    frame = read_parquet(part)
    found = dict(frame["spread"].drop_nulls().value_counts().iter_rows())
    assert found == cases_of(comparison.result)
    assert set(frame.filter(frame["spread"] == "partial")["reason"]) == {"partial"}


def test_a_padded_vocabulary_needs_tensors(dumps: Path) -> None:
    """92 rows, padded to 96 over two ranks: figures hold the padding, tensors are cut."""
    figures, tensors = (compared(dumps / "pad2", dumps / "one", by) for by in MODES)
    assert cases_of(figures)["padded"] == cases_of(tensors)["padded"] == 14
    assert figures.verdict == tensors.verdict == "pass"
    assert tensors.counts["incomparable"] == figures.counts["incomparable"] - 14
    assert not figures.findings
    assert not tensors.findings


def test_a_batch_shared_by_data_parallel_ranks(dumps: Path) -> None:
    """Activations are split over the batch; gradients of the mean over half a batch are twice those over all of it."""
    for by in MODES:
        result = compared(dumps / "split2", dumps / "one", by)
        assert result.verdict == "pass"
        assert not result.findings
        assert cases_of(result)["averaged"] == 2
        assert "Gradients of the target are 2 times as large" in render_markdown(result, "en")
        assert 0.5 < result.coverage < 0.6  # forward only


def test_copies_with_batches_of_their_own(dumps: Path) -> None:
    """Rank 0 saw the golden run's batch, rank 1 another one: of it only parameters tell."""
    clean = compared(dumps / "other2", dumps / "one")
    assert clean.verdict == "pass"
    assert [pair.note != "" for pair in clean.ranks] == [False, True]
    [finding] = errors(compared(dumps / "other2_fc1", dumps / "one"))
    assert (finding.cause, finding.reason, finding.ranks) == ("parameter", "rank_divergence", [1])
    swapped = compared(dumps / "other2", dumps / "other2")
    assert swapped.verdict == "pass"


def test_experts_are_found_by_their_weights(dumps: Path) -> None:
    """Two experts a rank, counted from 0 on both: 2 and 3 of the model on rank 1. Their outputs are added up otherwise."""
    for by in MODES:
        result = compared(dumps / "ep2", dumps / "one_experts", by)
        assert result.verdict == "pass"
        assert not errors(result)
        assert result.counts["unmatched_target"] == 0
        names = {name for f in result.findings for name in f.only_golden}
        assert all(name.startswith(("Tensor.__mul__", "Tensor.__add__")) for name in names)


def test_the_order_of_gate_and_up_is_told(dumps: Path) -> None:
    result = compared(dumps / "tp2", dumps / "one", "tensor")
    assert "order:target:layers.#.mlp.linear_fc1.weight:2" in result.notes
    assert not any("linear_qkv" in note for note in result.notes)
    english, chinese = (render_markdown(result, lang) for lang in ("en", "zh"))
    assert "layers.#.mlp.linear_fc1.weight" in english
    assert "rank0, rank1 of the target were put together" in english
    assert "rank0, rank1 合并为一侧" in chinese


def test_without_module_records_shapes_tell(dumps: Path) -> None:
    """Level L1: no parameters are known; which ranks belong together is their order, and how leaves are split their shapes."""
    for by in MODES:
        result = compared(dumps / "tp2_apis", dumps / "one_apis", by)
        assert result.verdict == "pass"
        assert not result.findings
        assert cases_of(result)["split"] > 100


def test_other_bits_of_another_layout_are_no_difference(dumps: Path) -> None:
    """Checksums of what two ranks added up are not those of one rank; those of the same weights are."""
    result = compared(dumps / "tp2_digests", dumps / "one_digests", "auto")
    assert result.verdict == "pass"
    assert not result.findings
    assert result.mode == "mixed"


# --- one fault on one rank -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", MODES)
@pytest.mark.parametrize(
    ("target", "golden", "rank", "cause", "reason", "op", "parameter"),
    [
        ("tp2_fc1", "one", 1, "parameter", "", "Tensor.t.6.forward", "layers.1.mlp.linear_fc1"),
        ("tp2_fc2", "one", 1, "parameter", "", "Tensor.t.7.forward", "layers.1.mlp.linear_fc2"),
        ("sp2_fc2", "one", 1, "parameter", "", "Tensor.t.7.forward", "layers.1.mlp.linear_fc2"),
        ("tp2_nan", "one", 1, "nonfinite", "", "Module.layers.1.mlp.product.Fault.forward.0", ""),
        ("tp2_element", "one", 1, "introduced", "", "Module.layers.1.mlp.product.Fault.forward.0", ""),
        ("sp2_element", "one", 1, "introduced", "", "Module.layers.1.mlp.product.Fault.forward.0", ""),
        ("tp2_norm", "one", 1, "introduced", "rank_divergence", "Module.layers.1.after_norm.Fault.forward.0", ""),
        (
            "tp2_gain",
            "one",
            1,
            "parameter",
            "rank_divergence",
            "Tensor.__mul__.10.forward",
            "layers.1.pre_mlp_norm.weight",
        ),
        ("tp2_partial", "one", 1, "nonfinite", "", "Module.layers.1.mlp.linear_fc2.RowParallelLinear.forward.0", ""),
        ("sp2_partial", "one", 1, "nonfinite", "", "Module.layers.1.mlp.linear_fc2.RowParallelLinear.forward.0", ""),
        (
            "tp4_key",
            "one_separate",
            1,
            "parameter",
            "rank_divergence",
            "Tensor.t.7.forward",
            "layers.1.attention.linear_k",
        ),
        ("pp2_fc1", "one_deep", 1, "parameter", "", "Tensor.t.6.forward", "layers.3.mlp.linear_fc1"),
        ("vpp2_fc1", "one_deep", 1, "parameter", "", "Tensor.t.6.forward", "0.layers.3.mlp.linear_fc1"),
        ("cp2_fc1", "one", 1, "parameter", "rank_divergence", "Tensor.t.6.forward", "layers.1.mlp.linear_fc1"),
        ("cp2_element", "one", 1, "introduced", "", "Module.layers.1.mlp.product.Fault.forward.0", ""),
        ("tp2pp2_fc1", "one_deep", 3, "parameter", "", "Tensor.t.6.forward", "layers.3.mlp.linear_fc1"),
        ("dp2_fc1", "one", 1, "parameter", "rank_divergence", "Tensor.t.6.forward", "layers.1.mlp.linear_fc1"),
        ("ep2_fc1", "one_experts", 1, "parameter", "", "Tensor.t.8.forward", "layers.1.mlp.experts.2.linear_fc1"),
    ],
)
def test_a_fault_on_one_rank_names_that_rank(
    dumps: Path, target: str, golden: str, rank: int, cause: str, reason: str, op: str, parameter: str, by: str
) -> None:
    result = compared(dumps / target, dumps / golden, by)
    [finding] = errors(result)
    assert (finding.cause, finding.reason) == (cause, reason)
    assert (finding.ranks, finding.rank_keys) == ([rank], [f"rank{rank}"])
    assert finding.op == op
    assert finding.parameter.startswith(parameter)
    assert finding.target_place is not None
    assert finding.target_place.file == f"step0/rank{rank}/dump.json"
    text = (dumps / target / finding.target_place.file).read_bytes()[finding.target_place.offset :]
    assert text.startswith(b"{")


def test_golden_ranks_that_disagree_do_not_blame_the_target(dumps: Path) -> None:
    """A wrong gain on one golden rank: what the other has stands for both, and the target agrees with it; what the ranks make of
    it together does not."""
    result = compared(dumps / "one", dumps / "tp2_gain")
    [finding] = errors(result)
    assert finding.cause == "introduced"
    assert cases_of(result)["diverged"] > 0


def test_the_layer_of_a_stage_is_that_of_the_whole_model(dumps: Path) -> None:
    """The stage counts its layers from 0, and recorded layers.1; the parameter is layers.3 of the model."""
    [finding] = errors(compared(dumps / "pp2_fc1", dumps / "one_deep"))
    assert finding.layer == 3
    assert finding.inside[0] == "Module.layers.3.mlp.linear_fc1.ColumnParallelLinear.forward.0"


@pytest.mark.parametrize("by", MODES)
def test_a_group_that_is_wrong_as_a_whole_is_named_as_a_whole(dumps: Path, by: str) -> None:
    [finding] = errors(compared(dumps / "tp2_all", dumps / "one", by))
    assert (finding.cause, finding.ranks) == ("parameter", [0, 1])


def test_shards_in_the_wrong_place_are_seen_by_tensors_alone(dumps: Path) -> None:
    """Figures are blind to the order of shards: they show what comes of it. Tensors name the weights, in every layer."""
    figures, tensors = (compared(dumps / "tp2_swapped", dumps / "one", by) for by in MODES)
    assert {f.cause for f in errors(figures)} == {"introduced"}
    found = errors(tensors)
    assert [f.parameter.rsplit(".", 1)[0] for f in found] == [f"layers.{i}.attention.linear_qkv" for i in range(2)]
    assert {f.layout for f in found} == {"half_swap axis 0"}


# --- what does not fit -----------------------------------------------------------------------------------------------


def ranks_of(dump: Path, folder: Path, ranks: list[int]) -> Path:
    for rank in ranks:
        shutil.copytree(dump / "step0" / f"rank{rank}", folder / "step0" / f"rank{rank}")
    return folder


def test_a_group_with_a_rank_missing_is_one_clear_error(dumps: Path, tmp_path: Path) -> None:
    three = ranks_of(dumps / "tp4", tmp_path / "three", [0, 1, 2])
    with pytest.raises(NumprobeError, match="E-CMP-004") as caught:
        compared(three, dumps / "one_separate")
    assert "3 and 1 ranks" in caught.value.found


def test_tensors_and_sequences_shared_at_once_against_neither_is_one_clear_error(dumps: Path) -> None:
    with pytest.raises(NumprobeError, match="E-CMP-004") as error:
        compared(dumps / "tp2cp2", dumps / "one")
    assert "cut alike" in error.value.do


def test_a_rank_that_cannot_be_read_is_told(dumps: Path, tmp_path: Path) -> None:
    target = ranks_of(dumps / "tp2", tmp_path / "target", [0, 1])
    file = target / "step0" / "rank1" / "dump.json"
    whole = file.read_bytes()
    file.write_bytes(b"no json")
    with pytest.raises(NumprobeError, match="E-CMP-004") as caught:
        compared(target, dumps / "one")
    assert "of 1 ranks nothing could be read" in caught.value.found
    file.write_bytes(whole[: len(whole) // 2])
    result = compared(target, dumps / "one")
    [pair] = result.ranks
    assert (pair.status, result.verdict, result.premise) == ("partial", "inconclusive", "ranks")
    assert not errors(result)  # what the other rank alone has is compared with nothing


def test_dumps_of_two_models_are_one_clear_error(dumps: Path) -> None:
    with pytest.raises(NumprobeError, match="E-CMP-004"):
        compared(dumps / "sp2", ENGINES / "megatron")


def test_one_shard_against_the_whole_is_no_verdict(dumps: Path, tmp_path: Path) -> None:
    """As many ranks on both sides, so that they are paired by number: but the parameters are parts."""
    result = compared(ranks_of(dumps / "tp2", tmp_path / "half", [0]), dumps / "one")
    assert (result.verdict, result.premise) == ("inconclusive", "parts")
    assert not result.findings


def test_as_many_ranks_in_another_layout_are_merged_when_asked(dumps: Path) -> None:
    without = compared(dumps / "pp2", dumps / "tp2_deep")
    assert (without.verdict, without.premise) == ("inconclusive", "parts")
    for by in MODES:
        result = compared(dumps / "pp2", dumps / "tp2_deep", by, merge=True)
        assert result.verdict == "pass"
        assert not result.findings
    same = compared(dumps / "tp2", dumps / "tp2", merge=True)
    assert same.verdict == "pass"
    assert same.coverage == 1.0


def test_one_rank_of_the_same_layout_is_compared_with_its_own(dumps: Path, tmp_path: Path) -> None:
    second = ranks_of(dumps / "tp2", tmp_path / "second", [1])
    assert compared(second / "step0" / "rank1", dumps / "tp2").verdict == "pass"
    result = compared(second, dumps / "tp2")  # all of both were asked for, and one is not there
    assert (result.verdict, result.premise) == ("inconclusive", "ranks")
    [problem] = result.problems
    assert (problem.kind, problem.side, problem.rank) == ("unpaired", "golden", "rank0")
    assert problem.file == str(dumps / "tp2" / "step0" / "rank0" / "dump.json")
    assert [(p.target, p.golden, p.status) for p in result.ranks] == [
        ("", "rank0", "missing"),
        ("rank1", "rank1", "ok"),
    ]


def test_noise_of_several_golden_ranks_is_refused(dumps: Path) -> None:
    with pytest.raises(NumprobeError, match="E-CMP-005"):
        compare(dumps / "one", dumps / "tp2", CompareOptions(noise=dumps / "tp2", use_cache=False))
    baseline = CompareOptions(baseline=dumps / "one_bf16", use_cache=False, jobs=1)
    assert compare(dumps / "tp2_bf16", dumps / "one", baseline).result.verdict == "pass"


# --- the real Megatron-Core ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "golden"), [("megatron_tp2", "megatron"), ("megatron", "megatron_tp2")])
def test_megatron_over_two_ranks_against_one(target: str, golden: str) -> None:
    result = compared(ENGINES / target, ENGINES / golden)
    assert result.verdict == "pass"
    assert not errors(result)
    assert result.coverage > 0.96
    only = {name for f in result.findings for name in (*f.only_target, *f.only_golden)}
    assert {name.split(".")[1] for name in only} == {"__lt__", "__ge__", "__or__", "__sub__", "__setitem__"}
    cases = cases_of(result)
    assert cases["partial"] == 8  # what goes into the sums of row parallel layers, and of the vocabulary's parts
    assert set(cases) == {"replicated", "split", "partial"}


def test_megatron_with_another_activation(tmp_path: Path) -> None:
    """GELU for SiLU, which nobody recorded: between the halves of fc1 and their product, in layer 0."""
    [finding, *_] = errors(compared(ENGINES / "megatron_gelu", ENGINES / "megatron_tp2"))
    assert (finding.cause, finding.reason, finding.layer) == ("introduced", "gap", 0)
    assert finding.inside[0].startswith("Module.decoder.layers.0.mlp.MLP")


def test_figures_of_the_joined_side_are_those_of_the_whole() -> None:
    """Independently: norms of TP2 weights of the real dump, put together here, against those of TP1."""
    import json

    def weights(folder: Path) -> dict[str, dict[str, float]]:
        data = json.loads((folder / "dump.json").read_text())["data"]
        return {
            n: r["parameters"]["weight"]
            for n, r in data.items()
            if isinstance(r.get("parameters"), dict) and "weight" in r["parameters"]
        }

    whole = weights(ENGINES / "megatron" / "step0" / "rank0")
    halves = [weights(ENGINES / "megatron_tp2" / "step0" / f"rank{r}") for r in range(2)]
    checked = 0
    for name, wanted in whole.items():
        parts = [h[name] for h in halves]
        if parts[0]["shape"] != wanted["shape"]:
            checked += 1
            assert math.hypot(*(p["Norm"] for p in parts)) == pytest.approx(wanted["Norm"], rel=1e-5)
            assert max(p["Max"] for p in parts) == wanted["Max"]
            assert min(p["Min"] for p in parts) == wanted["Min"]
    assert checked >= 13
