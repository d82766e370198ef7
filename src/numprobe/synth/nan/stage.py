"""A pipeline stage's program in the making: its weights, its process groups, and how it communicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numprobe.synth.nan.builder import Builder, key_of
from numprobe.synth.nan.frames import Frames
from numprobe.synth.nan.program import Comm
from numprobe.synth.nan.records import Collector, Item, Plain, Text, Var, scalar
from numprobe.synth.nan.settings import Settings, Size


@dataclass(frozen=True)
class Variant:
    """What makes ranks run different code: the pipeline stage, unwritten buffers, the harmless division, and a buffer that is
    used unwritten (in this micro-batch and layer)."""

    stage: int
    unwritten: bool = False
    division: bool = False
    uses_unwritten: tuple[int, int] | None = None


@dataclass(frozen=True)
class Transfer:
    """One point-to-point operation: ``op`` isend or irecv, ``peer`` next or prev (stage), the tensor, the caller's role."""

    op: str
    peer: str
    tensor: Var
    role: str


@dataclass
class Stage:
    """What all parts of the model need while they write a program with ``b``."""

    size: Size
    settings: Settings
    variant: Variant
    seed: int
    b: Builder = field(init=False)
    weights: dict[str, Var] = field(default_factory=dict)
    experts: set[Var] = field(default_factory=set)
    groups: dict[str, Text] = field(init=False)

    def __post_init__(self) -> None:
        s = self.settings
        collector = Collector(s.level, s.risk, s.only, s.unrecorded)
        frames = Frames(plumbing=not self.size.lean, grouped=s.grouped_stacks)
        self.b = Builder(collector, frames, micro_steps=s.micro_steps, salt=self.seed)
        self.groups = {g: self._group(g) for g in ("tp", "ep", "dp", "pp")}

    @property
    def dtype(self) -> str:
        return self.settings.dtype

    @property
    def full(self) -> bool:
        return not self.size.lean

    @property
    def hidden_shape(self) -> tuple[int, ...]:
        """Shape of the residual stream: (seq, batch, hidden), without the batch in the lean model."""
        return (self.size.seq, 1, self.size.hidden) if self.full else (self.size.seq, self.size.hidden)

    @property
    def layers_path(self) -> str:
        return self.size.layers_path

    # -- what a rank brings along

    def _group(self, kind: str) -> Text:
        return self.b.text(lambda rank: rank.group_text(kind))

    def weight(self, name: str, shape: tuple[int, ...], rms: float, shard: str = "", offset: float = 0.0) -> Var:
        """A parameter. ``shard``: ``tp`` or ``ep``, the coordinate that its values depend on besides the stage."""
        if name not in self.weights:
            dtype = self.dtype
            v = self.b.leaf(lambda rank: rank.weight(name, dtype, shape, rms, shard, offset), grad=True)
            self.weights[name] = v
            self.b.weights.add(v)
            if shard == "ep":
                self.experts.add(v)
        return self.weights[name]

    def placeholder(self, shape: tuple[int, ...]) -> Text:
        """The output buffer of a communication: null, or in old dumps what its memory holds."""
        number, dtype = self.b.registers, self.dtype
        return self.b.text(lambda rank: rank.placeholder(dtype, shape, number))

    # -- collectives

    def group_size(self, group: str) -> int:
        s = self.size
        return {"tp": s.tp, "ep": s.ep, "dp": s.dp, "pp": s.pp, "world": s.world}[group]

    def _collective(
        self,
        role: str,
        api: str,
        group: str,
        x: Var,
        before: list[Item],
        kwargs: dict[str, Item],
        after: Callable[[Var], list[Item]],
        *,
        is_async: bool = False,
        **options: Any,
    ) -> Var:
        b = self.b
        out = b.var()
        name = f"Distributed.{api}.{b.count('Distributed.' + api)}.forward"
        parts = {"input_args": before, "input_kwargs": kwargs, "output": [*after(out), *kwargs.values()]}
        handle = b.new_handle(out) if is_async else -1
        b.communicate(role, Comm(api, group, handle=handle, options=options), name, parts, [x], [out])
        return out

    def _group_kwarg(self, group: str) -> dict[str, Item]:
        return {} if group == "world" else {"group": self.groups[group]}  # the default group is not written

    def all_reduce(self, role: str, x: Var, group: str, *, op: str = "SUM", is_async: bool = False) -> Var:
        """all_reduce, or x itself in a group of one. An asynchronous one needs ``b.wait``."""
        if self.group_size(group) == 1:
            return x
        kwargs: dict[str, Item] = {}
        if op != "SUM":
            kwargs["op"] = f'{{\n     "type": "torch.distributed.ReduceOp",\n     "value": "RedOpType.{op}"\n    }}'
        kwargs |= self._group_kwarg(group)
        if is_async:
            kwargs["async_op"] = scalar("bool", True)
        return self._collective(
            role, "all_reduce", group, x, [Plain(x)], kwargs, lambda y: [Plain(y)], is_async=is_async, op=op
        )

    def reduce_scatter(self, role: str, x: Var) -> Var:
        kwargs = self._group_kwarg("dp")
        before: list[Item] = [self.placeholder((self.size.hidden,)), Plain(x)]
        return self._collective(
            role, "reduce_scatter_tensor", "dp", x, before, kwargs, lambda y: [Plain(y), Plain(x)], op="SUM"
        )

    def all_gather(self, role: str, x: Var) -> Var:
        kwargs = self._group_kwarg("dp")
        before: list[Item] = [self.placeholder((self.size.hidden,)), Plain(x)]
        return self._collective(role, "all_gather_into_tensor", "dp", x, before, kwargs, lambda y: [Plain(y), Plain(x)])

    def broadcast(self, role: str, x: Var) -> Var:
        """From the first rank of the data-parallel group, its number given by position."""
        source = self.b.text(lambda rank: scalar("int", rank.group("dp")[0]))
        kwargs = self._group_kwarg("dp")
        return self._collective(role, "broadcast", "dp", x, [Plain(x), source], kwargs, lambda y: [Plain(y), source])

    def all_to_all(self, role: str, x: Var, *, dispatch: bool, pair: int | None = None) -> Var:
        """Tokens to their experts (``dispatch``) or back; the gradient goes the other way. ``pair`` ties the two together."""
        b = self.b
        if self.size.ep == 1:
            return x
        tie = key_of(f"{b.micro_batch}.{b.layer}") if pair is None else pair
        kwargs: dict[str, Item] = {}
        splits: tuple[int, ...] = ()
        if self.full:
            received, sent = b.var(), b.var()
            kwargs = {"output_split_sizes": Text(received.reg), "input_split_sizes": Text(sent.reg)}
            splits = (received.reg, sent.reg)
        kwargs |= self._group_kwarg("ep")
        before: list[Item] = [self.placeholder((self.size.seq, self.size.hidden)), Plain(x)]
        out = self._collective(
            role, "all_to_all_single", "ep", x, before, kwargs, lambda y: [Plain(y), Plain(x)],
            dispatch=dispatch, pair=tie, splits=splits,
        )  # fmt: skip
        return b.function(x, out, lambda g: self.all_to_all(role, g, dispatch=not dispatch, pair=tie))

    def copy_to_tensor_parallel(self, x: Var) -> Var:
        """Identity forward, all_reduce of the gradient backward."""
        if self.size.tp == 1:
            return x
        return self.b.function(x, Var(x.reg, x.grad), lambda g: self.all_reduce("qkv_grad_reduce", g, "tp"))

    def reduce_from_tensor_parallel(self, role: str, x: Var) -> Var:
        """all_reduce forward, identity backward."""
        if self.size.tp == 1:
            return x
        return self.b.function(x, self.all_reduce(role, x, "tp"), lambda g: g)

    # -- point to point

    def transfer(self, *transfers: Transfer) -> None:
        """Send and receive, in the style that the settings name: one call each, or one batch."""
        if self.settings.p2p == "batch":
            self._batch(transfers)
            return
        for t in transfers:
            self._single(t)

    def _single(self, t: Transfer) -> None:
        b, group = self.b, self.groups["pp"]
        api = t.op if self.settings.p2p == "isend" else t.op[1:]
        sends = api.endswith("send")
        other: Item = b.text(lambda rank: scalar("int", rank.peer(t.peer)))
        buffer: Item = Plain(t.tensor) if sends else self.placeholder(self.hidden_shape)
        after: Item = "null" if api == "isend" else Plain(t.tensor)  # the collector masks what a pending send holds
        parts: dict[str, Any] = {"input_args": [buffer, other], "input_kwargs": {"group": group}}
        if self.settings.p2p_keywords and api in ("isend", "irecv"):
            keyword = "dst" if sends else "src"
            parts = {"input_args": [], "input_kwargs": {"tensor": buffer, keyword: other, "group": group}}
        parts["output"] = [after, other, group]
        name = f"Distributed.{api}.{b.count('Distributed.' + api)}.forward"
        comm = Comm(api, "pp", transfers=((api, t.peer, t.tensor.reg),))
        b.communicate(t.role, comm, name, parts, [t.tensor] if sends else [], [] if sends else [t.tensor])

    def _batch(self, transfers: tuple[Transfer, ...]) -> None:
        """batch_isend_irecv: a list of P2POps, whose receive buffers the collector does not mask."""
        b = self.b
        before, after = [], []
        for t in transfers:
            fields = self._p2p_fields(t)
            before.append(fields)
            after.append({**fields, "tensor": Plain(t.tensor)})
        name = f"Distributed.batch_isend_irecv.{b.count('Distributed.batch_isend_irecv')}.forward"
        parts = {"input_args": [before], "input_kwargs": {}, "output": [after]}
        comm = Comm("batch_isend_irecv", "pp", transfers=tuple((t.op, t.peer, t.tensor.reg) for t in transfers))
        role = transfers[0].role if len(transfers) == 1 else "exchange"
        sent = [t.tensor for t in transfers if t.op == "isend"]
        received = [t.tensor for t in transfers if t.op == "irecv"]
        b.communicate(role, comm, name, parts, sent, received)

    def _p2p_fields(self, t: Transfer) -> dict[str, Any]:
        b, number, dtype, shape = self.b, self.b.registers, self.dtype, self.hidden_shape
        unwritten = b.text(lambda rank: rank.unwritten_text(dtype, shape, number)) if t.op == "irecv" else None
        return {
            "class_type": '"torch.distributed.P2POp"',
            "tensor": unwritten or Plain(t.tensor),
            "op": f'"{t.op}"',
            "peer": b.text(lambda rank: str(rank.peer(t.peer))),
            "tag": "0",
            "group_id": b.text(lambda rank: f'"{rank.group_id("pp")}"'),
        }
