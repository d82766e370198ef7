"""One small decoder in three styles with the same weights, and where to put one fault at a time.

Hugging Face style (split projections, ``[b, s, h]``), Megatron style (fused and grouped by query group, ``[s, b, h]``) and engine
style (fused and stacked, packed ``[tokens, h]``, norms that add the residual). Written here from the layouts alone, so that the
three agree only if those are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import gelu, relu, silu  # bound early, as Megatron does: no wrapper sees these

ACTIVATIONS = {"silu": silu, "gelu": lambda x: gelu(x, approximate="tanh"), "relu": relu}
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Decoder:
    """Sizes, and what a configuration can get wrong."""

    layers: int = 3
    hidden: int = 64
    heads: int = 4
    groups: int = 2
    ffn: int = 160
    vocab: int = 128
    experts: int = 0
    chosen: int = 2
    activation: str = "silu"
    softmax_factor: float = 1.0
    epsilon: float = 1e-6
    embedding_factor: float = 1.0
    renormalise: bool = True
    rotary: str = "halves"  # halves | neighbours
    gate_first: bool = True
    heads_swapped: bool = False
    grouped: bool = True  # Megatron: rows of linear_qkv by query group; False is a wrong conversion
    fused_norm: bool = False  # Megatron: norm inside of the linear behind it
    separate_activation: bool = True  # engine: a module SiluAndMul
    packed_weights: bool = False  # engine: weights of linears are moved elsewhere, and their parameters are empty
    only_layer: int | None = None  # where softmax_factor and the like apply; None: everywhere

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def factor(self, layer: int) -> float:
        """Of the scores of attention, in a layer."""
        return self.softmax_factor if self.only_layer in (None, layer) else 1.0


def make_weights(config: Decoder, seed: int = 7) -> Weights:
    """Weights by Hugging Face's names. Gains differ from 1, so that a wrong one shows."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=rng) * scale

    h, f, kv = config.hidden, config.ffn, config.groups * config.head
    found = {"embed": normal(config.vocab, h, scale=0.1), "norm": 1 + normal(h, scale=0.1)}
    found["head"] = normal(config.vocab, h, scale=h**-0.5)
    for i in range(config.layers):
        sizes = {"q": (h, h), "k": (kv, h), "v": (kv, h), "o": (h, h)}
        for e in range(config.experts) if config.experts else [""]:
            part = f"{e}." if config.experts else ""
            sizes |= {f"{part}gate": (f, h), f"{part}up": (f, h), f"{part}down": (h, f)}
        if config.experts:
            sizes["router"] = (config.experts, h)
        for name, (rows, columns) in sizes.items():
            scale = 2.0 if name in ("q", "k") or name.endswith("gate") else 1.0
            found[f"{i}.{name}"] = normal(rows, columns, scale=scale * columns**-0.5)
        found[f"{i}.attn_norm"] = 1 + normal(h, scale=0.1)
        found[f"{i}.mlp_norm"] = 1 + normal(h, scale=0.1)
    return found


def make_tokens(count: Sequence[int] = (12, 12), vocab: int = 128, seed: int = 3) -> list[Tensor]:
    """The ids of some prompts."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=rng) for n in count]


def rotate(x: Tensor, positions: Tensor, style: str) -> Tensor:
    """Rotary embedding of ``[..., tokens, heads, d]``, of the two halves of a head or of neighbours."""
    d = x.shape[-1]
    angle = positions[:, None].float() / 10000 ** (torch.arange(0, d, 2).float() / d)
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    if style == "neighbours":
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
    """Causal attention over ``[b, heads, s, d]``."""
    scores = q @ k.transpose(-1, -2) * (factor / math.sqrt(q.shape[-1]))
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.float().masked_fill(mask, -1e30), -1).to(v.dtype) @ v


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def routing(logits: Tensor, config: Decoder) -> tuple[Tensor, Tensor]:
    """Weights and experts of every token."""
    values, chosen = logits.float().softmax(-1).topk(config.chosen, -1)
    if config.renormalise:
        values = values / values.sum(-1, keepdim=True)
    return values.to(logits.dtype), chosen


class Linear(nn.Module):
    def __init__(self, weight: Tensor, *, pair: bool = False) -> None:
        super().__init__()
        self.weight, self.pair = nn.Parameter(weight.clone()), pair
        self.packed: Tensor | None = None

    def pack(self) -> None:
        """As vLLM does on a CPU."""
        self.packed, self.weight = self.weight.detach(), nn.Parameter(self.weight.detach()[:0, :0])

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, None]:
        y = functional.linear(x, self.weight if self.packed is None else self.packed)
        return (y, None) if self.pair else y


class RMSNorm(nn.Module):
    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight.clone()), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.epsilon)


class Embedding(nn.Module):
    def __init__(self, weight: Tensor, factor: float) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(weight.clone()), factor

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] * self.factor


def renamed(base: type[nn.Module], name: str) -> type[nn.Module]:
    """A class of the name that a framework gives it."""
    return type(name, (base,), {})


class Activation(nn.Module):
    """Of the gate alone."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x)


class ActAndMul(Activation):
    """Of gate and up together."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return super().forward(gate) * up


def module_class(config: Decoder, base: type[nn.Module]) -> type[nn.Module]:
    word = {"silu": "SiLU", "gelu": "GELU", "relu": "ReLU"}[config.activation]
    return renamed(base, word + "Activation" if base is Activation else word.replace("SiLU", "Silu") + "AndMul")


# --- Hugging Face -------------------------------------------------------------------------------------------------


class HfAttention(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.config, self.layer = config, i
        self.q_proj, self.k_proj, self.v_proj = (nn_linear(w[f"{i}.{n}"]) for n in "qkv")
        self.o_proj = nn_linear(w[f"{i}.o"])

    def forward(self, hidden_states: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        c, (b, s, _) = self.config, hidden_states.shape
        q = rotate(self.q_proj(hidden_states).view(b, s, c.heads, c.head), positions, c.rotary)
        k = rotate(self.k_proj(hidden_states).view(b, s, c.groups, c.head), positions, c.rotary)
        v = self.v_proj(hidden_states).view(b, s, c.groups, c.head)
        k, v = (x.repeat_interleave(c.heads // c.groups, 2) for x in (k, v))
        y = functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, scale=c.factor(self.layer) / math.sqrt(c.head)
        ).transpose(1, 2)
        if c.heads_swapped:
            y = y.flip(2)
        return self.o_proj(y.reshape(b, s, -1)), None


class HfMLP(nn.Module):
    def __init__(self, config: Decoder, w: Weights, prefix: str) -> None:
        super().__init__()
        first, second = ("gate", "up") if config.gate_first else ("up", "gate")
        self.gate_proj, self.up_proj = nn_linear(w[prefix + first]), nn_linear(w[prefix + second])
        self.down_proj = nn_linear(w[f"{prefix}down"])
        self.act_fn = module_class(config, Activation)(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class HfMoE(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.config = config
        self.gate = nn_linear(w[f"{i}.router"])
        self.experts = nn.ModuleList(HfMLP(config, w, f"{i}.{e}.") for e in range(config.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return mixed(flat, *routing(self.gate(flat), self.config), list(self.experts)).view_as(x)


def mixed(x: Tensor, values: Tensor, chosen: Tensor, experts: Sequence[nn.Module]) -> Tensor:
    """Every expert on its tokens, weighted and added."""
    total = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, place = (chosen == e).nonzero(as_tuple=True)
        if len(token):
            y = expert(x[token])
            y = y[0] if isinstance(y, tuple) else y
            total = total.index_add(0, token, y * values[token, place, None])
    return total


class HfLayer(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(w[f"{i}.attn_norm"], config.epsilon)
        self.self_attn = HfAttention(config, w, i)
        self.post_attention_layernorm = RMSNorm(w[f"{i}.mlp_norm"], config.epsilon)
        self.mlp = HfMoE(config, w, i) if config.experts else HfMLP(config, w, f"{i}.")

    def forward(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        x = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), positions=positions)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class HfModel(nn.Module):
    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.embed_tokens = Embedding(w["embed"], config.embedding_factor)
        self.layers = nn.ModuleList(HfLayer(config, w, i) for i in range(config.layers))
        self.norm = RMSNorm(w["norm"], config.epsilon)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        positions = torch.arange(input_ids.shape[1])
        for layer in self.layers:
            x = layer(x, positions=positions)
        return self.norm(x)


class HfStyle(nn.Module):
    """``model.layers.N.self_attn.q_proj`` over ``[b, s]`` ids."""

    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.model = HfModel(config, w)
        self.lm_head = nn_linear(w["head"])

    def forward(self, prompts: Sequence[Tensor]) -> Tensor:
        return self.lm_head(self.model(input_ids=torch.stack(list(prompts))))


def nn_linear(weight: Tensor) -> nn.Module:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    made.weight = nn.Parameter(weight.clone())
    return made


# --- Megatron -----------------------------------------------------------------------------------------------------

ColumnParallelLinear, RowParallelLinear = renamed(Linear, "ColumnParallelLinear"), renamed(Linear, "RowParallelLinear")


class TELayerNormColumnParallelLinear(nn.Module):
    """Norm and linear in one kernel: the norm is no module."""

    def __init__(self, weight: Tensor, gain: Tensor, epsilon: float) -> None:
        super().__init__()
        self.layer_norm_weight, self.weight = nn.Parameter(gain.clone()), nn.Parameter(weight.clone())
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return functional.linear(norm(x, self.layer_norm_weight, self.epsilon), self.weight), None


class IdentityOp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class DotProductAttention(nn.Module):
    def __init__(self, config: Decoder, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(self.config.heads // self.config.groups, 2) for x in (k, v))
        y = attend(*(x.permute(1, 2, 0, 3) for x in (q, k, v)), self.config.factor(self.layer)).permute(2, 0, 1, 3)
        if self.config.heads_swapped:
            y = y.flip(2)
        return y.reshape(*y.shape[:2], -1)


class SelfAttention(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.config = config
        q, k, v = (w[f"{i}.{n}"] for n in "qkv")
        per_group = config.heads // config.groups
        parts = [q.view(config.groups, per_group, config.head, -1)]
        parts += [x.view(config.groups, 1, config.head, -1) for x in (k, v)]
        rows = torch.cat(parts, 1).flatten(0, 2) if config.grouped else torch.cat([q, k, v])
        if config.fused_norm:
            self.linear_qkv = TELayerNormColumnParallelLinear(rows, w[f"{i}.attn_norm"], config.epsilon)
        else:
            self.linear_qkv = ColumnParallelLinear(rows, pair=True)
        self.core_attention = DotProductAttention(config, i)
        self.linear_proj = RowParallelLinear(w[f"{i}.o"], pair=True)

    def forward(self, hidden_states: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        c, (s, b, _) = self.config, hidden_states.shape
        qkv = self.linear_qkv(hidden_states)[0].view(s, b, c.groups, c.heads // c.groups + 2, c.head)
        q, k, v = qkv[..., :-2, :].reshape(s, b, c.heads, c.head), qkv[..., -2, :], qkv[..., -1, :]
        q, k = (rotate(x.transpose(0, 1), positions, c.rotary).transpose(0, 1) for x in (q, k))
        return self.linear_proj(self.core_attention(q, k, v))


class MegatronMLP(nn.Module):
    def __init__(self, config: Decoder, w: Weights, prefix: str, gain: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        order = ("gate", "up") if config.gate_first else ("up", "gate")
        rows = torch.cat([w[prefix + name] for name in order])
        if gain is not None:
            self.linear_fc1 = TELayerNormColumnParallelLinear(rows, gain, config.epsilon)
        else:
            self.linear_fc1 = ColumnParallelLinear(rows, pair=True)
        self.linear_fc2 = RowParallelLinear(w[f"{prefix}down"], pair=True)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        gate, up = self.linear_fc1(hidden_states)[0].chunk(2, -1)
        return self.linear_fc2(ACTIVATIONS[self.config.activation](gate) * up)


class TopKRouter(nn.Module):
    def __init__(self, config: Decoder, weight: Tensor) -> None:
        super().__init__()
        self.config, self.weight = config, nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, chosen = routing(functional.linear(x.flatten(0, -2), self.weight), self.config)
        shape = (*values.shape[:-1], self.config.experts)
        return torch.zeros(shape, dtype=x.dtype).scatter(-1, chosen, values), torch.zeros(shape).scatter(
            -1, chosen, 1
        ).bool()


class SequentialMLP(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.local_experts = nn.ModuleList(MegatronMLP(config, w, f"{i}.{e}.") for e in range(config.experts))


class MoELayer(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.chosen = config.chosen
        self.router, self.experts = TopKRouter(config, w[f"{i}.router"]), SequentialMLP(config, w, i)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        values, chosen = self.router(hidden_states)[0].topk(self.chosen, -1)
        flat = hidden_states.flatten(0, -2)
        return mixed(flat, values, chosen, list(self.experts.local_experts)).view_as(hidden_states), None


class TransformerLayer(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        fused = config.fused_norm
        self.input_layernorm = IdentityOp() if fused else RMSNorm(w[f"{i}.attn_norm"], config.epsilon)
        self.self_attention = SelfAttention(config, w, i)
        dense = fused and not config.experts
        self.pre_mlp_layernorm = IdentityOp() if dense else RMSNorm(w[f"{i}.mlp_norm"], config.epsilon)
        gain = w[f"{i}.mlp_norm"] if dense else None
        self.mlp = MoELayer(config, w, i) if config.experts else MegatronMLP(config, w, f"{i}.", gain)

    def forward(self, hidden_states: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        x = hidden_states + self.self_attention(self.input_layernorm(hidden_states), positions=positions)[0]
        return x + self.mlp(self.pre_mlp_layernorm(x))[0], None


class TransformerBlock(nn.Module):
    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config, w, i) for i in range(config.layers))
        self.final_layernorm = RMSNorm(w["norm"], config.epsilon)

    def forward(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states, positions=positions)[0]
        return self.final_layernorm(hidden_states)


class LanguageModelEmbedding(nn.Module):
    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.word_embeddings = renamed(Embedding, "VocabParallelEmbedding")(w["embed"], config.embedding_factor)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.word_embeddings(input_ids).transpose(0, 1).contiguous()


class MegatronStyle(nn.Module):
    """``decoder.layers.N.self_attention.linear_qkv`` over ``[s, b, h]``."""

    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.embedding, self.decoder = LanguageModelEmbedding(config, w), TransformerBlock(config, w)
        self.output_layer = ColumnParallelLinear(w["head"], pair=True)

    def forward(self, prompts: Sequence[Tensor]) -> Tensor:
        ids = torch.stack(list(prompts))
        x = self.decoder(hidden_states=self.embedding(input_ids=ids), positions=torch.arange(ids.shape[1]))
        return self.output_layer(x)[0]


# --- engine -------------------------------------------------------------------------------------------------------


class AddRMSNorm(RMSNorm):
    """``norm(x + residual)`` and the sum; of the first layer without residual."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return norm(x, self.weight, self.epsilon)
        total = x + residual
        return norm(total, self.weight, self.epsilon), total


class RotaryEmbedding(nn.Module):
    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.config = config

    def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        turned = (rotate(x.unflatten(-1, (-1, self.config.head)), positions, self.config.rotary) for x in (q, k))
        q, k = (x.flatten(-2) for x in turned)
        return q, k


class Attention(nn.Module):
    def __init__(self, config: Decoder, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.lengths: list[int] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        c = self.config
        done = []
        for parts in zip(*(x.unflatten(-1, (-1, c.head)).split(self.lengths) for x in (q, k, v)), strict=True):
            one = [parts[0], *(x.repeat_interleave(c.heads // c.groups, 1) for x in parts[1:])]
            done.append(attend(*(x.transpose(0, 1)[None] for x in one), c.factor(self.layer))[0].transpose(0, 1))
        y = torch.cat(done)
        return (y.flip(1) if c.heads_swapped else y).flatten(-2)


class EngineAttention(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.config = config
        self.qkv_proj = renamed(Linear, "QKVParallelLinear")(torch.cat([w[f"{i}.{n}"] for n in "qkv"]), pair=True)
        self.rotary_emb, self.attn = rotary, Attention(config, i)
        self.o_proj = RowParallelLinear(w[f"{i}.o"], pair=True)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        c = self.config
        kv = c.groups * c.head
        q, k, v = self.qkv_proj(hidden_states)[0].split([c.hidden, kv, kv], -1)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v))[0]


class EngineMLP(nn.Module):
    def __init__(self, config: Decoder, w: Weights, prefix: str) -> None:
        super().__init__()
        self.config = config
        order = ("gate", "up") if config.gate_first else ("up", "gate")
        rows = torch.cat([w[prefix + name] for name in order])
        self.gate_up_proj = renamed(Linear, "MergedColumnParallelLinear")(rows, pair=True)
        if config.separate_activation:
            self.act_fn = module_class(config, ActAndMul)(config.activation)
        self.down_proj = RowParallelLinear(w[f"{prefix}down"], pair=True)

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up_proj(x)[0]
        if self.config.separate_activation:
            return self.down_proj(self.act_fn(both))[0]
        gate, up = both.chunk(2, -1)
        return self.down_proj(ACTIVATIONS[self.config.activation](gate) * up)[0]


class FusedMoE(nn.Module):
    """All experts in one call."""

    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.config = config
        each, order = range(config.experts), ("gate", "up") if config.gate_first else ("up", "gate")
        self.w13_weight = nn.Parameter(torch.stack([torch.cat([w[f"{i}.{e}.{n}"] for n in order]) for e in each]))
        self.w2_weight = nn.Parameter(torch.stack([w[f"{i}.{e}.down"] for e in each]))

    def forward(self, hidden_states: Tensor, router_logits: Tensor) -> Tensor:
        values, chosen = routing(router_logits, self.config)
        gate, up = torch.einsum("th,efh->tef", hidden_states, self.w13_weight).chunk(2, -1)
        each = torch.einsum("tef,ehf->teh", ACTIVATIONS[self.config.activation](gate) * up, self.w2_weight)
        return (each.gather(1, chosen[..., None].expand(-1, -1, each.shape[-1])) * values[..., None]).sum(1)


class EngineMoE(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int) -> None:
        super().__init__()
        self.gate = renamed(Linear, "ReplicatedLinear")(w[f"{i}.router"], pair=True)
        self.experts = FusedMoE(config, w, i)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(hidden_states=x, router_logits=self.gate(x)[0])


class EngineLayer(nn.Module):
    def __init__(self, config: Decoder, w: Weights, i: int, rotary: RotaryEmbedding) -> None:
        super().__init__()
        named = renamed(AddRMSNorm, "RMSNorm")
        self.input_layernorm = named(w[f"{i}.attn_norm"], config.epsilon)
        self.self_attn = EngineAttention(config, w, i, rotary)
        self.post_attention_layernorm = named(w[f"{i}.mlp_norm"], config.epsilon)
        self.mlp = EngineMoE(config, w, i) if config.experts else EngineMLP(config, w, f"{i}.")

    def forward(self, positions: Tensor, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.self_attn(positions=positions, hidden_states=hidden)
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.mlp(hidden), residual


class EngineModel(nn.Module):
    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.embed_tokens = renamed(Embedding, "VocabParallelEmbedding")(w["embed"], config.embedding_factor)
        rotary = RotaryEmbedding(config)
        self.layers = nn.ModuleList(EngineLayer(config, w, i, rotary) for i in range(config.layers))
        self.norm = renamed(AddRMSNorm, "RMSNorm")(w["norm"], config.epsilon)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        return self.norm(hidden, residual)[0]


class LogitsProcessor(nn.Module):
    def forward(self, head: Tensor, hidden: Tensor) -> Tensor:
        return hidden @ head.T


class EngineStyle(nn.Module):
    """``model.layers.N.self_attn.qkv_proj`` over packed tokens; logits of the last token of each prompt only."""

    def __init__(self, config: Decoder, w: Weights) -> None:
        super().__init__()
        self.model = EngineModel(config, w)
        self.head, self.logits_processor = nn.Parameter(w["head"].clone()), LogitsProcessor()

    def forward(self, prompts: Sequence[Tensor]) -> Tensor:
        lengths = [len(p) for p in prompts]
        for layer in self.model.layers:
            layer.self_attn.attn.lengths = lengths
        y = self.model(torch.cat(list(prompts)), torch.cat([torch.arange(n) for n in lengths]))
        return self.logits_processor(self.head, y[torch.tensor(lengths).cumsum(0) - 1])


STYLES: Mapping[str, type[nn.Module]] = {"hf": HfStyle, "megatron": MegatronStyle, "engine": EngineStyle}


@dataclass(frozen=True)
class Run:
    """One program to record."""

    style: str
    config: Decoder = Decoder()
    dtype: torch.dtype = torch.float32
    changed: Mapping[str, Tensor | float] = data_field(default_factory=dict)  # weight -> its factor, or another one

    def build(self) -> nn.Module:
        weights = make_weights(self.config)
        for name, change in self.changed.items():
            weights[name] = weights[name] * change if isinstance(change, float) else change
        model = STYLES[self.style](self.config, {k: v.to(self.dtype) for k, v in weights.items()}).eval()
        for module in model.modules() if self.config.packed_weights else ():
            if isinstance(module, Linear):
                module.pack()
        return model
