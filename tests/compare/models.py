"""Three small decoders (dense, grouped-query, mixture of experts) and the faults that a comparison has to find.

``dump(folder, shape=..., dtype=..., seed=..., fault=...)`` runs one training step under numprobe's recorder. Two calls with
the same seed see the same weights and tokens, whatever the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from numprobe.pytorch import PrecisionDebugger

UNSEEN = torch._C.TensorBase  # its methods are not the ones that a recorder wraps


@dataclass(frozen=True)
class Shape:
    layers: int = 3
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 4
    inner: int = 160
    experts: int = 0
    top: int = 2
    vocabulary: int = 128
    tokens: int = 24
    batch: int = 2


SHAPES = {"dense": Shape(), "gqa": Shape(kv_heads=2), "moe": Shape(experts=4)}
FAULTS = ("weight_scale", "softmax_scale", "nan", "swapped_heads", "one_element")


class RMSNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.size = s.hidden // s.heads
        self.q_proj = nn.Linear(s.hidden, s.heads * self.size, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(s.heads * self.size, s.hidden, bias=False)
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.s.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.s.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.s.kv_heads, self.size).transpose(1, 2)
        q, k = rotate(q), rotate(k)
        k = k.repeat_interleave(self.s.heads // self.s.kv_heads, 1)
        v = v.repeat_interleave(self.s.heads // self.s.kv_heads, 1)
        scores = torch.matmul(q, k.transpose(2, 3))
        if self.fault != "softmax_scale":
            scores = scores * self.size**-0.5
        mask = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(1)
        weights = F.softmax(scores + mask, dim=-1)
        y = torch.matmul(weights, v)
        if self.fault == "swapped_heads":
            y = y[:, [1, 0, *range(2, self.s.heads)]]
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


def rotate(x: Tensor) -> Tensor:
    t, size = x.shape[-2:]
    angle = torch.arange(t)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)
        self.product = Product()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.product(F.silu(self.gate_proj(x)), self.up_proj(x)))


class Product(nn.Module):
    """A fused kernel as far as a recorder can tell: nothing that it calls is wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        y = UNSEEN.mul(a, b)
        if self.fault:
            flat = UNSEEN.view(y.data, -1)
            wrong = float("nan") if self.fault == "nan" else 4 * float(UNSEEN.max(UNSEEN.abs(flat)))
            UNSEEN.__setitem__(flat, len(flat) // 3, wrong)
        return y


class MoE(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.top = s.top
        self.gate = nn.Linear(s.hidden, s.experts, bias=False)
        self.experts = nn.ModuleList(MLP(s) for _ in range(s.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(F.softmax(self.gate(flat).float(), -1), self.top)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if len(token):
                y = y.index_add(0, token, expert(flat[token]) * weights[token, slot, None])
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden)
        self.mlp = MoE(s) if s.experts else MLP(s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = RMSNorm(s.hidden)
        self.lm_head = nn.Linear(s.hidden, s.vocabulary, bias=False)
        self.recompute = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.lm_head(self.norm(x))


def build(shape: Shape, seed: int) -> tuple[Decoder, Tensor]:
    torch.manual_seed(seed)
    model = Decoder(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight") or "layernorm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model, torch.randint(0, shape.vocabulary, (shape.batch, shape.tokens))


def inject(model: Decoder, fault: str, layer: int) -> None:
    if not fault:
        return
    block = model.layers[layer]
    mlp = block.mlp.experts[0] if isinstance(block.mlp, MoE) else block.mlp
    if fault == "weight_scale":
        with torch.no_grad():
            mlp.up_proj.weight.mul_(1.03)
    elif fault in ("softmax_scale", "swapped_heads"):
        block.self_attn.fault = fault
    else:
        mlp.product.fault = fault


def add_noise(model: Decoder, size: float, seed: int) -> None:
    """Every product of an MLP gets a relative error, as from kernels that add in another order each time."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, Product):
            module.register_forward_hook(lambda m, i, y: UNSEEN.mul(y, 1 + size * torch.randn(y.shape, generator=draw)))


def dump(
    folder: Path,
    shape: str | Shape = "dense",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    fault: str = "",
    layer: int = 1,
    recompute: bool = False,
    noise: float = 0.0,
    noise_seed: int = 0,
    **config: object,
) -> Path:
    """One recorded step; returns the folder of the step."""
    s = SHAPES[shape] if isinstance(shape, str) else shape
    model, tokens = build(s, seed)
    inject(model, fault, layer)
    model = model.to(dtype)
    if noise:
        add_noise(model, noise, noise_seed)
    model.recompute = recompute
    settings = {"task": "statistics", "level": "mix", "dump_path": str(folder), "overwrite": True, **config}
    with PrecisionDebugger(**settings) as debugger:
        debugger.start(model=model, rank_id=0)
        logits = model(tokens)
        loss = F.cross_entropy(logits.float().view(-1, s.vocabulary), tokens.roll(-1, 1).view(-1))
        loss.backward()
        debugger.stop()
        debugger.step()
    return folder / "step0"
