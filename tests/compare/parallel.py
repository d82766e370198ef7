"""One decoder in any parallel layout over gloo ranks, recorded by numprobe: tensor, sequence, pipeline and data parallel.

python -m tests.compare.parallel FOLDER NAME...     the cases of CASES to run, each into FOLDER/NAME

Weights depend on their name alone, so that every layout computes the same. The layers are written by hand the way Megatron
does it: activations are [sequence, batch, hidden], the gate and the up projection are one weight, q, k and v one weight by
groups of heads, vocabulary and heads are split over the tensor parallel ranks, ranks are numbered tensor first, pipeline last.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from numprobe.pytorch import PrecisionDebugger

HIDDEN, HEADS, SIZE, INNER, VOCABULARY, TOKENS, BATCH = 32, 4, 8, 48, 92, 12, 2
UNSEEN = torch._C.TensorBase  # its methods are not the ones that a recorder wraps


@dataclass(frozen=True)
class Case:
    """``cp``: each context parallel rank has two chunks of every sequence, rank 0 the first and the last.
    ``chunks``: so many stages a pipeline rank, recorded as a list of models (``listed``: so is a single one).
    ``pad``: the vocabulary is a multiple of that many rows. ``data``: data parallel ranks have the same batch, each
    its part of it (``split``), or each one of its own (``other``). ``experts``: so many in the place of every MLP,
    each whole on one rank, and counted from 0 there. ``separate``: q, k and v have weights of their own, and ranks
    may share a k and v head. ``fault`` is on rank ``where`` (-1: on all), in the layer in the middle of its stage
    (``swapped``: in all). ``digests``: checksums beside the figures, no tensors."""

    layers: int = 2
    tp: int = 1
    pp: int = 1
    chunks: int = 1
    cp: int = 1
    dp: int = 1
    sequence: bool = False
    pad: int = 1
    data: str = "same"
    experts: int = 0
    separate: bool = False
    fault: str = ""
    where: int = 1
    dtype: str = "float32"
    level: str = "mix"
    digests: bool = False
    listed: bool = False

    @property
    def stages(self) -> int:
        return self.pp * self.chunks


CASES = {
    "one": Case(),
    "one_deep": Case(layers=4),
    "one_listed": Case(layers=4, listed=True),
    "one_bf16": Case(dtype="bfloat16"),
    "one_separate": Case(separate=True),
    "one_apis": Case(level="L1"),
    "one_digests": Case(digests=True),
    "one_experts": Case(experts=4),
    "tp2": Case(tp=2),
    "tp2_apis": Case(tp=2, level="L1"),
    "tp2_digests": Case(tp=2, digests=True),
    "tp2_deep": Case(layers=4, tp=2),
    "tp2_separate": Case(tp=2, separate=True),
    "ep2": Case(tp=2, experts=4),
    "ep2_fc1": Case(tp=2, experts=4, fault="fc1"),
    "tp2_bf16": Case(tp=2, dtype="bfloat16"),
    "sp2": Case(tp=2, sequence=True),
    "tp4": Case(tp=4, separate=True),
    "tp4_key": Case(tp=4, separate=True, fault="key"),
    "pad2": Case(tp=2, pad=32),
    "pp2": Case(layers=4, pp=2),
    "pp2_listed": Case(layers=4, pp=2, listed=True),
    "vpp2": Case(layers=4, pp=2, chunks=2),
    "vpp2_fc1": Case(layers=4, pp=2, chunks=2, fault="fc1"),
    "tp2vpp2": Case(layers=4, tp=2, pp=2, chunks=2),
    "cp2": Case(cp=2),
    "cp2_fc1": Case(cp=2, fault="fc1"),
    "cp2_element": Case(cp=2, fault="element"),
    "tp2cp2": Case(tp=2, cp=2),
    "dp2": Case(dp=2),
    "split2": Case(dp=2, data="split"),
    "other2": Case(dp=2, data="other"),
    "other2_fc1": Case(dp=2, data="other", fault="fc1"),
    "tp2pp2": Case(layers=4, tp=2, pp=2),
    "tp2dp2": Case(tp=2, dp=2),
    **{
        f"tp2_{fault}": Case(tp=2, fault=fault) for fault in ("fc1", "fc2", "nan", "element", "norm", "partial", "gain")
    },
    "sp2_fc2": Case(tp=2, sequence=True, fault="fc2"),
    "sp2_element": Case(tp=2, sequence=True, fault="element"),
    "sp2_partial": Case(tp=2, sequence=True, fault="partial"),
    "pp2_fc1": Case(layers=4, pp=2, fault="fc1"),
    "tp2pp2_fc1": Case(layers=4, tp=2, pp=2, fault="fc1", where=3),
    "dp2_fc1": Case(dp=2, fault="fc1"),
    "tp2_all": Case(tp=2, fault="fc1", where=-1),
    "tp2_swapped": Case(tp=2, fault="swapped", where=-1),
}


class Group:
    """The ranks that share something, and the calls among them. Of one rank alone every call gives its argument."""

    def __init__(self, ranks: list[int], rank: int, handle: Any) -> None:
        self.size, self.rank, self.handle = len(ranks), ranks.index(rank), handle

    def copy(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _Copy.apply(x, self)

    def sum(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _Sum.apply(x, self)

    def gather(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _Gather.apply(x, self)

    def sum_scatter(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _SumScatter.apply(x, self)

    def join_last(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _JoinLast.apply(x, self)

    def part(self, x: Tensor, dim: int = 0) -> Tensor:
        return x.chunk(self.size, dim)[self.rank].clone()


def _all_reduced(x: Tensor, group: Group) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group.handle)
    return total


def _gathered(x: Tensor, group: Group) -> Tensor:
    """[s / W, ...] -> [s, ...]"""
    whole = torch.empty(x.shape[0] * group.size, *x.shape[1:], dtype=x.dtype)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group.handle)
    return whole


def _scattered(x: Tensor, group: Group) -> Tensor:
    """[s, ...], addends -> [s / W, ...]"""
    part = torch.empty(x.shape[0] // group.size, *x.shape[1:], dtype=x.dtype)
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group.handle)
    return part


class _Function(torch.autograd.Function):
    """``there`` is what forward does, ``back`` what backward does to the gradient."""

    @classmethod
    def forward(cls, ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return cls.there(x, group)

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return cls.back(grad, ctx.group), None


class _Copy(_Function):
    there = staticmethod(lambda x, group: x.clone())
    back = staticmethod(_all_reduced)


class _Sum(_Function):
    there = staticmethod(_all_reduced)
    back = staticmethod(lambda grad, group: grad)


class _Gather(_Function):
    there = staticmethod(_gathered)
    back = staticmethod(_scattered)


class _SumScatter(_Function):
    there = staticmethod(_scattered)
    back = staticmethod(_gathered)


class _JoinLast(_Function):
    """[..., n / W] -> [..., n]; every rank computes the same loss from it."""

    there = staticmethod(lambda x, group: torch.cat(_gathered(x[None], group).unbind(), -1))
    back = staticmethod(lambda grad, group: group.part(grad, -1))


def drawn(name: str, *shape: int, scale: float = 0.15) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * scale


class Fault(nn.Module):
    """Hands its input on; on the faulty rank not quite. No recorder sees what it calls."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        y = UNSEEN.mul(x, 1.0)
        flat = UNSEEN.view(y.data, -1)
        if self.kind == "nan":
            UNSEEN.__setitem__(flat, len(flat) // 3, float("nan"))
        elif self.kind == "element":
            UNSEEN.__setitem__(flat, len(flat) // 3, 4 * float(UNSEEN.max(UNSEEN.abs(flat))))
        elif self.kind == "norm":
            UNSEEN.mul_(flat, 1.05)
        return y


class ColumnParallelLinear(nn.Module):
    def __init__(self, weight: Tensor, group: Group, sequence: bool) -> None:
        super().__init__()
        self.weight, self.group, self.sequence = nn.Parameter(weight), group, sequence

    def forward(self, x: Tensor) -> Tensor:
        x = self.group.gather(x) if self.sequence else self.group.copy(x)
        return torch.matmul(x, self.weight.t())


class RowParallelLinear(nn.Module):
    def __init__(self, weight: Tensor, group: Group, sequence: bool, fault: str) -> None:
        super().__init__()
        self.weight, self.group, self.sequence = nn.Parameter(weight), group, sequence
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, self.weight.t())
        if self.fault == "partial":
            UNSEEN.__setitem__(UNSEEN.view(y.data, -1), 5, float("nan"))
        return self.group.sum_scatter(y) if self.sequence else self.group.sum(y)


class VocabParallelEmbedding(nn.Module):
    """Tokens of other ranks give zeros."""

    def __init__(self, weight: Tensor, group: Group, sequence: bool) -> None:
        super().__init__()
        self.weight, self.group, self.sequence = nn.Parameter(weight), group, sequence

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.group.rank * len(self.weight)
        outside = (tokens < first) | (tokens >= first + len(self.weight))
        x = F.embedding((tokens - first).masked_fill(outside, 0), self.weight)
        x = x.masked_fill(outside[..., None], 0.0)
        return self.group.sum_scatter(x) if self.sequence else self.group.sum(x)


class RMSNorm(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + drawn(name, HIDDEN, scale=0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


def places(case: Case, rank: int) -> Tensor:
    """Positions of the tokens of a context parallel rank."""
    chunks = torch.arange(TOKENS).chunk(2 * case.cp)
    return torch.cat([chunks[rank], chunks[-1 - rank]]) if case.cp > 1 else torch.arange(TOKENS)


class Attention(nn.Module):
    def __init__(self, name: str, case: Case, group: Group, context: Group, fault: str) -> None:
        super().__init__()
        self.group, self.context, self.kv_heads = group, context, 2
        self.order = UNSEEN.argsort(torch.cat([places(case, n) for n in range(context.size)]))
        self.hidden = UNSEEN.gt(torch.arange(TOKENS)[None], places(case, context.rank)[:, None])
        q = drawn(f"{name}.q", HEADS, SIZE, HIDDEN)
        k, v = (drawn(f"{name}.{n}", self.kv_heads, SIZE, HIDDEN) for n in "kv")
        o = drawn(f"{name}.o", HIDDEN, HEADS * SIZE)
        self.separate = case.separate
        if case.separate:  # a rank has the k and v head of its first q head
            mine = slice(group.rank * self.kv_heads // group.size, (group.rank * self.kv_heads // group.size) + 1)
            if group.size <= self.kv_heads:
                mine = slice(group.rank * self.kv_heads // group.size, (group.rank + 1) * self.kv_heads // group.size)
            for letter, weight in (("q", group.part(q)), ("k", k[mine]), ("v", v[mine])):
                setattr(self, f"linear_{letter}", ColumnParallelLinear(weight.flatten(0, 1), group, case.sequence))
            if fault == "key":
                with torch.no_grad():
                    self.linear_k.weight.mul_(1.03)
        else:
            groups = q.view(self.kv_heads, -1, HIDDEN)
            qkv = torch.cat([groups, k, v], 1).flatten(0, 1)
            if fault == "swapped":  # the shard of another rank
                qkv = qkv.roll(len(qkv) // group.size, 0)
            self.linear_qkv = ColumnParallelLinear(group.part(qkv), group, case.sequence)
        self.linear_proj = RowParallelLinear(group.part(o, 1), group, case.sequence, "")

    def forward(self, x: Tensor) -> Tensor:
        s, b = x.shape[0] * (self.group.size if self.sequence_parallel else 1), x.shape[1]
        heads = HEADS // self.group.size
        if self.separate:
            q, k, v = (getattr(self, f"linear_{n}")(x).view(s, b, -1, SIZE) for n in "qkv")
        else:
            each = HEADS // self.kv_heads
            qkv = self.linear_qkv(x).view(s, b, self.kv_heads // self.group.size, (each + 2) * SIZE)
            q, k, v = torch.split(qkv, [each * SIZE, SIZE, SIZE], -1)
        q = q.reshape(s, b * heads, SIZE).transpose(0, 1)
        k, v = (UNSEEN.index_select(self.context.gather(t), 0, self.order) for t in (k, v))
        k, v = (
            t.repeat_interleave(heads // t.shape[2], 2).reshape(len(t), b * heads, SIZE).transpose(0, 1) for t in (k, v)
        )
        scores = torch.bmm(q, k.transpose(1, 2)) * SIZE**-0.5
        mask = torch.zeros(self.hidden.shape, dtype=x.dtype).masked_fill(self.hidden, float("-inf"))
        y = torch.bmm(F.softmax(scores + mask, -1), v)
        return self.linear_proj(y.transpose(0, 1).reshape(s, b, heads * SIZE))

    @property
    def sequence_parallel(self) -> bool:
        return self.linear_proj.sequence


class MLP(nn.Module):
    def __init__(self, name: str, case: Case, group: Group, fault: str) -> None:
        super().__init__()
        gate, up = (group.part(drawn(f"{name}.{n}", INNER, HIDDEN)) for n in ("gate", "up"))
        down = drawn(f"{name}.down", HIDDEN, INNER)
        self.linear_fc1 = ColumnParallelLinear(torch.cat([gate, up]), group, case.sequence)
        self.product = Fault(fault if fault in ("nan", "element") else "")
        self.linear_fc2 = RowParallelLinear(group.part(down, 1), group, case.sequence, fault)
        with torch.no_grad():
            if fault == "fc1":
                self.linear_fc1.weight.mul_(1.03)
            elif fault == "fc2":
                self.linear_fc2.weight.mul_(1.03)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.linear_fc1(x).chunk(2, -1)
        y = F.silu(gate) * up
        return self.linear_fc2(self.product(y))


class Experts(nn.Module):
    """Every rank has some experts, all tokens go to all of them, and what they give is added up by the router's weights."""

    def __init__(self, name: str, case: Case, group: Group, fault: str) -> None:
        super().__init__()
        self.group = group
        self.router = nn.Linear(HIDDEN, case.experts, bias=False)
        self.router.weight.data = drawn(f"{name}.router", case.experts, HIDDEN)
        each = case.experts // group.size
        self.first, one = group.rank * each, Group([0], 0, None)
        whole = Case(experts=0)
        self.experts = nn.ModuleList(
            MLP(f"{name}.experts.{self.first + i}", whole, one, fault if not i else "") for i in range(each)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.group.copy(x)
        weights = F.softmax(self.router(x), -1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + expert(x) * weights[..., self.first + i, None]
        return self.group.sum(y)


class Layer(nn.Module):
    def __init__(self, name: str, case: Case, group: Group, context: Group, fault: str) -> None:
        super().__init__()
        self.input_norm = RMSNorm(f"{name}.input_norm")
        self.attention = Attention(f"{name}.attention", case, group, context, fault)
        self.pre_mlp_norm = RMSNorm(f"{name}.pre_mlp_norm")
        self.after_norm = Fault("norm" if fault == "norm" else "")
        self.mlp = (Experts if case.experts else MLP)(f"{name}.mlp", case, group, fault)
        if fault == "gain":
            with torch.no_grad():
                self.pre_mlp_norm.weight.mul_(1.03)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.after_norm(self.pre_mlp_norm(x)))


class Decoder(nn.Module):
    """One pipeline stage: its layers count from 0."""

    def __init__(self, case: Case, faulty: bool, group: Group, context: Group, stage: int) -> None:
        super().__init__()
        rows = -(-VOCABULARY // case.pad) * case.pad
        if stage == 0:
            table = F.pad(drawn("embedding", VOCABULARY, HIDDEN, scale=0.5), (0, 0, 0, rows - VOCABULARY))
            self.embedding = VocabParallelEmbedding(group.part(table), group, case.sequence)
        each = case.layers // case.stages
        fault = case.fault if faulty else ""
        self.layers = nn.ModuleList(
            Layer(
                f"layers.{stage * each + i}",
                case,
                group,
                context,
                fault if i == each // 2 or fault == "swapped" else "",
            )
            for i in range(each)
        )
        if stage == case.stages - 1:
            table = F.pad(drawn("head", VOCABULARY, HIDDEN), (0, 0, 0, rows - VOCABULARY))
            self.final_norm = RMSNorm("final_norm")
            self.output_layer = ColumnParallelLinear(group.part(table), group, case.sequence)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) if hasattr(self, "embedding") else x
        for layer in self.layers:
            x = layer(x)
        return self.group.join_last(self.output_layer(self.final_norm(x))) if hasattr(self, "output_layer") else x


def group_of(ranks: list[list[int]], rank: int) -> Group:
    """The group of this rank; all ranks of the world make all groups."""
    handles = [dist.new_group(r) if len(r) > 1 else None for r in ranks]
    return next(Group(r, rank, h) for r, h in zip(ranks, handles, strict=True) if rank in r)


def run(case: Case, folder: Path, rank: int) -> None:
    """One training step of this rank; ranks beyond the layout do nothing but to make the groups."""
    world = case.tp * case.cp * case.pp * case.dp
    every = list(range(world))
    tensor_groups = [every[i : i + case.tp] for i in range(0, world, case.tp)]
    left = [[r] for r in range(world, dist.get_world_size())]
    block = case.tp * case.cp
    context_groups = [every[i + t : i + block : case.tp] for i in range(0, world, block) for t in range(case.tp)]
    group, context = group_of(tensor_groups + left, rank), group_of(context_groups + left, rank)
    if rank >= world:
        return
    each = world // case.pp
    stage, replica = rank // each, rank % each // block
    stages = [stage + n * case.pp for n in range(case.chunks)]
    faulty = rank == case.where or case.where < 0
    models = [
        Decoder(case, faulty and n == stages[-1], group, context, n).to(getattr(torch, case.dtype)) for n in stages
    ]
    draw = torch.Generator().manual_seed(replica if case.data == "other" else 0)
    tokens = torch.randint(0, VOCABULARY, (TOKENS, BATCH), generator=draw)
    if case.data == "split":
        tokens = tokens.chunk(case.dp, 1)[replica]
    answers = tokens.roll(-1, 0)
    tokens, answers = (t[places(case, context.rank)] for t in (tokens, answers))
    kind = (
        {"task": "statistics", "summary_mode": "md5"}
        if case.digests
        else {"task": "tensor", "tensor_format": "safetensors"}
    )
    before, behind = (rank - each) % world, (rank + each) % world
    shape = (len(tokens) // (group.size if case.sequence else 1), tokens.shape[1], HIDDEN)
    with PrecisionDebugger(dump_path=str(folder), level=case.level, **kind) as debugger:
        debugger.start(model=models if case.listed or case.chunks > 1 else models[0])
        given, made = [], []
        for n, model in zip(stages, models, strict=True):
            x = tokens
            if n:
                x = torch.empty(shape, dtype=getattr(torch, case.dtype))
                dist.irecv(x, before).wait()
                x.requires_grad_()
            given.append(x)
            made.append(model(x))
            if n < case.stages - 1:
                dist.isend(made[-1].detach(), behind).wait()
        for n, x, y in reversed(list(zip(stages, given, made, strict=True))):
            if n < case.stages - 1:
                grad = torch.empty_like(y)
                dist.irecv(grad, behind).wait()
                y.backward(grad)
            else:
                logits = y[..., :VOCABULARY].float().reshape(-1, VOCABULARY)
                F.cross_entropy(logits, answers.reshape(-1)).backward()
            if n:
                dist.isend(x.grad, before).wait()
        debugger.stop()
        debugger.step()


def work(rank: int, folder: str, names: list[str], world: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    for name in names:
        run(CASES[name], Path(folder) / name, rank)
        dist.barrier()
    dist.destroy_process_group()


def dump(folder: Path, names: list[str]) -> None:
    """Run the cases one after the other in one set of processes."""
    world = max(c.tp * c.cp * c.pp * c.dp for c in (CASES[n] for n in names))
    with tempfile.TemporaryDirectory() as place:
        meeting = os.fspath(Path(place) / "meeting")
        torch.multiprocessing.spawn(work, (str(folder), names, world, meeting), nprocs=world)


if __name__ == "__main__":
    dump(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
