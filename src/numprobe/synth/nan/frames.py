"""Call stacks as the collector writes them: innermost first, PyTorch's plumbing between the frames of the training code."""

from __future__ import annotations

import json

_WHERE = {
    "app": "/opt/train",
    "core": "/opt/train/megatron/core",
    "torch": "/usr/lib/python3/dist-packages/torch",
}

# roles of operators: their own frames, the innermost first, as file:line function | code
_ROLES = """
gate_add: app/model/gate.py:31 forward | return x + gate
rope_scale: app/model/rope.py:27 forward | hidden = hidden * self.rope_scale
embed: core/tensor_parallel/layers.py:241 forward | output_parallel = F.embedding(masked_input, self.weight)
embed_reduce: core/tensor_parallel/mappings.py:24 _reduce | torch.distributed.all_reduce(input_, group=group)
  core/tensor_parallel/layers.py:249 forward | output = reduce_from_tensor_model_parallel_region(output_parallel)
features: core/models/gpt/gpt_model.py:231 forward | decoder_input = decoder_input + features
norm1 norm2 final_norm: core/fusions/layer_norm.py:149 forward | return F.layer_norm(x, self.shape, self.weight, None, self.eps)
qkv proj head fc1 fc2: core/tensor_parallel/layers.py:402 forward | output = F.linear(total_input, weight, bias)
adapter adapter_again: core/models/gpt/gpt_model.py:187 forward | return F.linear(hidden, self.weight)
proj_reduce: core/tensor_parallel/mappings.py:24 _reduce | torch.distributed.all_reduce(input_, group=group)
  core/tensor_parallel/layers.py:1184 forward | output_ = reduce_from_tensor_model_parallel_region(output_parallel)
qkv_grad_reduce: core/tensor_parallel/layers.py:468 backward | handle = torch.distributed.all_reduce(grad_input, group=group)
  torch/autograd/function.py:307 apply | return user_fn(self, *args)
chunk: core/transformer/attention.py:611 qkv_tensors | query, key, value = mixed_qkv.chunk(3, dim=-1)
attention: core/transformer/dot_product_attention.py:171 forward | output = torch_npu.npu_fusion_attention(
mask_full: app/model/mask.py:18 causal_mask | full = torch.full((length, length), float('-inf'), dtype=torch.float32)
mask_triu: app/model/mask.py:19 causal_mask | return full.triu(diagonal=1)
mask_minimum: app/model/mask.py:31 additive_mask | return zeros.masked_fill(hidden, torch.finfo(zeros.dtype).min)
mask_scores: app/model/mask.py:42 padding_bias | bias = bias.masked_fill(padding, float('-inf'))
mask_softmax: app/model/mask.py:47 prior | return F.softmax(bias, dim=-1)
router: core/transformer/moe/router.py:74 gating | logits = F.linear(input, self.weight)
router_mask: core/transformer/moe/moe_utils.py:431 group_limited_topk | masked = logits.masked_fill(~group_mask, float('-inf'))
router_topk: core/transformer/moe/moe_utils.py:433 group_limited_topk | scores, top_indices = torch.topk(masked, k=topk, dim=1)
router_softmax: core/transformer/moe/moe_utils.py:438 topk_softmax | probs = F.softmax(scores, dim=-1)
dispatch: core/tensor_parallel/mappings.py:421 forward | torch.distributed.all_to_all_single(
  core/transformer/moe/token_dispatcher.py:512 token_permutation | tokens = all_to_all(self.ep_group, permuted)
  core/transformer/moe/moe_layer.py:183 forward | tokens, counts = self.dispatcher.token_permutation(hidden, probs)
combine: core/tensor_parallel/mappings.py:421 forward | torch.distributed.all_to_all_single(
  core/transformer/moe/token_dispatcher.py:587 token_unpermutation | output = all_to_all(self.ep_group, hidden)
  core/transformer/moe/moe_layer.py:212 forward | output = self.dispatcher.token_unpermutation(expert_output)
gmm1: core/transformer/moe/experts.py:240 forward | fc1_output = npu_grouped_matmul(hidden, w1, group_list=counts)
swiglu: core/transformer/moe/experts.py:244 forward | intermediate = torch_npu.npu_swiglu(fc1_output, dim=-1)
gmm2: core/transformer/moe/experts.py:247 forward | fc2_output = npu_grouped_matmul(intermediate, w2, group_list=counts)
weigh: core/transformer/moe/token_dispatcher.py:592 token_unpermutation | output = unpermuted * probs
residual1: core/transformer/transformer_layer.py:318 forward | hidden_states = residual + attention_output
residual2: core/transformer/transformer_layer.py:352 forward | output = residual + mlp_output
gate_abs: app/model/gate.py:21 forward | size = x.abs()
gate_log: app/model/gate.py:22 forward | logs = torch.log(size)
gate_where: app/model/gate.py:23 forward | return torch.where(size > 0, logs, zeros)
spread_sub: app/model/spread.py:34 forward | variance = mean_square - mean * mean
spread_sqrt spread_log spread_div: app/model/spread.py:35 forward | scale = self.transform(variance)
spread_mul: app/model/spread.py:36 forward | return x * scale
ratio_div: app/model/statistics.py:52 load_balance | ratio = routed / capacity
ratio_where: app/model/statistics.py:53 load_balance | ratio = torch.where(capacity > 0, ratio, zeros)
allocate: core/transformer/moe/buffers.py:27 acquire | buffer = torch.empty(shape, dtype=dtype, device=device)
allocate_like: core/transformer/moe/buffers.py:35 acquire_like | buffer = torch.empty_like(tokens)
allocate_new: core/transformer/moe/buffers.py:41 acquire_new | buffer = tokens.new_empty(tokens.shape)
buffer_clone: core/transformer/moe/buffers.py:52 prepare | spare = buffer.clone()
buffer_detach: core/transformer/moe/buffers.py:53 prepare | spare = spare.detach()
buffer_to: core/transformer/moe/buffers.py:54 prepare | spare = spare.to(torch.float32)
buffer_use: core/transformer/moe/buffers.py:60 accumulate | return tokens + spare
logits_float: core/models/gpt/gpt_model.py:312 compute_loss | logits = logits.float()
loss: core/models/gpt/gpt_model.py:314 compute_loss | losses = F.cross_entropy(logits, labels, reduction='none')
loss_mask: app/pretrain_moe.py:121 loss_func | masked = losses * loss_mask
loss_sum: app/pretrain_moe.py:122 loss_func | total = masked.sum()
loss_tokens: app/pretrain_moe.py:123 loss_func | tokens = loss_mask.sum()
loss_mean: app/pretrain_moe.py:124 loss_func | loss = total / tokens
loss_scale loss_report: core/pipeline_parallel/schedules.py:266 forward_step | output_tensor = output_tensor * scale(1)
send_forward: core/pipeline_parallel/p2p.py:61 _communicate | request = dist.isend(tensor, rank, group)
  core/pipeline_parallel/schedules.py:1301 pipeline_1f1b | send_forward(output_tensor, config)
recv_forward: core/pipeline_parallel/p2p.py:72 _communicate | request = dist.irecv(tensor, rank, group)
  core/pipeline_parallel/schedules.py:1288 pipeline_1f1b | input_tensor = recv_forward(shapes, config)
send_backward: core/pipeline_parallel/p2p.py:61 _communicate | request = dist.isend(tensor, rank, group)
  core/pipeline_parallel/schedules.py:1377 pipeline_1f1b | send_backward(input_tensor_grad, config)
recv_backward: core/pipeline_parallel/p2p.py:72 _communicate | request = dist.irecv(tensor, rank, group)
  core/pipeline_parallel/schedules.py:1362 pipeline_1f1b | output_tensor_grad = recv_backward(shapes, config)
exchange: core/pipeline_parallel/p2p.py:118 _batched_p2p_ops | requests = torch.distributed.batch_isend_irecv(ops)
  core/pipeline_parallel/schedules.py:1330 pipeline_1f1b | output_tensor_grad = send_forward_recv_backward(
grad_reduce: core/distributed/param_and_grad_buffer.py:146 start_grad_sync | communicate(self.grad_data, group=self.dp_group)
  core/distributed/finalize.py:203 finalize_model_grads | model_chunk.finish_grad_sync()
param_gather: core/distributed/param_buffer.py:98 start_param_sync | dist.all_gather_into_tensor(buffer, shard, group=group)
buffer_broadcast: app/megatron/training/initialize.py:77 sync_buffers | dist.broadcast(self.rope_scale, src, group)
grad_norm: core/optimizer/clip_grads.py:96 get_grad_norm_fp32 | total_norm = torch.norm(grads, 2) ** 2
grad_norm_reduce: core/optimizer/clip_grads.py:131 get_grad_norm_fp32 | torch.distributed.all_reduce(total_norm)
grad_norm_root: core/optimizer/clip_grads.py:134 get_grad_norm_fp32 | total_norm = total_norm.sqrt()
clip: core/optimizer/clip_grads.py:168 clip_grad_by_total_norm_fp32 | grads.mul_(clip_coeff)
loss_average: app/pretrain_moe.py:131 loss_func | torch.distributed.all_reduce(reporting_loss)
found_inf: core/optimizer/grad_scaler.py:64 unscale | torch.distributed.all_reduce(found_inf, op=torch.distributed.ReduceOp.MAX)
param_mul: app/optim/adamw.py:88 step | param.mul_(1 - lr * weight_decay)
first_moment: app/optim/adamw.py:91 step | exp_avg.lerp_(grad, 1 - beta1)
second_moment: app/optim/adamw.py:92 step | exp_avg_sq.addcmul_(grad, grad, value=1 - beta2)
root: app/optim/adamw.py:95 step | denominator = exp_avg_sq.sqrt()
param_add: app/optim/adamw.py:98 step | param.addcdiv_(exp_avg, denominator, value=-lr)
tail: core/transformer/moe/experts.py:301 forward | tail = F.linear(tokens[lengths.cumsum(0)[-2]:], self.tail)
"""

# classes of modules: the frame of the parent that calls them
_CALLS = """
VocabParallelEmbedding: core/models/common/embeddings/embedding.py:102 forward | embeddings = self.word_embeddings(input_ids)
TransformerLayer: core/transformer/transformer_block.py:549 forward | hidden_states = layer(hidden_states, attention_mask)
SelfAttention: core/transformer/transformer_layer.py:311 forward | attention_output = self.self_attention(normed, attention_mask)
FusedLayerNorm: core/transformer/transformer_layer.py:303 forward | output = self.layernorm(hidden_states)
ColumnParallelLinear: core/transformer/attention.py:588 qkv_tensors | mixed_qkv, _ = self.linear_qkv(hidden_states)
RowParallelLinear: core/transformer/attention.py:492 forward | output, bias = self.linear_proj(core_attn_out)
DotProductAttention: core/transformer/attention.py:447 forward | context = self.core_attention(query, key, value, attention_mask)
MoELayer: core/transformer/transformer_layer.py:341 forward | mlp_output = self.mlp(pre_mlp_layernorm_output)
TopKRouter: core/transformer/moe/moe_layer.py:179 forward | probs, routing_map = self.router(hidden_states)
GroupedMLP: core/transformer/moe/moe_layer.py:205 forward | expert_output = self.experts(tokens, counts)
OutputLinear: core/models/gpt/gpt_model.py:298 forward | logits, _ = self.output_layer(hidden_states)
SharedAdapter: core/models/gpt/gpt_model.py:240 forward | hidden_states = self.adapter(hidden_states)
"""


def _frame(line: str) -> str:
    place, code = line.strip().split(" | ", 1)
    file, function = place.split(" ", 1)
    path, number = file.rsplit(":", 1)
    root, rest = path.split("/", 1)
    return f"File {_WHERE[root]}/{rest}, line {number}, in {function}, \n {code}"


def _table(text: str) -> dict[str, tuple[str, ...]]:
    frames: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    for line in text.strip().splitlines():
        if not line.startswith("  "):
            head, line = line.split(": ", 1)
            names = head.split()
        for name in names:
            frames[name] = (*frames.get(name, ()), _frame(line))
    return frames


_OF_ROLE = _table(_ROLES)
_OF_MODULE = _table(_CALLS)
_CALL = (
    _frame("torch/nn/modules/module.py:1784 _call_impl | return forward_call(*args, **kwargs)"),
    _frame("torch/nn/modules/module.py:1773 _wrapped_call_impl | return self._call_impl(*args, **kwargs)"),
)
_RECOMPUTE = (
    _frame("torch/utils/checkpoint.py:1399 recompute_fn | fn(*args, **kwargs)"),
    _frame("torch/utils/checkpoint.py:1100 unpack_hook | frame.recompute_fn(*args)"),
    _frame("torch/autograd/graph.py:823 _engine_run_backward | return Variable._execution_engine.run_backward("),
    _frame("torch/autograd/__init__.py:347 backward | _engine_run_backward("),
    _frame(
        "core/pipeline_parallel/schedules.py:389 backward_step | torch.autograd.backward(output_tensor[0], grad[0])"
    ),
)
_FORWARD = _frame("app/pretrain_moe.py:196 forward_step | output_tensor = model(tokens, position_ids, labels=labels)")
_MAIN = _frame("app/pretrain_moe.py:218 <module> | pretrain(train_valid_test_datasets_provider, model_provider)")
_STEP = (_frame("app/megatron/training/training.py:734 train_step | losses_reduced = forward_backward_func("), _MAIN)
_UPDATE = (
    _frame("core/optimizer/optimizer.py:1012 step | success = self.step_with_ready_grads()"),
    _frame("app/megatron/training/training.py:761 train_step | update_successful, grad_norm, _ = optimizer.step()"),
    _MAIN,
)


class Frames:
    """Collects the stacks of a program's records, equal ones once, and writes stack.json.

    ``plumbing``: two PyTorch frames a module call, as it is; else none, nor the training loop's, for small files.
    ``grouped``: the current layout, names and frames by group number; else the older one, frames by name.
    """

    def __init__(self, *, plumbing: bool, grouped: bool) -> None:
        self._plumbing = _CALL if plumbing else ()
        self._grouped = grouped
        self._names: dict[tuple[str, ...], list[str]] = {}

    def note(self, name: str, role: str, modules: list[str], phase: str) -> None:
        """Remember the stack of a forward record: the operator's own frames, those of the modules around it, the loop's."""
        frames = list(_OF_ROLE.get(role, ()))
        for kind in reversed(modules):
            frames += [*self._plumbing, *_OF_MODULE[kind]]
        if phase == "optimizer":
            frames += _UPDATE
        elif phase == "recompute":
            frames += [*_RECOMPUTE, *_STEP]
        else:
            frames += [*self._plumbing, _FORWARD, *_STEP]
        if not self._plumbing:
            del frames[-len(_STEP) :]
        self._names.setdefault(tuple(frames), []).append(name)

    def text(self) -> str:
        """The text of stack.json: ``{"0": [[names], [frames]], ...}`` or ``{name: [frames]}``."""
        if self._grouped:
            groups = {str(i): [names, list(frames)] for i, (frames, names) in enumerate(self._names.items())}
            return json.dumps(groups, indent=1)
        return json.dumps({n: list(frames) for frames, names in self._names.items() for n in names}, indent=1)
