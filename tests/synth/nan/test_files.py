"""The files have the layout and the spelling of the real collector's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from zlib import crc32

import pytest

from numprobe.synth.nan import CI, SCENARIOS, UNIT, simulate, sized

from . import dumps

COMPLETE = {"partial": (), "missing": ()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.json"))}


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_every_file_is_json_and_holds_together(scenario: str, tmp_path: Path) -> None:
    simulate(scenario, tmp_path, seed=21, **({**COMPLETE} if scenario != "source_missing" else {}))
    for dump in tmp_path.glob("step*/*/dump.json"):
        text = dump.read_text()
        top = json.loads(text)
        assert list(top) == ["task", "level", "framework", "dump_data_dir", "data"]
        if '"nan"' not in text and '"inf"' not in text and '"-inf"' not in text:
            assert json.dumps(top, indent=1) == text  # exactly as the standard library writes it, so as the collector
        stacks = json.loads((dump.parent / "stack.json").read_text())
        construct = json.loads((dump.parent / "construct.json").read_text())
        named = [n for g in stacks.values() for n in g[0]] if "0" in stacks else list(stacks)
        forward = [n for n in top["data"] if ".forward" in n]
        assert set(forward) <= set(named)
        if top["level"] == "L1":
            assert construct == {}
            assert not any(n.startswith("Module.") for n in top["data"])
        else:
            placed = [n for n in top["data"] if ".parameters_grad." not in n]
            assert set(placed) <= set(construct)
            parents = {
                v[0] if isinstance(v, list) else v for k, v in construct.items() if k != "megatron_micro_step_number"
            }
            assert parents - {None, *construct} == set()
        if top["level"] == "L0":
            assert all(n.startswith("Module.") for n in top["data"])


def test_tensor_records_have_the_collectors_keys(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix")
    keys = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]
    records = dumps.ranks(tmp_path / "step0")[0]
    assert all(list(t) == keys for r in records.values() for t in dumps.tensors(list(r.values())))
    ids = [t for r in records.values() for t in dumps.tensors(list(r.values())) if t["dtype"] == "torch.int64"]
    assert ids
    assert all(t["Mean"] is None and isinstance(t["Max"], int) for t in ids)


def test_modules_follow_their_children(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix", risk="ALL", micro_steps=False)
    folder = tmp_path / "step0" / "rank0"
    names = list(json.loads((folder / "dump.json").read_text())["data"])
    parents = json.loads((folder / "construct.json").read_text())
    place = {name: i for i, name in enumerate(names)}
    pairs = [(n, parents[n]) for n in names if parents.get(n) in place and ".forward" in n]
    assert len(pairs) > 100
    assert all(place[child] < place[parent] for child, parent in pairs)


@pytest.mark.parametrize("scenario", ["domain_error", "zero_times_inf", "tied_weights", "bad_input_data"])
def test_every_api_call_has_a_frame_of_its_own(scenario: str, tmp_path: Path) -> None:
    simulate(scenario, tmp_path, seed=2, level="L1", risk="ALL", grouped_stacks=True, unwritten=(0, 8))
    for stack in tmp_path.glob("step0/rank[08]/stack.json"):
        for names, frames in json.loads(stack.read_text()).values():
            assert "nn/modules/module.py" not in frames[0], names
            assert "pretrain_moe.py, line 196, in forward_step" not in frames[0], names
            assert "core/optimizer/optimizer.py" not in frames[0], names


def test_group_is_named_as_the_collector_names_it(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix")
    record = dumps.ranks(tmp_path / "step0")[5]["Distributed.all_reduce.0.forward"]
    group = record["input_kwargs"]["group"]
    assert group == {"type": "torch.ProcessGroup", "group_ranks": [4, 5], "group_id": f"{crc32(b'[4, 5]'):08x}"}
    assert record["output"][-1] == group


@pytest.mark.parametrize("style", ["send", "isend", "batch"])
def test_point_to_point_styles(style: str, tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix", p2p=style, p2p_keywords=style == "isend", old_style=())
    records = dumps.ranks(tmp_path / "step0")[0]
    first = next(
        r for n, r in records.items() if n.startswith(("Distributed.send", "Distributed.isend", "Distributed.batch"))
    )
    if style == "send":
        assert first["input_args"][1] == {"type": "int", "value": 8}
        assert first["output"][0]["type"] == "torch.Tensor"
    elif style == "isend":
        assert list(first["input_kwargs"]) == ["tensor", "dst", "group"]
        assert first["output"][0] is None  # masked: the call has not completed
    else:
        op = first["input_args"][0][0]
        assert list(op) == ["class_type", "tensor", "op", "peer", "tag", "group_id"]
        assert (op["class_type"], op["op"], op["peer"]) == ("torch.distributed.P2POp", "isend", 8)


def test_placeholders_are_null_unless_the_dump_is_old(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix", old_style=(3,), p2p="isend")
    for rank, records in dumps.ranks(tmp_path / "step0").items():
        for record in dumps.collectives(records, "all_to_all_single").values():
            assert (record["input_args"][0] is None) == (rank != 3)


def test_quoted_ranks_spell_non_finite_values_as_strings(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix", risk="ALL", quoted=(2,), masks="both")
    quoted = (tmp_path / "step0" / "rank2" / "dump.json").read_text()
    bare = (tmp_path / "step0" / "rank1" / "dump.json").read_text()
    assert '"Min": "-inf"' in quoted
    assert '"Min": -Infinity' not in quoted
    assert '"Min": -Infinity' in bare
    assert '"-inf"' not in bare


def test_asynchronous_all_reduce_stands_at_its_call_and_shows_its_result(tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="mix", risk="ALL", grads="async_all_reduce", schedule="1f1b", **COMPLETE)
    data = dumps.ranks(tmp_path / "step0")
    names = list(data[15])
    (first, *_) = [n for n, r in data[15].items() if "async_op" in r.get("input_kwargs", {})]
    assert names[names.index(first) + 1 :][0].startswith(("Distributed.all_reduce", "Tensor.__mul__"))
    record = data[15][first]
    assert record["output"][0]["Norm"] > record["input_args"][0]["Norm"]  # a sum over four replicas


@pytest.mark.parametrize("risk", ["ALL", "FOCUS", "CORE"])
def test_risk_filter_keeps_call_numbers(risk: str, tmp_path: Path) -> None:
    simulate("clean", tmp_path, seed=1, level="L1", risk=risk, unwritten=tuple(range(16)))
    names = list(dumps.ranks(tmp_path / "step0")[0])
    apis = {n.rsplit(".", 2)[0] for n in names}
    assert ("Tensor.triu" in apis) == (risk == "ALL")
    assert ("Torch.empty" in apis) == (risk == "ALL")
    assert ("Functional.linear" in apis) == (risk != "CORE")
    assert "NPU.npu_grouped_matmul" in apis
    assert "NPU.npu_grouped_matmul.11.forward" in names


def test_recomputation_repeats_the_forward_bit_by_bit(tmp_path: Path) -> None:
    simulate(
        "clean",
        tmp_path,
        seed=1,
        level="mix",
        risk="ALL",
        recompute=True,
        schedule="afab",
        grouped_stacks=True,
        **COMPLETE,
    )
    records = dumps.ranks(tmp_path / "step0")[0]
    key = "Module.module.decoder.layers.1.TransformerLayer.forward"
    outputs = [dumps.statistics(records[f"{key}.{i}"]["output"][0]) for i in range(6)]
    assert outputs[:3] == outputs[3:]
    assert len(set(outputs)) == 3
    stacks = json.loads((tmp_path / "step0" / "rank0" / "stack.json").read_text())
    frames = {name: group[1] for group in stacks.values() for name in group[0]}
    assert any("in recompute_fn" in f for f in frames[f"{key}.3"])
    assert not any("in recompute_fn" in f for f in frames[f"{key}.0"])


def test_same_seed_same_bytes_other_seed_other_numbers(tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        simulate("grouped_matmul_nan", tmp_path / name, seed=seed)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_large_case(tmp_path: Path) -> None:
    # ACC-5: rank 168 of 512, below 250 MB
    truth = simulate("grouped_matmul_nan", tmp_path, size=CI)
    assert (truth.source_ranks, truth.partial, truth.missing) == ((168,), (311,), (77,))
    assert str(truth.first_op).startswith("NPU.npu_grouped_matmul.")
    assert set(truth.roles) == set(range(512))
    assert "clean" not in truth.roles.values()
    # the dirt leaves rank 168 through its expert group, and reaches other stages by sends
    assert {r for r in truth.roles if r // 128 == 1 and r % 4 == 0} == set(CI.group("ep", 168))
    instances = {r: str(d["instance"]) for r, d in truth.first_dirty.items()}
    reached = [r for r in CI.group("ep", 168) if instances[r].startswith("all_to_all_single@")]
    assert 0 < len(reached) < 32
    assert all(instances[r].startswith(("send@", "all_reduce@", "all_to_all_single@")) for r in range(256, 512))
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.json")) < 250e6
    stage = {r: dumps.ranks_of(tmp_path / "step0", r) for r in (0, 168)}
    assert all(480 <= len(records) <= 700 for records in stage.values())
    record = stage[168][str(truth.first_op)]
    assert record["input_args"][0][0]["shape"][-1] == 512


@pytest.mark.parametrize(("world", "megabytes"), [(1, 1.0), (2, 2.0), (4, 0.5)])
def test_sized(world: int, megabytes: float, tmp_path: Path) -> None:
    size = sized(world, megabytes)
    simulate("clean", tmp_path, size=size, level="mix", risk="ALL", recompute=False)
    dumped = [p.stat().st_size for p in tmp_path.glob("step0/*/dump.json")]
    assert len(dumped) == world
    assert math.isclose(sum(dumped) / world, megabytes * 1e6, rel_tol=0.35)


def test_unit_places() -> None:
    assert UNIT.place(9) == (1, 0, 1)
    assert CI.place(168) == (1, 10, 0)
    assert CI.group("tp", 168) == (168, 169, 170, 171)
    assert CI.group("ep", 168) == tuple(range(128, 256, 4))
    assert len(CI.group("pp", 168)) == 4
