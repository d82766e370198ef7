"""Call stacks as the collector writes them: innermost first, PyTorch's plumbing between the frames of the training code."""

from __future__ import annotations

import json

_ROOT = "/opt/train"
_TORCH = "/usr/lib/python3/dist-packages/torch"
_CORE = f"{_ROOT}/megatron/core"

_CALL = (
    f"File {_TORCH}/nn/modules/module.py, line 1784, in _call_impl, \n return forward_call(*args, **kwargs)",
    f"File {_TORCH}/nn/modules/module.py, line 1773, in _wrapped_call_impl, \n return self._call_impl(*args, **kwargs)",
)
_CHECKPOINT = (
    f"File {_TORCH}/utils/checkpoint.py, line 1399, in recompute_fn, \n fn(*args, **kwargs)",
    f"File {_TORCH}/utils/checkpoint.py, line 1100, in unpack_hook, \n frame.recompute_fn(*args)",
    f"File {_TORCH}/autograd/graph.py, line 823, in _engine_run_backward, \n return Variable._execution_engine.run_backward(",
    f"File {_TORCH}/autograd/__init__.py, line 347, in backward, \n _engine_run_backward(",
    f"File {_CORE}/pipeline_parallel/schedules.py, line 389, in backward_step, \n torch.autograd.backward(output_tensor[0], output_tensor_grad[0])",
)
_STEP = (
    f"File {_ROOT}/megatron/training/training.py, line 734, in train_step, \n losses_reduced = forward_backward_func(",
    f"File {_ROOT}/pretrain_moe.py, line 218, in <module>, \n pretrain(train_valid_test_datasets_provider, model_provider, forward_step)",
)


def _frame(file: str, line: int, function: str, code: str) -> str:
    return f"File {file}, line {line}, in {function}, \n {code}"


_MOE = f"{_CORE}/transformer/moe"
_ATTENTION = f"{_CORE}/transformer/attention.py"
_LAYER = f"{_CORE}/transformer/transformer_layer.py"
_LINEAR = f"{_CORE}/tensor_parallel/layers.py"
_SCHEDULE = f"{_CORE}/pipeline_parallel/schedules.py"
_P2P = f"{_CORE}/pipeline_parallel/p2p_communication.py"
_OPTIMIZER = f"{_CORE}/optimizer/optimizer.py"

# role of an operator -> the frames above it that are its own
_ROLES: dict[str, tuple[str, ...]] = {
    "embed": (_frame(_LINEAR, 241, "forward", "output_parallel = F.embedding(masked_input, self.weight)"),),
    "embed_reduce": (
        _frame(
            f"{_CORE}/tensor_parallel/mappings.py", 24, "_reduce", "torch.distributed.all_reduce(input_, group=group)"
        ),
        _frame(_LINEAR, 249, "forward", "output = reduce_from_tensor_model_parallel_region(output_parallel)"),
    ),
    "features": (
        _frame(f"{_CORE}/models/gpt/gpt_model.py", 231, "forward", "decoder_input = decoder_input + features"),
    ),
    "norm1": (
        _frame(
            f"{_CORE}/fusions/fused_layer_norm.py",
            149,
            "forward",
            "return F.layer_norm(input, self.hidden_size, self.weight, self.bias, self.eps)",
        ),
    ),
    "norm2": (
        _frame(
            f"{_CORE}/fusions/fused_layer_norm.py",
            149,
            "forward",
            "return F.layer_norm(input, self.hidden_size, self.weight, self.bias, self.eps)",
        ),
    ),
    "final_norm": (
        _frame(
            f"{_CORE}/fusions/fused_layer_norm.py",
            149,
            "forward",
            "return F.layer_norm(input, self.hidden_size, self.weight, self.bias, self.eps)",
        ),
    ),
    "qkv": (_frame(_LINEAR, 402, "forward", "output = F.linear(total_input, weight, bias)"),),
    "proj": (_frame(_LINEAR, 402, "forward", "output = F.linear(total_input, weight, bias)"),),
    "head": (_frame(_LINEAR, 402, "forward", "output = F.linear(total_input, weight, bias)"),),
    "adapter": (_frame(f"{_CORE}/models/gpt/gpt_model.py", 187, "forward", "return F.linear(hidden, self.weight)"),),
    "proj_reduce": (
        _frame(
            f"{_CORE}/tensor_parallel/mappings.py", 24, "_reduce", "torch.distributed.all_reduce(input_, group=group)"
        ),
        _frame(_LINEAR, 1184, "forward", "output_ = reduce_from_tensor_model_parallel_region(output_parallel)"),
    ),
    "qkv_grad_reduce": (
        _frame(
            f"{_CORE}/tensor_parallel/layers.py",
            468,
            "backward",
            "handle = torch.distributed.all_reduce(grad_input, group=group)",
        ),
        _frame(f"{_TORCH}/autograd/function.py", 307, "apply", "return user_fn(self, *args)"),
    ),
    "chunk": (
        _frame(_ATTENTION, 611, "get_query_key_value_tensors", "query, key, value = mixed_qkv.chunk(3, dim=-1)"),
    ),
    "attention": (
        _frame(
            f"{_CORE}/transformer/dot_product_attention.py", 171, "forward", "output = torch_npu.npu_fusion_attention("
        ),
    ),
    "mask_full": (
        _frame(
            f"{_ROOT}/model/mask.py",
            18,
            "causal_mask",
            "full = torch.full((length, length), float('-inf'), dtype=torch.float32)",
        ),
    ),
    "mask_triu": (_frame(f"{_ROOT}/model/mask.py", 19, "causal_mask", "return full.triu(diagonal=1)"),),
    "mask_minimum": (
        _frame(
            f"{_ROOT}/model/mask.py",
            31,
            "additive_mask",
            "return zeros.masked_fill(hidden, torch.finfo(zeros.dtype).min)",
        ),
    ),
    "mask_scores": (
        _frame(f"{_ROOT}/model/mask.py", 42, "padding_bias", "bias = bias.masked_fill(padding, float('-inf'))"),
    ),
    "mask_softmax": (_frame(f"{_ROOT}/model/mask.py", 47, "prior", "return F.softmax(bias, dim=-1)"),),
    "router": (_frame(f"{_MOE}/router.py", 74, "gating", "logits = F.linear(input, self.weight)"),),
    "router_mask": (
        _frame(
            f"{_MOE}/moe_utils.py", 431, "group_limited_topk", "masked = logits.masked_fill(~group_mask, float('-inf'))"
        ),
    ),
    "router_topk": (
        _frame(
            f"{_MOE}/moe_utils.py", 433, "group_limited_topk", "scores, top_indices = torch.topk(masked, k=topk, dim=1)"
        ),
    ),
    "router_softmax": (_frame(f"{_MOE}/moe_utils.py", 438, "topk_softmax", "probs = F.softmax(scores, dim=-1)"),),
    "dispatch": (
        _frame(f"{_CORE}/tensor_parallel/mappings.py", 421, "forward", "torch.distributed.all_to_all_single("),
        _frame(
            f"{_MOE}/token_dispatcher.py",
            512,
            "token_permutation",
            "tokens = all_to_all(self.ep_group, permuted, output_splits, input_splits)",
        ),
        _frame(
            f"{_MOE}/moe_layer.py",
            183,
            "forward",
            "dispatched_input, tokens_per_expert = self.token_dispatcher.token_permutation(hidden, probs)",
        ),
    ),
    "combine": (
        _frame(f"{_CORE}/tensor_parallel/mappings.py", 421, "forward", "torch.distributed.all_to_all_single("),
        _frame(
            f"{_MOE}/token_dispatcher.py",
            587,
            "token_unpermutation",
            "output = all_to_all(self.ep_group, hidden, input_splits, output_splits)",
        ),
        _frame(
            f"{_MOE}/moe_layer.py",
            212,
            "forward",
            "output, mlp_bias = self.token_dispatcher.token_unpermutation(expert_output, bias)",
        ),
    ),
    "gmm1": (
        _frame(
            f"{_MOE}/experts.py",
            240,
            "forward",
            "fc1_output = npu_grouped_matmul(hidden, w1, group_list=tokens_per_expert)",
        ),
    ),
    "swiglu": (
        _frame(f"{_MOE}/experts.py", 244, "forward", "intermediate = torch_npu.npu_swiglu(fc1_output, dim=-1)"),
    ),
    "gmm2": (
        _frame(
            f"{_MOE}/experts.py",
            247,
            "forward",
            "fc2_output = npu_grouped_matmul(intermediate, w2, group_list=tokens_per_expert)",
        ),
    ),
    "weigh": (_frame(f"{_MOE}/token_dispatcher.py", 592, "token_unpermutation", "output = unpermuted * probs"),),
    "residual1": (_frame(_LAYER, 318, "forward", "hidden_states = residual + attention_output"),),
    "residual2": (_frame(_LAYER, 352, "forward", "output = residual + mlp_output"),),
    "gate_clamp": (_frame(f"{_ROOT}/model/gate.py", 21, "forward", "positive = x.clamp_min(0)"),),
    "gate_log": (_frame(f"{_ROOT}/model/gate.py", 22, "forward", "logs = torch.log(positive)"),),
    "gate_where": (_frame(f"{_ROOT}/model/gate.py", 23, "forward", "return torch.where(positive > 0, logs, zeros)"),),
    "spread_sub": (_frame(f"{_ROOT}/model/spread.py", 34, "forward", "variance = mean_square - mean * mean"),),
    "spread_op": (_frame(f"{_ROOT}/model/spread.py", 35, "forward", "scale = self.transform(variance)"),),
    "spread_mul": (_frame(f"{_ROOT}/model/spread.py", 36, "forward", "return x * scale"),),
    "ratio_div": (_frame(f"{_ROOT}/model/statistics.py", 52, "load_balance", "ratio = routed / capacity"),),
    "ratio_where": (
        _frame(f"{_ROOT}/model/statistics.py", 53, "load_balance", "ratio = torch.where(capacity > 0, ratio, zeros)"),
    ),
    "allocate": (
        _frame(f"{_MOE}/buffers.py", 27, "acquire", "buffer = torch.empty(shape, dtype=dtype, device=device)"),
    ),
    "allocate_like": (_frame(f"{_MOE}/buffers.py", 35, "acquire_like", "buffer = torch.empty_like(tokens)"),),
    "allocate_new": (_frame(f"{_MOE}/buffers.py", 41, "acquire_new", "buffer = tokens.new_empty(tokens.shape)"),),
    "buffer_clone": (_frame(f"{_MOE}/buffers.py", 52, "prepare", "spare = buffer.clone()"),),
    "buffer_detach": (_frame(f"{_MOE}/buffers.py", 53, "prepare", "spare = spare.detach()"),),
    "buffer_to": (_frame(f"{_MOE}/buffers.py", 54, "prepare", "spare = spare.to(torch.float32)"),),
    "buffer_use": (_frame(f"{_MOE}/buffers.py", 60, "accumulate", "return tokens + spare"),),
    "logits_float": (_frame(f"{_CORE}/models/gpt/gpt_model.py", 312, "compute_loss", "logits = logits.float()"),),
    "loss": (
        _frame(
            f"{_CORE}/models/gpt/gpt_model.py",
            314,
            "compute_loss",
            "losses = F.cross_entropy(logits, labels, reduction='none')",
        ),
    ),
    "loss_mask": (_frame(f"{_ROOT}/pretrain_moe.py", 121, "loss_func", "masked = losses * loss_mask"),),
    "loss_sum": (_frame(f"{_ROOT}/pretrain_moe.py", 122, "loss_func", "total = masked.sum()"),),
    "loss_tokens": (_frame(f"{_ROOT}/pretrain_moe.py", 123, "loss_func", "tokens = loss_mask.sum()"),),
    "loss_mean": (_frame(f"{_ROOT}/pretrain_moe.py", 124, "loss_func", "loss = total / tokens"),),
    "loss_scale": (
        _frame(_SCHEDULE, 266, "forward_step", "output_tensor = output_tensor * config.grad_scale_func(1)"),
    ),
    "send_forward": (
        _frame(_P2P, 61, "_communicate", "request = torch.distributed.isend(tensor, rank, group)"),
        _frame(
            _SCHEDULE, 1301, "forward_backward_pipelining_without_interleaving", "send_forward(output_tensor, config)"
        ),
    ),
    "recv_forward": (
        _frame(_P2P, 72, "_communicate", "request = torch.distributed.irecv(tensor, rank, group)"),
        _frame(
            _SCHEDULE,
            1288,
            "forward_backward_pipelining_without_interleaving",
            "input_tensor = recv_forward(shapes, config)",
        ),
    ),
    "send_backward": (
        _frame(_P2P, 61, "_communicate", "request = torch.distributed.isend(tensor, rank, group)"),
        _frame(
            _SCHEDULE,
            1377,
            "forward_backward_pipelining_without_interleaving",
            "send_backward(input_tensor_grad, config)",
        ),
    ),
    "recv_backward": (
        _frame(_P2P, 72, "_communicate", "request = torch.distributed.irecv(tensor, rank, group)"),
        _frame(
            _SCHEDULE,
            1362,
            "forward_backward_pipelining_without_interleaving",
            "output_tensor_grad = recv_backward(shapes, config)",
        ),
    ),
    "exchange": (
        _frame(_P2P, 118, "_batched_p2p_ops", "requests = torch.distributed.batch_isend_irecv(ops)"),
        _frame(
            _SCHEDULE,
            1330,
            "forward_backward_pipelining_without_interleaving",
            "output_tensor_grad = send_forward_recv_backward(",
        ),
    ),
    "grad_reduce": (
        _frame(
            f"{_CORE}/distributed/param_and_grad_buffer.py",
            146,
            "start_grad_sync",
            "communicate(self.grad_data, group=self.data_parallel_group)",
        ),
        _frame(
            f"{_CORE}/distributed/finalize_model_grads.py",
            203,
            "finalize_model_grads",
            "model_chunk.finish_grad_sync()",
        ),
    ),
    "param_gather": (
        _frame(
            f"{_CORE}/distributed/param_and_grad_buffer.py",
            98,
            "start_param_sync",
            "torch.distributed.all_gather_into_tensor(buffer, shard, group=group)",
        ),
    ),
    "buffer_broadcast": (
        _frame(
            f"{_ROOT}/megatron/training/initialize.py",
            77,
            "sync_buffers",
            "torch.distributed.broadcast(self.rope_scale, src, group=group)",
        ),
    ),
    "grad_norm": (
        _frame(f"{_CORE}/optimizer/clip_grads.py", 96, "get_grad_norm_fp32", "total_norm = torch.norm(grads, 2) ** 2"),
    ),
    "grad_norm_reduce": (
        _frame(
            f"{_CORE}/optimizer/clip_grads.py", 131, "get_grad_norm_fp32", "torch.distributed.all_reduce(total_norm)"
        ),
    ),
    "grad_norm_root": (
        _frame(f"{_CORE}/optimizer/clip_grads.py", 134, "get_grad_norm_fp32", "total_norm = total_norm.sqrt()"),
    ),
    "clip": (
        _frame(f"{_CORE}/optimizer/clip_grads.py", 168, "clip_grad_by_total_norm_fp32", "grads.mul_(clip_coeff)"),
    ),
    "loss_average": (
        _frame(f"{_ROOT}/pretrain_moe.py", 131, "loss_func", "torch.distributed.all_reduce(reporting_loss)"),
    ),
    "found_inf": (
        _frame(
            f"{_CORE}/optimizer/grad_scaler.py",
            64,
            "unscale",
            "torch.distributed.all_reduce(found_inf, op=torch.distributed.ReduceOp.MAX)",
        ),
    ),
    "param_mul": (_frame(f"{_ROOT}/optim/adamw.py", 88, "step", "param.mul_(1 - lr * weight_decay)"),),
    "first_moment": (_frame(f"{_ROOT}/optim/adamw.py", 91, "step", "exp_avg.lerp_(grad, 1 - beta1)"),),
    "second_moment": (
        _frame(f"{_ROOT}/optim/adamw.py", 92, "step", "exp_avg_sq.addcmul_(grad, grad, value=1 - beta2)"),
    ),
    "root": (_frame(f"{_ROOT}/optim/adamw.py", 95, "step", "denominator = exp_avg_sq.sqrt()"),),
    "param_add": (_frame(f"{_ROOT}/optim/adamw.py", 98, "step", "param.addcdiv_(exp_avg, denominator, value=-lr)"),),
    "tail": (
        _frame(f"{_MOE}/experts.py", 301, "forward", "tail = F.linear(tokens[lengths.cumsum(0)[-2]:], self.tail)"),
    ),
}
_OPTIMIZER_STEP = (
    _frame(_OPTIMIZER, 1012, "step", "success = self.step_with_ready_grads()"),
    _frame(
        f"{_ROOT}/megatron/training/training.py",
        761,
        "train_step",
        "update_successful, grad_norm, _ = optimizer.step()",
    ),
    _STEP[1],
)

# module class -> the frame of the parent that calls it
_CALLS: dict[str, str] = {
    "VocabParallelEmbedding": _frame(
        f"{_CORE}/models/common/embeddings/language_model_embedding.py",
        102,
        "forward",
        "embeddings = self.word_embeddings(input_ids)",
    ),
    "TransformerLayer": _frame(
        f"{_CORE}/transformer/transformer_block.py",
        549,
        "forward",
        "hidden_states, context = layer(hidden_states, attention_mask)",
    ),
    "SelfAttention": _frame(
        _LAYER, 311, "forward", "attention_output = self.self_attention(input_layernorm_output, attention_mask)"
    ),
    "FusedLayerNorm": _frame(_LAYER, 303, "forward", "output = self.layernorm(hidden_states)"),
    "ColumnParallelLinear": _frame(
        _ATTENTION, 588, "get_query_key_value_tensors", "mixed_qkv, _ = self.linear_qkv(hidden_states)"
    ),
    "RowParallelLinear": _frame(_ATTENTION, 492, "forward", "output, bias = self.linear_proj(core_attn_out)"),
    "DotProductAttention": _frame(
        _ATTENTION, 447, "forward", "core_attn_out = self.core_attention(query, key, value, attention_mask)"
    ),
    "MoELayer": _frame(_LAYER, 341, "forward", "mlp_output = self.mlp(pre_mlp_layernorm_output)"),
    "TopKRouter": _frame(f"{_MOE}/moe_layer.py", 179, "forward", "probs, routing_map = self.router(hidden_states)"),
    "GroupedMLP": _frame(
        f"{_MOE}/moe_layer.py",
        205,
        "forward",
        "expert_output, mlp_bias = self.experts(dispatched_input, tokens_per_expert)",
    ),
    "OutputLinear": _frame(
        f"{_CORE}/models/gpt/gpt_model.py", 298, "forward", "logits, _ = self.output_layer(hidden_states)"
    ),
    "SharedAdapter": _frame(
        f"{_CORE}/models/gpt/gpt_model.py", 240, "forward", "hidden_states = self.adapter(hidden_states)"
    ),
}
_FORWARD_STEP = _frame(
    f"{_ROOT}/pretrain_moe.py",
    196,
    "forward_step",
    "output_tensor = model(tokens, position_ids, attention_mask, labels=labels)",
)


class Frames:
    """Collects the stacks of a program's records, equal ones once, and writes them in the grouped layout of stack.json."""

    def __init__(self, *, plumbing: bool = True, grouped: bool = True) -> None:
        self._plumbing = _CALL if plumbing else _CALL[:1]
        self._grouped = grouped
        self._names: dict[tuple[str, ...], list[str]] = {}

    def note(self, name: str, role: str, modules: list[str], phase: str) -> None:
        """Remember the stack of a forward record: the operator's own frames, those of the modules around it, the loop's."""
        frames = list(_ROLES.get(role, ()))
        for kind in reversed(modules):
            frames += self._plumbing
            frames.append(_CALLS[kind])
        if phase == "optimizer":
            frames += _OPTIMIZER_STEP
        else:
            if phase == "recompute":
                frames += _CHECKPOINT
            else:
                frames += [*self._plumbing, _FORWARD_STEP]
            frames += _STEP
        self._names.setdefault(tuple(frames), []).append(name)

    def text(self) -> str:
        """stack.json: ``{"0": [[names], [frames]], ...}``, or in older dumps ``{name: [frames]}``."""
        if self._grouped:
            groups = {str(i): [names, list(frames)] for i, (frames, names) in enumerate(self._names.items())}
            return json.dumps(groups, indent=1)
        return json.dumps({n: list(frames) for frames, names in self._names.items() for n in names}, indent=1)
