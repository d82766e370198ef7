"""The training step that is simulated: a mixture-of-experts transformer under tensor, expert, data and pipeline parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numprobe.synth import rules
from numprobe.synth import tensor as T
from numprobe.synth.frames import Frames
from numprobe.synth.program import Builder, Comm, Grad, Item, Label, Plain, Program, Tape, Text, Var, key_of, scalar
from numprobe.synth.settings import Settings, Size

HEADS = 4


@dataclass(frozen=True)
class Variant:
    """What makes ranks of one stage run different code: unwritten buffers, the harmless division, a buffer really used."""

    stage: int
    unwritten: bool
    division: bool
    uses_unwritten: tuple[int, int] | None = None  # micro-batch and layer


def step_program(size: Size, settings: Settings, variant: Variant) -> Program:
    """The program of one training step for the ranks of ``variant``."""
    return _Step(size, settings, variant).program()


class _Step:
    def __init__(self, size: Size, settings: Settings, variant: Variant) -> None:
        self.size, self.settings, self.variant = size, settings, variant
        self.dtype = settings.dtype
        self.full = not size.lean
        hidden = settings.unrecorded

        def unrecorded(label: Label, name: str) -> bool:
            return label.role in hidden or any(h.endswith(".") and name.startswith(h) for h in hidden)

        self.b = Builder(
            Frames(plumbing=self.full, grouped=settings.grouped_stacks),
            level=settings.level,
            risk=settings.risk,
            only=settings.only,
            unrecorded=unrecorded,
            micro_steps=settings.micro_steps,
        )
        self.weights: dict[str, Var] = {}
        self.experts: list[Var] = []
        self.groups = {g: self.b.text(lambda v, g=g: v.group_text(g)) for g in ("tp", "ep", "dp", "pp")}
        self.losses: list[Var] = []
        self.shared_scale: Var | None = None
        self.saved: dict[int, tuple[Var, list[tuple[Var, Tape, Var]], Tape, Tape, Var]] = {}

    # -- leaves

    def weight(self, name: str, shape: tuple[int, ...], rms: float, shard: str = "", offset: float = 0.0) -> Var:
        """A parameter. ``shard``: ``tp`` or ``ep``, the coordinate that its values depend on besides the stage."""
        if name not in self.weights:
            dtype = self.dtype
            v = self.b.leaf(lambda r: r.weight(name, dtype, shape, rms, shard, offset), grad=True)
            self.weights[name] = v
            self.b.weights.add(v)
            if shard == "ep":
                self.experts.append(v)
        return self.weights[name]

    def placeholder(self, shape: tuple[int, ...], dtype: str | None = None) -> Text:
        """The output buffer of a communication: null, or in old dumps what its memory holds."""
        number = self.b.registers
        return self.b.text(lambda r: r.placeholder(dtype or self.dtype, shape, number))

    # -- communication

    def all_reduce(
        self, role: str, x: Var, group: str, *, op: str = "", is_async: bool = False, grad: bool = False
    ) -> Var:
        if self.group_size(group) == 1:
            return x
        kwargs: dict[str, Item] = {}
        if op:
            kwargs["op"] = f'{{\n     "type": "torch.distributed.ReduceOp",\n     "value": "RedOpType.{op}"\n    }}'
        if group != "world":
            kwargs["group"] = self.groups[group]
        if is_async:
            kwargs["async_op"] = scalar("bool", True)
        return self.b.collective(
            role,
            "all_reduce",
            group,
            [x],
            args=[Plain(x)],
            kwargs=kwargs,
            shown_outs=lambda out: [Plain(out), *kwargs.values()],
            grad=grad,
            is_async=is_async,
            op=op or "SUM",
        )

    def group_size(self, group: str) -> int:
        s = self.size
        return {"tp": s.tp, "ep": s.ep, "dp": s.dp, "pp": s.pp, "world": s.world}[group]

    def all_to_all(self, role: str, x: Var, direction: str, pair: int | None = None) -> Var:
        """Tokens to the experts (``dispatch``) or back (``combine``); the gradient goes the other way."""
        size, b = self.size, self.b
        if size.ep == 1:
            return x
        pair = key_of(f"{b.micro_batch}.{b.layer}") if pair is None else pair
        kwargs: dict[str, Item] = {}
        splits: tuple[int, ...] = ()
        if self.full:
            received, sent = b.var(), b.var()
            kwargs = {"output_split_sizes": Text(received.reg), "input_split_sizes": Text(sent.reg)}
            splits = (received.reg, sent.reg)
        kwargs["group"] = self.groups["ep"]
        out = b.collective(
            role,
            "all_to_all_single",
            "ep",
            [x],
            args=[self.placeholder((size.seq, size.hidden)), Plain(x)],
            kwargs=kwargs,
            shown_outs=lambda y: [Plain(y), Plain(x), *kwargs.values()],
            direction=direction,
            pair=pair,
            splits=splits,
        )
        back = "combine" if direction == "dispatch" else "dispatch"
        return b.function(x, out, lambda g: self.all_to_all(role, g, back, pair))

    def send(self, role: str, x: Var, peer: str) -> None:
        self.transfer([("isend", peer, x, role)])

    def recv(self, role: str, peer: str, *, grad: bool) -> Var:
        out = self.b.var(grad=grad)
        self.transfer([("irecv", peer, out, role)])
        return out

    def transfer(self, transfers: list[tuple[str, str, Var, str]]) -> None:
        """Point-to-point operations, in the style that the settings name."""
        style = self.settings.p2p
        if style == "batch":
            self._batch(transfers)
            return
        for op, peer, x, role in transfers:
            self._single(op if style == "isend" else op[1:], peer, x, role)

    def _single(self, api: str, peer: str, x: Var, role: str) -> None:
        b, group = self.b, self.groups["pp"]
        sends = api.endswith("send")
        where: Item = self.b.text(lambda r: scalar("int", r.peer(peer)))
        name = f"Distributed.{api}.{b.count('Distributed.' + api)}.forward"
        buffer: Item = Plain(x) if sends else self.placeholder((self.size.seq, 1, self.size.hidden))
        after: Item = "null" if api == "isend" else Plain(x)
        keyword = "dst" if sends else "src"
        row = None
        if b.wanted("Distributed", api, name, role):
            if self.settings.p2p_keywords and api in ("isend", "irecv"):
                parts: dict[str, Any] = {
                    "input_args": [],
                    "input_kwargs": {"tensor": buffer, keyword: where, "group": group},
                }
            else:
                parts = {"input_args": [buffer, where], "input_kwargs": {"group": group}}
            row = b.row(name, {**parts, "output": [after, where, group]}, [x] if sends else [], [] if sends else [x])
            b.note(name, role)
        elif b.level == "mix":
            b.construct[name] = (None, b.micro_batch)
        comm = Comm(api, "pp", transfers=((api, peer, x.reg),))
        b.emit(None, [], label=b.label(role), row=row, comm=comm)

    def _batch(self, transfers: list[tuple[str, str, Var, str]]) -> None:
        b = self.b
        name = f"Distributed.batch_isend_irecv.{b.count('Distributed.batch_isend_irecv')}.forward"
        before: list[Item] = []
        after: list[Item] = []
        for op, peer, x, _ in transfers:
            number = b.registers
            old = Text(
                b.leaf(lambda r, n=number: r.unwritten(self.dtype, (self.size.seq, 1, self.size.hidden), n, 2)).reg
            )
            fields: dict[str, Any] = {
                "class_type": '"torch.distributed.P2POp"',
                "tensor": Plain(x) if op == "isend" else old,
                "op": f'"{op}"',
                "peer": b.text(lambda r, p=peer: str(r.peer(p))),
                "tag": "0",
                "group_id": b.text(lambda r: f'"{r.group_id("pp")}"'),
            }
            before.append(fields)
            after.append({**fields, "tensor": Plain(x)})
        role = transfers[0][3] if len(transfers) == 1 else "exchange"
        row = None
        sent = [x for op, _, x, _ in transfers if op == "isend"]
        received = [x for op, _, x, _ in transfers if op == "irecv"]
        if b.wanted("Distributed", "batch_isend_irecv", name, role):
            row = b.row(name, {"input_args": [before], "input_kwargs": {}, "output": [after]}, sent, received)
            b.note(name, role)
        elif b.level == "mix":
            b.construct[name] = (None, b.micro_batch)
        comm = Comm("batch_isend_irecv", "pp", transfers=tuple((op, peer, x.reg) for op, peer, x, _ in transfers))
        b.emit(None, [], label=b.label(role), row=row, comm=comm)

    # -- pieces of the model

    def linear(self, role: str, x: Var, w: Var, width: int, k: int, bias: Var | None = None) -> Var:
        grads = (
            Grad(0, (1,), {"contracts": True, "k": width, "rows": True}),
            Grad(1, (0,), {"contracts": True, "weight": True}),
        )
        three_d = role not in ("router", "tail")
        return self.b.api(
            role, "Functional", "linear", rules.matmul, [x, w], args=[x, w, "null"], grads=grads,
            shows=("view",) if three_d else (0, 1), width=width, k=k,
        )  # fmt: skip

    def norm(self, role: str, path: str, x: Var) -> Var:
        b, h = self.b, self.size.hidden
        w = self.weight(f"{path}.weight", (h,), 0.02, offset=1.0)
        grads = (Grad(0, (0, 1)), Grad(1, (0,), {"contracts": True, "weight": True}))

        def call(x: Var) -> Var:
            if self.settings.norm == "npu_rms_norm":
                return b.api(
                    role,
                    "NPU",
                    "npu_rms_norm",
                    rules.normalised,
                    [x, w],
                    kwargs={"epsilon": scalar("float", 1e-5)},
                    grads=grads,
                )
            shape = ['{\n     "type": "int",\n     "value": %d\n    }' % h]
            return b.api(
                role, "Functional", "layer_norm", rules.normalised, [x, w],
                args=[x, shape, w, "null", scalar("float", 1e-5)], grads=grads,
            )  # fmt: skip

        if not self.full:
            return call(x)
        with b.module(path, "FusedLayerNorm", [x], {"weight": w}) as m:
            y = call(m.inner[0])
            m.outputs = [y]
        return y

    def add(self, role: str, x: Var, y: Var) -> Var:
        return self.b.api(role, "Tensor", "__add__", rules.added, [x, y], grads=(Grad(0), Grad(1)))

    def flat(self, x: Var) -> Var:
        return self.b.hidden("flatten", rules.flattened, [x], grads=(Grad(0, rule=rules.reshaped_gradient),))

    def unflat(self, x: Var) -> Var:
        s = self.size
        return self.b.hidden(
            "unflatten", rules.same, [x], grads=(Grad(0, rule=rules.reshaped_gradient),), shape=(s.seq, 1, s.hidden)
        )

    def masks(self) -> None:
        """Attention masks and their look-alikes of a fault: -inf from full, triu and masked_fill, the dtype's minimum."""
        b, s, kind = self.b, self.size, self.settings.masks
        length = min(s.seq, 64)
        square = (length, length)
        rows = scalar("int", length)
        hides = b.compute("padding", rules.made, [], make=lambda key: T.boolean(square, key))
        if kind in ("inf", "both"):
            full = b.api(
                "mask_full", "Torch", "full", rules.made, [], args=[[rows.replace("\n", "\n"), rows], _minus_infinity()],
                kwargs={"dtype": '{\n     "type": "torch.dtype",\n     "value": "torch.float32"\n    }'},
                make=lambda key: T.constant("fp32", square, float("-inf"), key),
            )  # fmt: skip
            b.api(
                "mask_triu",
                "Tensor",
                "triu",
                rules.infinite_triangle,
                [full],
                kwargs={"diagonal": scalar("int", 1)},
                dtype="fp32",
                shape=square,
            )
            if self.full:
                bias = b.compute("bias", rules.made, [], make=lambda key: T.finite("fp32", square, 0.3, key))
                filled = b.api(
                    "mask_scores",
                    "Tensor",
                    "masked_fill",
                    rules.masked_fill,
                    [bias, hides],
                    args=[bias, hides, _minus_infinity()],
                )
                b.api(
                    "mask_softmax", "Functional", "softmax", rules.softmax, [filled], kwargs={"dim": scalar("int", -1)}
                )
        if kind in ("finite", "both"):
            zeros = b.compute("zeros", rules.made, [], make=lambda key: T.constant("fp32", square, 0.0, key))
            b.api(
                "mask_minimum", "Tensor", "masked_fill", rules.masked_fill, [zeros, hides],
                args=[zeros, hides, scalar("float", -T.LIMIT["fp32"])], finite=True,
            )  # fmt: skip

    def harmless_division(self) -> None:
        b = self.b
        shape = (8,)
        routed = b.compute("routed", rules.made, [], make=lambda key: T.finite("fp32", shape, 3.0, key))
        capacity = b.compute("capacity", rules.made, [], make=_capacity)
        zeros = b.compute("no_ratio", rules.made, [], make=lambda key: T.constant("fp32", shape, 0.0, key))
        used = b.compute("used", rules.made, [], make=lambda key: T.boolean(shape, key))
        ratio = b.api("ratio_div", "Tensor", "__truediv__", rules.divided, [routed, capacity], harmless=True)
        b.api("ratio_where", "Torch", "where", rules.selected, [used, ratio, zeros])

    def unwritten_buffer(self, tokens: Var) -> Var:
        """A buffer with whatever its memory holds, copied about, and then overwritten with ``tokens`` by an unwrapped copy_."""
        b, s, dtype = self.b, self.size, self.dtype
        shape = (s.seq, s.hidden)
        number = b.registers
        place = f"unwritten.{b.micro_batch}.{b.layer}"
        memory = b.leaf(lambda r: r.unwritten_tensor(place, dtype, shape, number))
        turn = (b.layer + b.micro_batch) % 3
        if turn == 0:
            sizes = [[scalar("int", s.seq), scalar("int", s.hidden)]]
            buffer = b.api("allocate", "Torch", "empty", rules.same, [memory], args=sizes)
        elif turn == 1:
            buffer = b.api("allocate_like", "Torch", "empty_like", rules.same, [memory], args=[tokens])
        else:
            buffer = b.api(
                "allocate_new",
                "Tensor",
                "new_empty",
                rules.same,
                [memory],
                args=[tokens, [scalar("int", s.seq), scalar("int", s.hidden)]],
            )
        spare = b.api("buffer_clone", "Tensor", "clone", rules.same, [buffer])
        if self.full:
            spare = b.api("buffer_detach", "Tensor", "detach", rules.same, [spare])
            spare = b.api("buffer_to", "Tensor", "to", rules.cast, [spare], args=[spare, "{}"], dtype="fp32")
        if self.variant.uses_unwritten == (b.micro_batch, b.layer) and b.phase != "backward":
            return b.api("buffer_use", "Tensor", "__add__", rules.added, [tokens, buffer], grads=(Grad(0),))
        return tokens

    def attention(self, x: Var) -> Var:
        b, s = self.b, self.size
        h = s.hidden
        mask = b.compute("causal", rules.made, [], make=lambda key: T.boolean((s.seq, s.seq), key))
        kwargs: dict[str, Item] = {
            "atten_mask": mask,
            "scale": scalar("float", 0.125),
            "keep_prob": scalar("float", 1.0),
        }
        heads = scalar("int", HEADS)
        if not self.full:
            return b.api(
                "attention", "NPU", "npu_fusion_attention", rules.attention, [x], args=[x, heads, scalar("str", "SBH")], kwargs=kwargs,
                outs=lambda y: [y, "null", "null"], grads=(Grad(0, (0,)),), width=h,
            )  # fmt: skip
        part = h // s.tp
        # the record shows q, k, v; the three are views of one buffer, which is what the rule takes
        q = b.api("chunk", "Tensor", "chunk", rules.scaled, [x], args=[x, scalar("int", 3)], kwargs={"dim": scalar("int", -1)},
                  grads=(Grad(0, rule=rules.widened_gradient),), by=1.0, shape=(s.seq, 1, part))  # fmt: skip
        maxima = b.compute("softmax_max", rules.log_sum, [q])
        return b.api(
            "attention", "NPU", "npu_fusion_attention", rules.attention, [q], args=[q, q, q, heads, scalar("str", "SBH")], kwargs=kwargs,
            outs=lambda y: [y, maxima, maxima, "null", "null", "null", "null"], grads=(Grad(0, (0,)),), shows=(0, 0, 0), width=part,
        )  # fmt: skip

    def attention_block(self, x: Var, path: str) -> Var:
        b, s = self.b, self.size
        h = s.hidden
        if not self.full:
            w = self.weight(f"{path}.qkv", (h, h), 0.03, "tp")
            y = self.copy_to_tensor_parallel(x)
            y = self.linear("qkv", y, w, h, h)
            y = self.reduce_from_tensor_parallel("proj_reduce", y)
            return self.attention(y)
        part = h // s.tp
        with b.module(f"{path}.self_attention", "SelfAttention", [x]) as outer:
            w = self.weight(f"{path}.qkv", (3 * part, h), 0.03, "tp")
            with b.module(
                f"{path}.self_attention.linear_qkv", "ColumnParallelLinear", [outer.inner[0]], {"weight": w}
            ) as m:
                y = self.linear("qkv", self.copy_to_tensor_parallel(m.inner[0]), w, 3 * part, h)
                m.outputs = [y]
            with b.module(f"{path}.self_attention.core_attention", "DotProductAttention", [y]) as m:
                y = self.attention(m.inner[0])
                m.outputs = [y]
            w = self.weight(f"{path}.proj", (h, part), 0.03, "tp")
            with b.module(f"{path}.self_attention.linear_proj", "RowParallelLinear", [y], {"weight": w}) as m:
                y = self.linear("proj", m.inner[0], w, h, part)
                y = self.reduce_from_tensor_parallel("proj_reduce", y)
                m.outputs = [y]
            outer.outputs = [y]
        return y

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

    def router(self, x: Var, path: str) -> Var:
        b, s = self.b, self.size
        experts = max(8, s.ep)
        w = self.weight(f"{path}.router", (experts, s.hidden), 0.05)

        def call(x: Var) -> Var:
            logits = self.linear("router", x, w, experts, s.hidden)
            closed = b.compute("closed", rules.made, [], make=lambda key: T.boolean((s.seq, experts), key))
            masked = b.api(
                "router_mask", "Tensor", "masked_fill", rules.masked_fill, [logits, closed], args=[logits, closed, _minus_infinity()],
                grads=(Grad(0),),
            )  # fmt: skip
            index = b.compute("top_index", rules.made, [], make=lambda key: T.integers((s.seq, 2), 0, experts - 1, key))
            top = b.api(
                "router_topk", "Torch", "topk", rules.top_values, [masked], args=[masked],
                kwargs={"k": scalar("int", 2), "dim": scalar("int", 1)}, outs=lambda y: [y, index], grads=(Grad(0),), width=2,
            )  # fmt: skip
            return b.api(
                "router_softmax",
                "Functional",
                "softmax",
                rules.softmax,
                [top],
                kwargs={"dim": scalar("int", -1)},
                grads=(Grad(0, (-1,)),),
            )

        if not self.full:
            probs = call(x)
            probs.grad = False  # the large case stops the router's gradient
            return probs
        with b.module(f"{path}.mlp.router", "TopKRouter", [x], {"weight": w}) as m:
            probs = call(m.inner[0])
            m.outputs = [probs]
        return probs

    def experts_block(self, x: Var, path: str) -> Var:
        b, s = self.b, self.size
        local = 2
        w1 = self.weight(f"{path}.w1", (local, s.hidden, 2 * s.ffn), 0.025, "ep")
        w2 = self.weight(f"{path}.w2", (local, s.ffn, s.hidden), 0.025, "ep")

        def grouped(role: str, x: Var, w: Var, width: int, k: int) -> Var:
            counts = b.compute(f"{role}_groups", rules.made, [x], make=lambda key: T.integers((local,), 0, s.seq, key))
            return b.api(
                role, "NPU", "npu_grouped_matmul", rules.matmul, [x, w], args=[[x], [w]],
                kwargs={"group_list": counts, "split_item": scalar("int", 3), "group_type": scalar("int", 0)},
                grads=(Grad(0, (1,), {"contracts": True, "k": width, "rows": True}), Grad(1, (0,), {"contracts": True, "weight": True})),
                width=width, k=k,
            )  # fmt: skip

        def call(x: Var) -> Var:
            y = grouped("gmm1", x, w1, 2 * s.ffn, s.hidden)
            y = b.api(
                "swiglu",
                "NPU",
                "npu_swiglu",
                rules.gated,
                [y],
                kwargs={"dim": scalar("int", -1)},
                grads=(Grad(0, (0,), {"rows": True}),),
            )
            return grouped("gmm2", y, w2, s.hidden, s.ffn)

        if not self.full:
            return call(x)
        with b.module(f"{path}.mlp.experts", "GroupedMLP", [x], {"weight1": w1, "weight2": w2}) as m:
            y = call(m.inner[0])
            m.outputs = [y]
        return y

    def moe(self, x: Var, path: str) -> Var:
        b = self.b
        with b.module(f"{path}.mlp", "MoELayer", [x]) as m:
            tokens = self.flat(m.inner[0])
            probs = self.router(tokens, path)
            # permuting the tokens is index arithmetic that no collector sees; what the router made of NaN goes along
            order = b.hidden(
                "permute",
                rules.permuted,
                [tokens, probs],
                grads=(Grad(0, (0,), rule=rules.reshaped_gradient),),
                full=self.full,
            )
            if self.variant.unwritten or self.variant.uses_unwritten == (b.micro_batch, b.layer):
                order = self.unwritten_buffer(order)
            y = self.all_to_all("dispatch", order, "dispatch")
            y = self.experts_block(y, path)
            y = self.all_to_all("combine", y, "combine")
            if self.full:
                y = b.api(
                    "weigh", "Tensor", "__mul__", rules.multiplied, [y, probs],
                    grads=(Grad(0, (1,), {"rows": True}), Grad(1, (0,))), shows=(0, 1),
                )  # fmt: skip
            y = self.unflat(y)
            m.outputs = [y]
        return y

    def extras(self, x: Var) -> Var:
        """Optional operators with a domain: a gated logarithm, a root of a variance."""
        b, s = self.b, self.size
        if "gate" in self.settings.extras:
            shape = (s.seq, 1, s.hidden)
            size = b.api("gate_abs", "Tensor", "abs", rules.magnitude, [x], grads=(Grad(0),))
            logs = b.api(
                "gate_log", "Torch", "log", rules.logarithm, [size], grads=(Grad(0, rule=rules.gradient_of_log),)
            )
            chosen = b.compute("gate_open", rules.made, [], make=lambda key: T.boolean(shape, key))
            zeros = b.compute("gate_zeros", rules.made, [], make=lambda key: T.constant(self.dtype, shape, 0.0, key))
            gate = b.api("gate_where", "Torch", "where", rules.selected, [chosen, logs, zeros], grads=(Grad(1),))
            x = self.add("gate_add", x, gate)
        if "spread" in self.settings.extras:
            kind = self.settings.notes.get("spread", "sqrt")
            rows = (s.seq, 1, 1)
            square = b.compute(
                "mean_square", rules.made, [x], make=lambda key: T.finite(self.dtype, rows, 0.1, key, offset=1.0)
            )
            mean = b.compute(
                "mean", rules.made, [x], make=lambda key: T.finite(self.dtype, rows, 0.05, key, offset=0.1)
            )
            spread = b.api("spread_sub", "Tensor", "__sub__", rules.difference, [square, mean])
            if kind == "div":
                one = b.compute("one", rules.made, [], make=lambda key: T.constant(self.dtype, rows, 1.0, key))
                scale = b.api("spread_op", "Tensor", "__truediv__", rules.divided, [one, spread])
            elif kind == "log":
                scale = b.api("spread_op", "Torch", "log", rules.logarithm, [spread])
            else:
                scale = b.api("spread_op", "Tensor", "sqrt", rules.square_root, [spread])
            x = b.api("spread_mul", "Tensor", "__mul__", rules.multiplied, [x, scale], grads=(Grad(0, (1,)),))
        return x

    def layer(self, index: int, x: Var) -> Var:
        b = self.b
        path = f"module.decoder.layers.{index}" if self.full else f"layers.{index}"
        b.layer = index
        with b.module(path, "TransformerLayer", [x]) as m:
            x = self.extras(m.inner[0])
            if self.full and self.settings.mask_first:
                self.masks()
            y = self.norm("norm1", f"{path}.input_layernorm", x)
            y = self.attention_block(y, path)
            if self.full:
                if not self.settings.mask_first:
                    self.masks()
                x = self.add("residual1", x, y)
                y = self.norm("norm2", f"{path}.pre_mlp_layernorm", x)
            if self.variant.division and index == 0:
                self.harmless_division()
            y = self.moe(y, path)
            y = self.add("residual2", x, y)
            m.outputs = [y]
        b.layer = -1
        return y

    # -- forward, loss, backward

    def forward(self, mb: int, received: Var | None) -> Var:
        b, s = self.b, self.size
        b.phase, b.micro_batch = "forward", mb
        before, after = Tape(), Tape()
        b.tape = before
        if not self.full:
            self.masks()
        x = received if received is not None else self.embed(mb)
        start = x
        if self.shared_scale is not None:
            x = b.api(
                "rope_scale", "Tensor", "__mul__", rules.multiplied, [x, self.shared_scale], grads=(Grad(0, (1,)),)
            )
        if "adapter" in self.settings.extras:
            x = self.adapter("adapter", x)
        layers = []
        for i in range(s.layers):
            b.tape = Tape()
            y = self.layer(i, x)
            layers.append((x, b.tape, y))
            x = y
        b.tape = after
        if "adapter" in self.settings.extras:
            x = self.adapter("adapter_again", x)
        if self.variant.stage == s.pp - 1:
            x = self.loss(mb, x)
        self.saved[mb] = (start, layers, before, after, x)
        return x

    def adapter(self, role: str, x: Var) -> Var:
        """A module that is called twice a pass: its second call has call number 1 in the first micro-batch."""
        h = self.size.hidden
        w = self.weight("adapter", (h, h), 0.06)
        with self.b.module("module.adapter", "SharedAdapter", [x], {"weight": w}) as m:
            y = self.linear(role, m.inner[0], w, h, h)
            m.outputs = [y]
        return y

    def embed(self, mb: int) -> Var:
        b, s = self.b, self.size
        ids = b.leaf(lambda r: r.batch(f"ids.{mb}", lambda key: T.integers((s.seq, 1), 0, s.vocab - 1, key)))
        w = self.weight("embedding", (s.vocab // s.tp, s.hidden), 1.0, "tp")

        def call(ids: Var) -> Var:
            x = b.api(
                "embed", "Functional", "embedding", rules.looked_up, [ids, w],
                args=[ids, w, "null", "null", scalar("float", 2.0), scalar("bool", False), scalar("bool", False)],
                grads=(Grad(1, ()),), shape=(s.seq, 1, s.hidden),
            )  # fmt: skip
            return self.reduce_from_tensor_parallel("embed_reduce", x)

        with b.module("module.embedding.word_embeddings", "VocabParallelEmbedding", [ids], {"weight": w}) as m:
            x = call(ids)
            m.outputs = [x]
        if "features" in self.settings.extras:
            features = b.leaf(
                lambda r: r.batch(f"features.{mb}", lambda key: T.finite(self.dtype, (s.seq, 1, s.hidden), 0.5, key))
            )
            x = self.add("features", x, features)
        return x

    def loss(self, mb: int, x: Var) -> Var:
        b, s = self.b, self.size
        x = self.norm("final_norm", "module.decoder.final_layernorm", x)
        w = self.weight("output", (s.vocab, s.hidden), 0.05)
        with b.module("module.output_layer", "OutputLinear", [x], {"weight": w}) as m:
            logits = self.linear("head", m.inner[0], w, s.vocab, s.hidden)
            m.outputs = [logits]
        flat = self.flat(logits)
        labels = b.leaf(lambda r: r.batch(f"labels.{mb}", lambda key: T.integers((s.seq,), 0, s.vocab - 1, key)))
        valid = b.leaf(lambda r: r.batch(f"valid.{mb}", lambda key: _valid(s.seq, key)))
        flat = b.api("logits_float", "Tensor", "float", rules.cast, [flat], grads=(Grad(0),), dtype="fp32")
        losses = b.api(
            "loss", "Functional", "cross_entropy", rules.cross_entropy, [flat, labels], kwargs={"reduction": scalar("str", "none")},
            grads=(Grad(0, (0,)),), shows=("nll",),
        )  # fmt: skip
        masked = b.api(
            "loss_mask",
            "Tensor",
            "__mul__",
            rules.mask_product,
            [losses, valid],
            grads=(Grad(0, (1,), rule=rules.gradient_through_mask),),
        )
        total = b.api(
            "loss_sum", "Tensor", "sum", rules.summed, [masked], grads=(Grad(0, (), rule=rules.broadcast_gradient),)
        )
        tokens = b.api("loss_tokens", "Tensor", "sum", rules.summed, [valid])
        mean = b.api(
            "loss_mean",
            "Tensor",
            "__truediv__",
            rules.divided,
            [total, tokens],
            grads=(Grad(0, (1,), rule=rules.gradient_of_quotient),),
        )
        self.losses.append(mean)
        by = self.settings.loss_scale / s.micro_batches
        return b.api(
            "loss_scale",
            "Tensor",
            "__mul__",
            rules.scaled,
            [mean],
            args=[mean, scalar("float", by)],
            grads=(Grad(0, (), {"gain": by}),),
            by=by,
        )

    def backward(self, mb: int, received: Var | None) -> Var:
        """Backward of a micro-batch; returns the gradient of the stage's input."""
        b = self.b
        b.micro_batch, b.phase = mb, "backward"
        start, layers, before, after, out = self.saved.pop(mb)
        b.grads = {out: received if received is not None else b.compute("seed_gradient", rules.ones, [])}
        b.backward(after)
        for index in range(len(layers) - 1, -1, -1):
            source, tape, result = layers[index]
            if self.settings.recompute:
                b.phase, b.tape, b.outer = "recompute", Tape(), self._recompute_parent(index)
                again = self.layer(index, source)
                b.phase, b.outer = "backward", None
                b.grads[again] = b.grads.pop(result)
                recomputed = b.tape
                b.tape = Tape()
                b.backward(recomputed, tape)
            else:
                b.backward(tape)
        b.backward(before)
        gradient = b.grads.pop(start, None)
        b.grads = {}
        return gradient if gradient is not None else start

    def _recompute_parent(self, index: int) -> str | None:
        """Recomputation runs when the first saved tensor is unpacked: inside the backward of the layer's last module."""
        b = self.b
        if b.level == "L1":
            return None
        key = (
            f"Module.module.decoder.layers.{index}.mlp.MoELayer.backward"
            if self.full
            else f"Module.layers.{index}.mlp.MoELayer.backward"
        )
        return f"{key}.{b.counts.get(key, 0)}"

    # -- the schedule

    def schedule(self) -> None:
        """1F1B or all forwards then all backwards, with the pipeline's transfers."""
        s, stage, m = self.size, self.variant.stage, self.size.micro_batches
        first, last = stage == 0, stage == s.pp - 1
        warm = m if self.settings.schedule == "afab" else min(s.pp - stage - 1, m)
        inputs: dict[int, Var | None] = {}

        def recv_forward(mb: int) -> None:
            self.b.phase, self.b.micro_batch = "forward", mb
            inputs[mb] = None if first else self.recv("recv_forward", "prev", grad=True)

        def recv_backward(mb: int) -> Var | None:
            self.b.phase, self.b.micro_batch = "backward", mb
            return None if last else self.recv("recv_backward", "next", grad=False)

        def send_forward(mb: int, y: Var) -> None:
            self.b.phase, self.b.micro_batch = "forward", mb
            if not last:
                self.send("send_forward", y, "next")

        def send_backward(mb: int, g: Var) -> None:
            self.b.phase, self.b.micro_batch = "backward", mb
            if not first:
                self.send("send_backward", g, "prev")

        for mb in range(warm):
            recv_forward(mb)
            send_forward(mb, self.forward(mb, inputs[mb]))
        steady = m - warm
        if steady:
            recv_forward(warm)
        for i in range(steady):
            mb = warm + i
            y = self.forward(mb, inputs[mb])
            g: Var | None = None
            if not last:
                # the two directions go in one call: send_forward_recv_backward
                g = self.b.var()
                self.b.micro_batch = mb
                self.transfer([("isend", "next", y, "send_forward"), ("irecv", "next", g, "recv_backward")])
            out = self.backward(i, g)
            if i < steady - 1:
                if not first:
                    x = self.b.var(grad=True)
                    self.transfer([("isend", "prev", out, "send_backward"), ("irecv", "prev", x, "recv_forward")])
                    inputs[mb + 1] = x
                else:
                    inputs[mb + 1] = None
            else:
                send_backward(i, out)
        for mb in range(steady, m):
            send_backward(mb, self.backward(mb, recv_backward(mb)))

    # -- after the last micro-batch

    def reduce_gradients(self) -> list[Var]:
        """The gradients that this rank updates: its share of the dense ones, and all of its experts'."""
        b, s, how = self.b, self.size, self.settings.grads
        dense = [g for w, g in b.weight_grads.items() if w not in self.experts]
        own = [g for w, g in b.weight_grads.items() if w in self.experts]
        if s.dp > s.ep and own:
            own = [b.compute("expert_bucket", rules.concatenated, own, pieces=1)]
        if not dense:
            return own
        buckets = [dense] if not self.full or len(dense) < 4 else [dense[: len(dense) // 2], dense[len(dense) // 2 :]]
        flat = [b.compute("bucket", rules.concatenated, part, pieces=s.dp) for part in buckets]
        if s.dp == 1:
            return flat + own
        if how == "reduce_scatter":
            return [self.reduce_scatter(x) for x in flat] + own
        is_async = how == "async_all_reduce"
        reduced = [self.all_reduce("grad_reduce", x, "dp", is_async=is_async) for x in flat]
        if is_async:
            self.report_loss_late()
            for x in reduced:
                b.wait(x)
        return reduced + own

    def report_loss_late(self) -> None:
        """Work between an asynchronous reduction and its wait: it does not see the reduced gradients."""
        if self.losses:
            self.b.api(
                "loss_scale",
                "Tensor",
                "__mul__",
                rules.scaled,
                [self.losses[-1]],
                args=[self.losses[-1], scalar("float", 1.0)],
                by=1.0,
            )

    def reduce_scatter(self, x: Var) -> Var:
        kwargs: dict[str, Item] = {"group": self.groups["dp"]}
        return self.b.collective(
            "grad_reduce", "reduce_scatter_tensor", "dp", [x], args=[self.placeholder((self.size.hidden,)), Plain(x)], kwargs=kwargs,
            shown_outs=lambda y: [Plain(y), Plain(x), *kwargs.values()], op="SUM",
        )  # fmt: skip

    def reduce_loss(self) -> None:
        b = self.b
        if not self.losses:
            total = b.compute("no_loss", rules.made, [], make=lambda key: T.constant("fp32", (), 0.0, key))
        else:
            total = self.losses[0]
            for x in self.losses[1:]:
                total = b.compute("loss_total", rules.added, [total, x])
        self.all_reduce("loss_average", total, "world")

    def update(self, grads: list[Var]) -> None:
        """Gradient norm over all ranks, clipping, Adam."""
        b, s = self.b, self.size
        if self.settings.loss_scale > 1.0:
            found = b.compute("found_inf", rules.found_infinity, grads)
            self.all_reduce("found_inf", found, "world", op="MAX")
            if self.settings.notes.get("optimizer") == "skipped":
                return
        flat = b.compute("flat_grads", rules.concatenated, grads, pieces=1)
        norm = b.api("grad_norm", "Torch", "norm", rules.norm_of, [flat], args=[flat, scalar("float", 2.0)])
        square = b.compute("norm_square", rules.squared, [norm])
        total = self.all_reduce("grad_norm_reduce", square, "world")
        root = b.api("grad_norm_root", "Tensor", "sqrt", rules.square_root, [total])
        coefficient = b.compute("clip_coefficient", rules.clip_coefficient, [root])
        b.outer = "optimizer"
        for i, g in enumerate(grads):
            g = b.api("clip", "Tensor", "mul_", rules.clipped, [g, coefficient])
            param = b.compute(f"master.{i}", rules.state_of, [g], rms=0.03, salt=1)
            moment = b.compute(f"moment1.{i}", rules.state_of, [g], rms=1e-4, salt=2)
            square = b.compute(f"moment2.{i}", rules.state_of, [g], rms=1e-4, salt=3, positive=True)
            param = b.api(
                "param_mul", "Tensor", "mul_", rules.scaled, [param], args=[param, scalar("float", 0.99999)], by=0.99999
            )
            moment = b.api(
                "first_moment", "Tensor", "lerp_", rules.added, [moment, g], args=[moment, g, scalar("float", 0.1)]
            )
            square = b.api(
                "second_moment",
                "Tensor",
                "addcmul_",
                rules.second_moment,
                [square, g],
                args=[square, g, g],
                kwargs={"value": scalar("float", 0.001)},
            )
            root = b.api("root", "Tensor", "sqrt", rules.square_root, [square])
            new = b.api(
                "param_add",
                "Tensor",
                "addcdiv_",
                rules.stepped,
                [param, moment, root],
                kwargs={"value": scalar("float", -0.001)},
            )
            if self.settings.grads == "reduce_scatter" and s.dp > 1 and i == 0:
                b.outer = None
                kwargs: dict[str, Item] = {"group": self.groups["dp"]}
                b.collective(
                    "param_gather", "all_gather_into_tensor", "dp", [new], args=[self.placeholder((s.hidden,)), Plain(new)], kwargs=kwargs,
                    shown_outs=lambda y, new=new: [Plain(y), Plain(new), *kwargs.values()],
                )  # fmt: skip
                b.outer = "optimizer"
        b.construct["optimizer"] = (None, b.micro_batch)
        b.outer = None

    def program(self) -> Program:
        b, s = self.b, self.size
        if "broadcast" in self.settings.extras and s.dp > 1:
            self.broadcast()
        self.schedule()
        b.phase, b.tape, b.micro_batch = "optimizer", Tape(), s.micro_batches - 1
        if self.settings.loss_first:
            self.reduce_loss()
        grads = self.reduce_gradients()
        if not self.settings.loss_first:
            self.reduce_loss()
        self.update(grads)
        return b.build()

    def broadcast(self) -> None:
        """A buffer that the first data-parallel rank hands to its replicas; it scales the first norm's weight."""
        b, s = self.b, self.size
        buffer = b.leaf(lambda r: r.broadcast_buffer("scale", (s.hidden,)))
        source = b.text(lambda r: scalar("int", r.group("dp")[0]))
        kwargs: dict[str, Item] = {"group": self.groups["dp"]}
        out = b.collective(
            "buffer_broadcast", "broadcast", "dp", [buffer], args=[Plain(buffer), source], kwargs=kwargs,
            shown_outs=lambda y: [Plain(y), source, *kwargs.values()],
        )  # fmt: skip
        self.shared_scale = out


def _minus_infinity() -> str:
    return scalar("float", float("-inf"))


def _capacity(key: int) -> T.Tensor:
    """Expert capacities of which at least one is zero."""
    t = T.finite("fp32", (8,), 2.0, key, offset=4.0)
    t.min = 0.0
    return t


def _valid(length: int, key: int) -> T.Tensor:
    """The mask of tokens that count in the loss, as numbers 0 and 1: 60 to 100 % of them do."""
    share = (int(0.6 * length) + int(0.4 * length * T.uniform(key))) / length
    norm = (share * length) ** 0.5
    mean, norm = T.rounded("fp32", share, norm)
    return T.Tensor("fp32", (length,), length, 1.0, 0.0, mean, norm, norm / length**0.5, key)
