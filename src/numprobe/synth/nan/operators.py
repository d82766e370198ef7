"""The operators of the simulated model: which API each role calls, what it computes, and how its gradient arises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numprobe.synth.nan import gradients, optimizer, rules
from numprobe.synth.nan.rules import Options, Rule


@dataclass(frozen=True)
class Grad:
    """How the gradient of input ``of`` arises: multiplied with the saved inputs ``using`` (-1: the output)."""

    of: int = 0
    using: tuple[int, ...] = ()
    rule: Rule = gradients.gradient
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """``api`` is the record's name without call number and direction; empty: nothing records it.

    ``shows`` lists what the backward record has as outputs: indices of inputs, ``view`` for the incoming gradient as the last
    autograd node of a 3-D linear hands it on, ``nll`` for that of the log-softmax inside a cross entropy. None: the gradients
    of all inputs. An empty tuple: no backward record, as after an operation in place on the result.
    """

    api: str
    rule: Rule
    grads: tuple[Grad, ...] = ()
    shows: tuple[int | str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_WEIGHT = {"contracts": True, "weight": True}
_ROWS = {"rows": True}
_BY_WEIGHT = (Grad(0, (1,), options={"contracts": True, "rows": True}), Grad(1, (0,), options=_WEIGHT))
_NORM = (Grad(0, (0, 1)), Grad(1, (0,), options=_WEIGHT))
_PASS = (Grad(),)
_RESHAPED = (Grad(rule=gradients.reshaped),)


def _linear(*shows: int | str) -> Operator:
    return Operator("Functional.linear", rules.matmul, _BY_WEIGHT, shows, {"width_of": 0})


def _grouped() -> Operator:
    return Operator("NPU.npu_grouped_matmul", rules.matmul, _BY_WEIGHT, (0, 1), {"width_of": -1})


OPERATORS: dict[str, Operator] = {
    # embedding, norms, projections
    "embed": Operator("Functional.embedding", rules.looked_up, (Grad(1),)),
    "features": Operator("Tensor.__add__", rules.added, (Grad(0), Grad(1))),
    "rope_scale": Operator("Tensor.__mul__", rules.multiplied, (Grad(0, (1,)),)),
    "layer_norm": Operator("Functional.layer_norm", rules.normalised, _NORM),
    "norm_lean": Operator("Functional.layer_norm", rules.normalised, _NORM, (0,)),
    "npu_rms_norm": Operator("NPU.npu_rms_norm", rules.normalised, _NORM),
    "qkv": _linear("view"),
    "proj": _linear("view"),
    "head": _linear("view"),
    "adapter": _linear("view"),
    "adapter_again": _linear("view"),
    "router": _linear(0, 1),
    # attention
    "chunk": Operator("Tensor.chunk", rules.scaled, (Grad(),), options={"by": 1.0}),
    "attention": Operator("NPU.npu_fusion_attention", rules.attention, (Grad(0, (0,)),), (0, 0, 0)),
    "attention_lean": Operator("NPU.npu_fusion_attention", rules.attention, (Grad(0, (0,)),)),
    "fc1": _linear("view"),
    "fc2": _linear("view"),
    "residual1": Operator("Tensor.__add__", rules.added, (Grad(0), Grad(1))),
    "residual2": Operator("Tensor.__add__", rules.added, (Grad(0), Grad(1))),
    "residual_in_place": Operator("Tensor.__iadd__", rules.added, (Grad(0), Grad(1)), ()),
    # attention masks
    "mask_full": Operator("Torch.full", rules.made),
    "mask_triu": Operator("Tensor.triu", rules.infinite_triangle),
    "mask_scores": Operator("Tensor.masked_fill", rules.masked_fill),
    "mask_softmax": Operator("Functional.softmax", rules.softmax),
    "mask_minimum": Operator("Tensor.masked_fill", rules.masked_fill, options={"finite": True}),
    # mixture of experts
    "flatten": Operator("", rules.flattened, _RESHAPED),
    "unflatten": Operator("", rules.same, _RESHAPED),
    "router_mask": Operator("Tensor.masked_fill", rules.masked_fill, _PASS),
    "router_topk": Operator("Torch.topk", rules.top_values, _PASS, options={"width": 2}),
    "router_softmax": Operator("Functional.softmax", rules.softmax, (Grad(0, (-1,)),)),
    "permute": Operator("", rules.permuted, _RESHAPED),
    "gmm1": _grouped(),
    "swiglu": Operator("NPU.npu_swiglu", rules.gated, (Grad(0, (0,), options=_ROWS),)),
    "gmm2": _grouped(),
    "grouped_lean": Operator("NPU.npu_grouped_matmul", rules.matmul, _BY_WEIGHT, (0,), {"width_of": -1}),
    "weigh": Operator("Tensor.__mul__", rules.multiplied, (Grad(0, (1,), options=_ROWS), Grad(1, (0,)))),
    # operators with a domain
    "gate_abs": Operator("Tensor.abs", rules.magnitude, _PASS),
    "gate_log": Operator("Torch.log", rules.logarithm, (Grad(rule=gradients.of_log),)),
    "gate_where": Operator("Torch.where", rules.selected, (Grad(1),)),
    "gate_add": Operator("Tensor.__add__", rules.added, (Grad(0), Grad(1))),
    "spread_sub": Operator("Tensor.__sub__", rules.difference),
    "spread_sqrt": Operator("Tensor.sqrt", rules.square_root),
    "spread_log": Operator("Torch.log", rules.logarithm),
    "spread_div": Operator("Tensor.__truediv__", rules.divided),
    "spread_mul": Operator("Tensor.__mul__", rules.multiplied, (Grad(0, (1,)),)),
    "ratio_div": Operator("Tensor.__truediv__", rules.divided, options={"harmless": True}),
    "ratio_where": Operator("Torch.where", rules.selected),
    # buffers
    "allocate": Operator("Torch.empty", rules.same),
    "allocate_like": Operator("Torch.empty_like", rules.same),
    "allocate_new": Operator("Tensor.new_empty", rules.same),
    "buffer_clone": Operator("Tensor.clone", rules.same),
    "buffer_detach": Operator("Tensor.detach", rules.same),
    "buffer_to": Operator("Tensor.to", rules.cast, options={"dtype": "fp32"}),
    "buffer_use": Operator("Tensor.__add__", rules.added, _PASS),
    # loss
    "logits_float": Operator("Tensor.float", rules.cast, _PASS, options={"dtype": "fp32"}),
    "loss": Operator("Functional.cross_entropy", rules.cross_entropy, (Grad(0, (0,)),), ("nll",)),
    "loss_mask": Operator("Tensor.__mul__", rules.mask_product, (Grad(0, (1,), gradients.through_mask),)),
    "loss_sum": Operator("Tensor.sum", rules.summed, (Grad(rule=gradients.broadcast),)),
    "loss_tokens": Operator("Tensor.sum", rules.summed),
    "loss_mean": Operator("Tensor.__truediv__", rules.divided, (Grad(0, (1,), gradients.of_quotient),)),
    "loss_scale": Operator("Tensor.__mul__", rules.scaled, _PASS),
    # optimizer
    "grad_norm": Operator("Torch.norm", optimizer.norm_of),
    "grad_norm_root": Operator("Tensor.sqrt", rules.square_root),
    "clip": Operator("Tensor.mul_", optimizer.clipped),
    "param_mul": Operator("Tensor.mul_", rules.scaled, options={"by": 0.99999}),
    "first_moment": Operator("Tensor.lerp_", rules.added),
    "second_moment": Operator("Tensor.addcmul_", optimizer.second_moment),
    "root": Operator("Tensor.sqrt", rules.square_root),
    "param_add": Operator("Tensor.addcdiv_", optimizer.stepped),
}
