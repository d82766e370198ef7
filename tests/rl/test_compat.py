"""``--compat msprobe``: the files of its RL skill, column by column, with figures worked out again from the dumps."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numprobe.cli.app import app
from numprobe.cli.common import guarded
from numprobe.diagnose import rl_consistency

from .conftest import Dump
from .models import Run
from .page_results import ENGINES

Rows = list[dict[str, str]]
COLUMNS = {
    "output_1_key_mapping.csv": "train_key,rollout_key,cardinality,layer_index,block,confidence,notes",
    "output_2_mapping.csv": "mapping_type,train_key,rollout_key,layer_index,block,confidence,notes",
    "output_3_value_compare.csv": "train_key,rollout_key,compare_target,dtype_status,shape_status,shape_relation,"
    "numeric_consistency,priority_rank,priority_bucket,metric_status,value_status,metric_summary",
    "output_4_module_analysis.csv": "train_key,rollout_key,module_priority_rank,module_status,reasoning",
}
JSON = {
    "output_0_key_mapping.json",
    "output_1_key_mapping.json",
    "output_2_mapping.json",
    "output_3_value_compare.json",
    "output_4_module_analysis.json",
    "output_5_root_cause_report.json",
}
FC1 = "Module.decoder.layers.0.mlp.linear_fc1.ColumnParallelLinear.forward.0"
FC2 = "Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0"
DOWN = "Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0"
GATE_UP = "Module.model.layers.0.mlp.gate_up_proj.MergedColumnParallelLinear.forward.0"
NORM = "Module.model.norm.RMSNorm.forward.0"


def command(*arguments: str) -> int:
    return guarded(lambda **options: app(list(arguments), **options))


def written(out: Path, train: Path, rollout: Path) -> dict[str, Any]:
    """What the command wrote, by file name."""
    code = command("rl", str(train), str(rollout), "--compat", "msprobe", "--no-cache", "--quiet", "-o", str(out))
    assert code in (0, 1)
    found: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in out.glob("output_*.json")}
    for path in out.glob("output_*.csv"):
        with path.open(newline="") as file:
            found[path.name] = list(csv.DictReader(file))
        assert path.read_text().splitlines()[0] == COLUMNS[path.name]
    assert found.keys() == JSON | COLUMNS.keys()
    return found


@pytest.fixture(scope="module")
def gelu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return written(tmp_path_factory.mktemp("compat") / "out", ENGINES / "megatron_gelu", ENGINES / "vllm")


def data(side: str) -> dict[str, Any]:
    return dict(json.loads((ENGINES / side / "step0" / "rank0" / "dump.json").read_text())["data"])


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    command("rl", str(ENGINES / "megatron"), str(ENGINES / "vllm"), "--no-cache", "--quiet", "-o", str(tmp_path / "o"))
    assert not list((tmp_path / "o").glob("output_*"))


def test_another_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("rl", "a", "b", "--compat", "other") == 2
    assert "--compat" in capsys.readouterr().err


def test_the_mapping_has_every_module_in_the_order_of_training(gelu: dict[str, Any]) -> None:
    modules = [name for name in data("megatron_gelu") if name.startswith("Module.")]
    rows = gelu["output_1_key_mapping.json"]["rows"]
    assert [row["train_key"] for row in rows] == modules
    assert gelu["output_1_key_mapping.json"]["meta"]["order_basis"] == "train_data_insertion_order"
    by_key = {row["train_key"]: row for row in rows}
    assert by_key[FC2] == {
        "train_key": FC2,
        "rollout_keys": [DOWN],
        "layer_index": 0,
        "block": "mlp",
        "cardinality": "1:1",
        "confidence": "high",
        "notes": "",
    }
    alone = [row for row in rows if not row["rollout_keys"]]
    assert {(row["cardinality"], row["confidence"]) for row in alone} == {("1:0", "low")}
    matched = {row["train_key"]: row["rollout_keys"] for row in rows if row["rollout_keys"]}
    assert gelu["output_2_mapping.json"] == matched
    assert {k: [v] for k, v in gelu["output_0_key_mapping.json"].items()} == matched
    assert [row["train_key"] for row in gelu["output_2_mapping.csv"]] == list(matched)
    assert [row["layer_index"] for row in gelu["output_1_key_mapping.csv"]] == [str(row["layer_index"]) for row in rows]
    assert "-" in {row["layer_index"] for row in rows}  # the embedding


def leaf(record: dict[str, Any], target: str) -> dict[str, Any] | None:
    section, _, key = target.partition(".")
    content = record.get(section) or {}
    found = content[0] if key == "0" and content else content.get(key) if isinstance(content, dict) else None
    return (found[0] if isinstance(found, list) else found) or None


def test_values_are_those_of_the_dumps(gelu: dict[str, Any]) -> None:
    train, rollout = data("megatron_gelu"), data("vllm")
    records = gelu["output_3_value_compare.json"]["records"]
    pairs = {(row["train_key"], row["rollout_key"]) for row in records}
    expected = [
        (one, other, target)
        for one, other in gelu["output_0_key_mapping.json"].items()
        for target in ("output.0", "input_args.0", "parameters.weight")
        if leaf(train[one], target) or leaf(rollout[other], target)
    ]
    assert [(r["train_key"], r["rollout_key"], r["compare_target"]) for r in records] == expected
    assert (FC2, DOWN) in pairs
    for row in records:
        a, b = (
            leaf(train[row["train_key"]], row["compare_target"]),
            leaf(rollout[row["rollout_key"]], row["compare_target"]),
        )
        assert (row["dtype_train"], row["shape_train"]) == ((a["dtype"], a["shape"]) if a else (None, None))
        states = set()
        for name, metric in row["metrics"].items():
            one, other = (side.get(name) if side else None for side in (a, b))
            if one is None or other is None:
                assert metric["status"] == "missing"
                continue
            error = abs(one - other) / max(abs(other), 1e-12)
            assert (metric["train"], metric["rollout"]) == (one, other)
            assert metric["rel_err"] == pytest.approx(error, rel=1e-9, abs=0)
            assert row[f"diff_{name}%"] == pytest.approx(100 * error, rel=1e-9, abs=0)
            assert metric["status"] == ("ok" if error <= 1e-4 else "warn" if error <= 1e-2 else "alert")
            states.add(metric["status"])
        mismatch = bool(states & {"warn", "alert"})
        assert row["numeric_consistency"] == ("mismatch" if mismatch else "aligned" if states else "missing")
    counts = gelu["output_3_value_compare.json"]["meta"]["priority_counts"]
    assert sum(counts.values()) == len(records) == len(gelu["output_3_value_compare.csv"])
    summary = next(r["metric_summary"] for r in gelu["output_3_value_compare.csv"] if r["train_key"] == FC2)
    assert summary.startswith("Max:alert@0.1")
    assert summary.count("; ") == 3


def test_the_cause_is_that_of_the_skill(gelu: dict[str, Any]) -> None:
    report = gelu["output_5_root_cause_report.json"]
    (cause,) = report["root_cause_suspects"]
    assert (cause["train_key"], cause["rollout_key"]) == (FC2, DOWN)
    assert cause["classification"] == "missing_or_extra_op_between_aligned_boundary"
    assert (cause["module_priority_rank"], cause["module_bucket"]) == (
        2,
        "systemic_misalignment",
    )  # vLLM hides its weights
    anchor = cause["previous_aligned_boundary"]
    assert (anchor["train_key"], anchor["rollout_key"], anchor["output_consistency"]) == (FC1, GATE_UP, "aligned")
    acts = ["Functional.silu.0.forward", "Module.model.layers.0.mlp.act_fn.SiluAndMul.forward.0"]
    assert cause["unmatched_train_between_boundary"] == []
    assert cause["unmatched_rollout_between_boundary"] == acts == cause["likely_missing_train_activation"]
    assert cause["likely_missing_rollout_activation"] == []
    assert report["top_evidence"] == acts
    assert FC2 in report["top_hypothesis"]
    assert len(report["next_checks"]) == 3


def test_clean_sides_have_no_cause(tmp_path: Path) -> None:
    found = written(tmp_path / "out", ENGINES / "megatron", ENGINES / "vllm")["output_5_root_cause_report.json"]
    assert (found["root_cause_suspects"], found["top_hypothesis"], found["top_evidence"]) == ([], "", [])


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The rollout of vLLM, other than it was recorded."""
    shutil.copytree(ENGINES / "vllm", folder)
    path = folder / "step0" / "rank0" / "dump.json"
    content = json.loads(path.read_text())
    change(content["data"])
    path.write_text(json.dumps(content))
    return folder


def output_is_nan(data: dict[str, Any]) -> None:
    data[NORM]["output"][0] |= dict.fromkeys(("Max", "Min", "Mean", "Norm"), float("nan"))


def output_is_scaled(data: dict[str, Any]) -> None:
    for name in ("Max", "Min", "Mean", "Norm"):
        data[NORM]["output"][0][name] *= 1.5


def weight_is_scaled(data: dict[str, Any]) -> None:
    for name in ("Max", "Min", "Mean", "Norm"):
        data[NORM]["parameters"]["weight"][name] *= 1.5


def both_are_scaled(data: dict[str, Any]) -> None:
    output_is_scaled(data)
    weight_is_scaled(data)


def everything_is_scaled(data: dict[str, Any]) -> None:
    both_are_scaled(data)
    for leaf in [*data[NORM]["input_args"], *data[NORM]["output"][1:]]:
        for name in ("Max", "Min", "Mean", "Norm"):
            leaf[name] *= 1.5


def no_output(data: dict[str, Any]) -> None:
    data[NORM]["output"] = []


@pytest.mark.parametrize(
    ("change", "bucket", "rank", "status"),
    [
        (lambda data: None, "normal_aligned", 4, "normal"),
        (output_is_nan, "module_impl_mismatch", 1, "output_mismatch"),
        (output_is_scaled, "module_impl_mismatch", 1, "output_mismatch"),
        (weight_is_scaled, "internal_difference_but_output_aligned", 5, "closed_aligned"),
        (both_are_scaled, "parameter_sync_mismatch", 1, "output_mismatch"),
        (everything_is_scaled, "systemic_misalignment", 2, "output_mismatch"),
        (no_output, "insufficient_output_evidence", 3, "needs_review"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_module_is_judged_by_the_table(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], bucket: str, rank: int, status: str
) -> None:
    """The final norm, whose first input is the sum of two in the engine: the table knows input 0 alone."""

    def alike(data: dict[str, Any]) -> None:  # the first input as training has it
        train = json.loads((ENGINES / "megatron" / "step0" / "rank0" / "dump.json").read_text())["data"]
        given = next(r for n, r in train.items() if "final_layernorm" in n)["input_args"][0]
        figures = {name: given[name] for name in ("Max", "Min", "Mean", "Norm")}
        data[NORM]["input_args"][0] |= figures
        change(data)

    found = written(tmp_path / "out", ENGINES / "megatron", changed(tmp_path / "vllm", alike))
    row = next(r for r in found["output_4_module_analysis.json"]["records"] if r["rollout_key"] == NORM)
    assert (row["module_bucket"], row["module_priority_rank"], row["module_status"]) == (bucket, rank, status)
    told = next(r for r in found["output_4_module_analysis.csv"] if r["rollout_key"] == NORM)
    assert (int(told["module_priority_rank"]), told["module_status"]) == (rank, status)
    weight = [
        r["priority_bucket"]
        for r in found["output_3_value_compare.json"]["records"]
        if r["rollout_key"] == NORM and r["compare_target"] == "parameters.weight"
    ]
    assert (weight == ["parameter_mismatch_output_aligned"]) == (change is weight_is_scaled)


def test_what_is_split_on_one_side_is_no_suspect(dump: Dump, tmp_path: Path) -> None:
    """One to many and many to one; the rules flag what the comparison clears."""
    split, fused = dump(Run("hf"), "L0"), dump(Run("megatron"), "L0")
    found = written(tmp_path / "a", fused, split)
    qkv, names = next((k, v) for k, v in found["output_0_key_mapping.json"].items() if "layers.0" in k and "qkv" in k)
    assert [name.split(".")[-4] for name in names] == ["q_proj", "k_proj", "v_proj"]
    row = next(r for r in found["output_1_key_mapping.csv"] if r["train_key"] == qkv)
    assert (row["cardinality"], row["rollout_key"]) == ("1:N", ";".join(names))
    report = found["output_5_root_cause_report.json"]
    assert report["root_cause_suspects"] == []
    cleared = [(r["train_key"], r["rollout_key"]) for r in report["structural_false_positives"]]
    assert all((qkv, name) in cleared for name in names)
    back = written(tmp_path / "b", split, fused)["output_0_key_mapping.json"]
    assert {back[name] for name in names} == {qkv}


@pytest.mark.parametrize("train", ["megatron_gelu", "hf"])
def test_the_mapping_can_be_given_back(tmp_path: Path, train: str) -> None:
    written(tmp_path / "out", ENGINES / train, ENGINES / "vllm")
    before = rl_consistency.run(ENGINES / train, ENGINES / "vllm", out=tmp_path / "before")
    after = rl_consistency.run(
        ENGINES / train,
        ENGINES / "vllm",
        out=tmp_path / "after",
        mapping=tmp_path / "out" / "output_0_key_mapping.json",
    )
    assert (after.verdict, after.findings, after.unknown_names) == (before.verdict, before.findings, [])
