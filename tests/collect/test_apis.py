"""The names of what is recorded."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from numprobe.collect.pytorch import apis


def test_the_tables_have_as_many_names_as_the_reference():
    tables = apis._tables()
    assert [(g["prefix"], len(set(g["names"]))) for g in tables["wrapped"]] == [
        ("Functional", 126),
        ("Tensor", 491),
        ("Torch", 506),
        ("VF", 1),
        ("Distributed", 18),
        ("Distributed", 2),
        ("MindSpeed", 17),
        ("NPU", 235),
    ]
    assert len(apis.low_apis()) == 83
    assert {name: len(group["names"]) for name, group in tables["random"].items()} == {
        "python_random": 20,
        "numpy_random": 47,
        "torch_random": 11,
        "tensor_random": 9,
    }


def test_core():
    assert {"matmul", "multi_dot", "vecdot", "layer_norm", "_fused_adamw_"} <= apis.core_apis(compat=True)
    assert apis.core_apis() - apis.core_apis(compat=True) == {"linear", "chain_matmul"}
    assert not apis.core_apis() & apis.low_apis()


def test_every_name_listed_is_there():
    torch = pytest.importorskip("torch")
    found = apis.wrapped_apis()
    for one in found:
        assert callable(getattr(apis.resolve(one.owner), one.attribute))
    assert len(found) == len(set(found)) > 1000
    assert apis.Api("Torch", "torch.linalg", "norm") in found
    assert apis.Api("Distributed", "torch.distributed", "all_reduce") in found
    assert apis.Api("Distributed", "torch.distributed.distributed_c10d", "all_reduce") in found
    assert apis.resolve("torch.Tensor") is torch.Tensor
    assert apis.resolve("torch.linalg") is torch.linalg
    assert apis.resolve("torch.no.such") is None


def test_what_the_reference_leaves_alone_is_left_alone():
    pytest.importorskip("torch")
    of_tensor = {one.attribute for one in apis.wrapped_apis() if one.prefix == "Tensor"}
    assert not of_tensor & {"__getitem__", "view", "contiguous", "item", "detach", "copy_", "zero_", "cpu", "cuda"}
    of_torch = {one.attribute for one in apis.wrapped_apis() if one.prefix == "Torch"}
    assert not of_torch & {"zeros", "ones", "empty", "randn"}


def test_packages_of_vendors_count_when_the_program_has_imported_them(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    assert not [one for one in apis.wrapped_apis() if one.prefix in ("NPU", "MindSpeed")]
    npu, distributed = ModuleType("torch_npu"), ModuleType("torch_npu.distributed")
    npu.npu_rms_norm = npu.not_listed = distributed.isend = lambda: None  # type: ignore[attr-defined]
    ops, ffn = ModuleType("mindspeed.ops"), ModuleType("mindspeed.ops.ffn")
    ffn.npu_ffn = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    monkeypatch.setitem(sys.modules, "torch_npu.distributed", distributed)
    monkeypatch.setitem(sys.modules, "mindspeed", ModuleType("mindspeed"))
    monkeypatch.setitem(sys.modules, "mindspeed.ops", ops)
    monkeypatch.setitem(sys.modules, "mindspeed.ops.ffn", ffn)
    assert [one for one in apis.wrapped_apis() if not one.owner.startswith("torch.") and one.owner != "torch"] == [
        apis.Api("Distributed", "torch_npu.distributed", "isend"),
        apis.Api("MindSpeed", "mindspeed.ops.ffn", "npu_ffn"),
        apis.Api("NPU", "torch_npu", "npu_rms_norm"),
    ]


def test_masks():
    masks = apis.ignored_arguments()
    assert masks["Distributed.irecv"] == apis.Mask(frozenset({0, "tensor"}), frozenset())
    assert masks["Distributed.gather"].inputs == {1}
    assert masks["Distributed.isend"] == apis.Mask(frozenset(), frozenset({0}))
    assert masks["NPU.npu_fusion_attention"].outputs == {4, 5}
    assert len(masks) == 14
    assert "Distributed.all_reduce" not in masks
