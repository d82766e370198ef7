"""Names of records, parsed from the right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.record.names import OpName, module_key, parse_name


def parts(name: str) -> tuple[str, str, str, str, str, int]:
    op = parse_name(name)
    return op.kind, op.prefix, op.api, op.path, op.direction, op.call


@pytest.mark.parametrize(
    ("name", "prefix", "api", "direction", "call"),
    [
        ("Distributed.all_reduce.0.forward", "Distributed", "all_reduce", "forward", 0),
        ("Tensor.__add__.12.backward", "Tensor", "__add__", "backward", 12),
        ("Functional.linear.3.forward", "Functional", "linear", "forward", 3),
        ("Torch.norm.0.forward", "Torch", "norm", "forward", 0),
        ("NPU.npu_grouped_matmul.7.forward", "NPU", "npu_grouped_matmul", "forward", 7),
        ("Primitive.matmul.MatMul.0.forward", "Primitive", "matmul.MatMul", "forward", 0),  # MindSpore: five parts
        ("MintFunctional.linear.1.backward", "MintFunctional", "linear", "backward", 1),
        ("MintDistributed.all_reduce.1.forward", "MintDistributed", "all_reduce", "forward", 1),
        ("my.kernels.fused.rope.2.forward", "my", "kernels.fused.rope", "forward", 2),
        ("Triton._fwd_kernel.0.forward", "Triton", "_fwd_kernel", "forward", 0),
        ("算子.加.0.forward", "算子", "加", "forward", 0),
        ('Torch.a"b\\c.0.forward', "Torch", 'a"b\\c', "forward", 0),
        ("Torch. .0.forward", "Torch", " ", "forward", 0),
        ("odd.0.forward", "odd", "odd", "forward", 0),
    ],
)
def test_apis(name: str, prefix: str, api: str, direction: str, call: int):
    assert parts(name) == ("api", prefix, api, "", direction, call)
    assert parse_name(name).layer is None
    assert not parse_name(name).is_module


@pytest.mark.parametrize(
    ("name", "kind", "path", "cls", "direction", "call", "layer"),
    [
        (
            "Module.model.layers.0.mlp.act_fn.AscendSiluAndMul.forward.0",
            *("module", "model.layers.0.mlp.act_fn", "AscendSiluAndMul", "forward", 0, 0),
        ),
        (
            "Module.layers.0.norm.LayerNorm.parameters_grad.0",
            *("parameters_grad", "layers.0.norm", "LayerNorm", "backward", 0, 0),
        ),
        ("Cell.network.backbone.0.Dense.forward.3", "module", "network.backbone.0", "Dense", "forward", 3, None),
        ("Module.module.0.l1.Linear.forward.0", "module", "module.0.l1", "Linear", "forward", 0, None),  # DDP
        ("Module.blocks.11.FSDPBlock.backward.2", "module", "blocks.11", "FSDPBlock", "backward", 2, 11),  # FSDP2
        (
            "Module.0.decoder.layers.3.TransformerLayer.forward.1",
            *("module", "0.decoder.layers.3"),
            *("TransformerLayer", "forward", 1, 3),
        ),
        ("Module.h.2.x.layers.5.Inner.forward.0", "module", "h.2.x.layers.5", "Inner", "forward", 0, 5),  # innermost
        ("Module.Net.forward.0", "module", "", "Net", "forward", 0, None),
        ("Module.层.layers.7.线性.Линейный.forward.0", "module", "层.layers.7.线性", "Линейный", "forward", 0, 7),
        ("Module.alayers.1.X.forward.0", "module", "alayers.1", "X", "forward", 0, None),
    ],
)
def test_modules(name: str, kind: str, path: str, cls: str, direction: str, call: int, layer: int | None):
    op = parse_name(name)
    assert (op.kind, op.path, op.api, op.direction, op.call) == (kind, path, cls, direction, call)
    assert op.prefix == name.split(".")[0]
    assert op.layer == layer
    assert op.is_module


def test_debug_entries():
    assert parts("loss.0.debug") == ("debug", "", "loss", "", "", 0)
    assert parts("attn.probs_grad.3.debug") == ("debug", "", "attn.probs_grad", "", "", 3)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "forward", "Torch.log", "Torch.log.forward", "Torch.log.x.forward", "Module.forward.0"),
        *(
            "Distributed.all_reduce_0_0",
            "Torch.log.0.forward.rank1",
            "Module.a.B.forward.0_rank3",
            "Torch.log.0.sideways",
        ),
        *("Torch.log.².forward", "Torch.log.-1.forward", "Torch.log." + "9" * 5000 + ".forward"),
    ],
)
def test_names_of_no_known_form_are_kept_whole(name: str):
    assert parts(name) == ("other", "", name, "", "", -1)


def test_records_of_one_module_share_a_key():
    names = ("Module.a.b.Linear.forward.0", "Module.a.b.Linear.backward.0", "Module.a.b.Linear.parameters_grad.1")
    assert {module_key(parse_name(name)) for name in names} == {"a.b.Linear"}
    assert module_key(parse_name("Module.Net.forward.0")) == "Net"


words = st.sampled_from(("forward", "backward", "parameters_grad", "debug", "Module", "Cell", "0", "layers", "12"))


@given(st.lists(words | st.text(max_size=4), max_size=7).map(".".join))
def test_parsing_never_fails_and_loses_nothing(name: str):
    op = parse_name(name)
    assert op.name == name
    assert rebuilt(op) == name
    assert op.layer is None or op.layer >= 0


def rebuilt(op: OpName) -> str:
    """The name from its parts; leading zeros of the counter and a doubled prefix are read off the name itself."""
    counter = next((p for p in reversed(op.name.split(".")) if p.isdecimal()), "")
    if op.kind == "api":
        one = op.prefix == op.api and op.name.count(".") == 2
        return ".".join([op.prefix, *([] if one else [op.api]), counter, op.direction])
    if op.kind == "debug":
        return f"{op.api}.{counter}.debug"
    if op.is_module:
        word = "parameters_grad" if op.kind == "parameters_grad" else op.direction
        return ".".join([op.prefix, *([op.path] if op.name.count(".") > 3 else []), op.api, word, counter])
    return op.api
