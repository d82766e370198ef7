"""Every real dump opens, and says what the standard library reads in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from numprobe.formats.dump import RankDump, open_dump
from numprobe.formats.msprobe.structure import read_construct, read_stacks
from numprobe.record.nonfinite import Kinds
from numprobe.record.trace import RunInfo

from .written import GLOO, INTEROP, Layout, dump

FILES = sorted(p for root in (INTEROP, GLOO) for name in ("dump.json", "debug.json") for p in root.rglob(name))
NAN, POS, NEG, MAYBE = 1, 2, 4, 8


def rank_of(folder: Path, step: int = 0, rank: int = 0) -> RankDump:
    handle = open_dump(folder, use_cache=False)
    return handle.rank(handle.steps[step].ranks[rank])


def bits(item: Any) -> int:
    """Non-finite kinds below a part of a record, by a walk of its own."""
    if isinstance(item, list):
        return _union(map(bits, item))
    if not isinstance(item, dict):
        return 0
    if "Max" not in item:
        return _union(map(bits, item.values()))
    found = 0
    for figure in (item["Max"], item["Min"]):
        if isinstance(figure, float) and not math.isfinite(figure):
            found |= NAN if math.isnan(figure) else POS if figure > 0 else NEG
    return found | MAYBE if found == POS | NEG else found


def _union(parts: Any) -> int:
    found = 0
    for part in parts:
        found |= part
    return found


def columns(name: str, record: Any) -> tuple[int, int, int]:
    if ".parameters_grad." in name or name.endswith(".debug"):
        return 0, bits(record), 0
    inputs = [record.get(key) for key in ("input_args", "input_kwargs", "input")]
    return bits(inputs), bits(record.get("output")), bits(record.get("parameters"))


def test_there_are_as_many_files_as_there_should_be():
    assert len(FILES) >= 121
    assert sum(p.name == "debug.json" for p in FILES) == 3


@pytest.mark.parametrize("file", FILES, ids=[str(p.relative_to(INTEROP.parent).parent) for p in FILES])
def test_index_of_every_file(file: Path):
    content = file.read_bytes()
    whole = json.loads(content)
    index = rank_of(file).index
    assert index.status == "ok"
    assert index.info == RunInfo(whole["framework"], whole["task"], whole["level"])
    assert index.names == list(whole["data"])
    flags = list(zip(index.input.tolist(), index.output.tolist(), index.parameter.tolist(), strict=True))
    assert flags == [columns(name, record) for name, record in whole["data"].items()]
    for record, start, end in zip(whole["data"].values(), index.start.tolist(), index.end.tolist(), strict=True):
        assert json.dumps(json.loads(content[start:end])) == json.dumps(record)
    assert index.has_extrema == (b'"Max": ' in content.replace(b'"Max": null', b""))


@pytest.mark.parametrize("file", FILES, ids=[str(p.relative_to(INTEROP.parent).parent) for p in FILES])
def test_records_of_every_file_agree_with_their_flags(file: Path):
    rank = rank_of(file)
    stored = Kinds.NAN | Kinds.POS_INF | Kinds.NEG_INF
    for record in rank.records(range(len(rank.index))):
        i = record.op_index
        assert record.name.name == rank.index.names[i]
        assert int(record.kinds("input") & stored) == rank.index.input[i] & int(stored)
        assert int(record.kinds("parameter") & stored) == rank.index.parameter[i] & int(stored)


def test_steps_and_ranks_of_real_folders():
    def seen(folder: str) -> list[tuple[int | None, list[str]]]:
        return [(s.step, [r.key for r in s.ranks]) for s in open_dump(INTEROP / folder, use_cache=False).steps]

    assert seen("pytorch/a_statistics_mix_2steps") == [(0, ["proc1000"]), (1, ["proc1000"])]
    assert seen("pytorch/h_distributed_4rank_nan") == [(0, ["rank0", "rank1", "rank2", "rank3"])]
    assert seen("pytorch/h_distributed_4rank_nan/dump/step0/rank2") == [(0, ["rank2"])]
    assert seen("pytorch/h_distributed_4rank_nan/dump/step0/rank2/dump.json") == [(0, ["rank2"])]
    assert seen("mindspore/mix_statistics/step0/proc100") == [(0, ["proc100"])]
    assert seen("engines/megatron_tp2") == [(0, ["rank0", "rank1"])]


def test_figures_of_a_pytorch_record():
    rank = rank_of(INTEROP / "pytorch/h_distributed_4rank_nan", rank=2)
    at = rank.find("Torch.log.0.forward")
    assert at == 19
    record = rank.record(at)
    given, made = record.values
    assert (given.role, given.path, given.value_type, given.dtype) == (
        "input",
        "input_args.0",
        "torch.Tensor",
        "torch.float32",
    )
    assert given.shape == (2, 8, 16)
    assert given.numel == 256
    assert (given.max, given.min) == (-98.77692413330078, -100.27826690673828)
    assert (given.mean, given.norm) == (-99.9018325805664, 1598.438232421875)
    assert (given.kinds, made.kinds) == (Kinds.CLEAN, Kinds.NAN)
    assert record.kinds("input", "output") == Kinds.NAN
    assert rank.tree.chain("Torch.log.0.forward")[:3] == [
        "Torch.log.0.forward",
        "Module.blocks.1.mlp.ShardedMLP.forward.0",
        "Module.blocks.1.Block.forward.0",
    ]
    assert rank.stacks["Torch.log.0.forward"][0].startswith("File /workspace/run_dist.py, line 24, in forward")
    assert rank.find("Torch.log.99.forward") is None


def test_figures_of_a_mindspore_record():
    rank = rank_of(INTEROP / "mindspore/mix_md5")
    assert rank.index.info == RunInfo("mindspore", "statistics", "mix")
    at = rank.find("Primitive.matmul.MatMul.0.forward")
    assert at == 1
    x, weight, y = rank.record(at).values
    assert [v.shape for v in (x, weight, y)] == [(4, 8), (6, 8), (4, 6)]
    assert [v.attributes for v in (x, weight, y)] == [{"md5": "4393fff7"}, {"md5": "f1ae0f22"}, {"md5": "ab7bf1e6"}]
    assert (y.max, y.min, y.mean, y.norm) == (
        0.9932428598403931,
        -1.1096166372299194,
        -0.06212596967816353,
        2.5802340507507324,
    )
    assert rank.tree.parents["Primitive.matmul.MatMul.0.forward"] == "Cell.fc1.Dense.forward.0"


def test_integers_nulls_and_digests():
    ids, table, padding = rank_of(INTEROP / "pytorch/c_statistics_L1_md5").record(0).values[:3]
    assert (ids.dtype, ids.max, ids.min, ids.mean, ids.norm) == ("torch.int64", 57, 3, None, None)
    assert ids.present == {"max", "min", "mean", "norm"}  # null is said, not absent
    assert ids.attributes == {"md5": "c63cfc29"}
    assert table.norm == 46.73372268676758
    assert (padding.value_type, padding.scalar, padding.is_tensor) == ("null", None, False)


def test_debug_entries():
    rank = rank_of(INTEROP / "mindspore/debug")
    assert rank.index.info.level == "debug"
    assert rank.index.names[:2] == ["a.0.debug", "a_grad.0.debug"]
    (value,) = rank.record(0).values
    assert (value.role, value.shape, value.max, value.norm) == ("debug", (2, 3), 5.0, 7.416198253631592)
    assert value.attributes == {"data_name": "a.0.debug.npy"}


def test_a_structure_dump_has_no_records():
    rank = rank_of(INTEROP / "pytorch/g_structure_mix")
    assert (len(rank.index), rank.index.has_extrema, rank.index.damage) == (0, False, None)
    assert rank.index.info.task == "structure"
    assert rank.tree.present
    assert len(rank.stacks) == 274


def test_xor_dumps_have_digests_only(tmp_path: Path):
    digest = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "md5": "0x3f8000003f800000"}
    (tmp_path / "dump.json").write_bytes(Layout().write(dump({"Torch.add.0.forward": {"output": [digest]}})))
    rank = rank_of(tmp_path)
    assert not rank.index.has_extrema
    (value,) = rank.record(0).values
    assert (value.kinds, value.is_tensor, value.present) == (Kinds.UNKNOWN, True, frozenset())
    assert value.attributes == {"md5": "0x3f8000003f800000"}


def test_communication_keeps_its_peers_and_scalars(tmp_path: Path):
    stat = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0}
    p2p = {"class_type": "torch.distributed.P2POp", "tensor": stat, "op": "isend", "peer": 1, "tag": 0, "group_id": "x"}
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"}
    record = {
        "input_args": [[p2p], {"type": "float", "value": float("-inf")}],
        "input_kwargs": {"group": group},
        "output": [],
    }
    (tmp_path / "dump.json").write_bytes(Layout().write(dump({"Distributed.batch_isend_irecv.0.forward": record})))
    operation, tensor, fill, ranks = rank_of(tmp_path).record(0).values
    assert operation.value_type == "torch.distributed.P2POp"
    assert [operation.attributes[k] for k in ("op", "peer", "tag")] == ["isend", 1, 0]
    assert (tensor.path, tensor.max) == ("input_args.0.0.tensor", 1.0)
    assert (fill.value_type, fill.scalar, fill.kinds) == ("float", -math.inf, Kinds.CLEAN)
    assert (ranks.path, ranks.attributes["group_ranks"]) == ("input_kwargs.group", [0, 1])


def test_both_layouts_of_stacks(tmp_path: Path):
    new = tmp_path / "new.json"
    new.write_text('{"0": [["a", "b"], ["File x.py, line 1"]], "1": [["c"], []], "2": ["odd"], "3": 7}')
    assert read_stacks(new) == {"a": ["File x.py, line 1"], "b": ["File x.py, line 1"], "c": []}
    old = tmp_path / "old.json"
    old.write_text('{"a": ["File x.py, line 1", "File y.py, line 2"], "b": ["only one"]}')
    assert read_stacks(old) == {"a": ["File x.py, line 1", "File y.py, line 2"], "b": ["only one"]}


def test_construct_with_lists_and_micro_steps(tmp_path: Path):
    file = tmp_path / "construct.json"
    file.write_text(
        '{"megatron_micro_step_number": 4, "a": ["m", 0], "b": ["m", 3], "m": [null, 3], "optimizer": null, "c": "m"}'
    )
    tree = read_construct(file)
    assert tree.parents == {"a": "m", "b": "m", "m": None, "optimizer": None, "c": "m"}
    assert tree.micro_step == {"a": 0, "b": 3, "m": 3}
    assert tree.chain("a") == ["a", "m"]
