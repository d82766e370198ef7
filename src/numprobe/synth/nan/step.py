"""A training step of one pipeline stage: embedding, layers and loss, the pipeline's schedule, and the update."""

from __future__ import annotations

from dataclasses import dataclass

from numprobe.synth.nan import layers, optimizer, rules
from numprobe.synth.nan import tensor as T
from numprobe.synth.nan.builder import Tape
from numprobe.synth.nan.program import Program
from numprobe.synth.nan.records import Item, Var, scalar
from numprobe.synth.nan.settings import Settings, Size
from numprobe.synth.nan.stage import Stage, Transfer, Variant


@dataclass(frozen=True)
class _Saved:
    """What a micro-batch's forward leaves for its backward: tapes, and the layers' inputs and outputs for recomputation."""

    start: Var
    before: Tape
    layers: list[tuple[Var, Tape, Var]]
    after: Tape
    out: Var


def step_program(size: Size, settings: Settings, variant: Variant, seed: int) -> Program:
    """The program of one training step for the ranks of ``variant``."""
    return _Step(Stage(size, settings, variant, seed)).program()


class _Step:
    def __init__(self, st: Stage) -> None:
        self.st, self.b, self.size, self.settings = st, st.b, st.size, st.settings
        self.first = st.variant.stage == 0
        self.last = st.variant.stage == st.size.pp - 1
        self.saved: dict[int, _Saved] = {}
        self.losses: list[Var] = []
        self.scale: Var | None = None

    def program(self) -> Program:
        b, settings = self.b, self.settings
        if "broadcast" in settings.extras and self.size.dp > 1:
            shape = (self.size.hidden,)
            self.scale = self.st.broadcast(
                "buffer_broadcast", b.leaf(lambda rank: rank.broadcast_buffer("scale", shape))
            )
        self.schedule()
        b.phase, b.tape, b.micro_batch = "optimizer", [], self.size.micro_batches - 1
        if settings.loss_first:
            self.reduce_loss()
        grads = self.reduce_gradients()
        if not settings.loss_first:
            self.reduce_loss()
        self.update(grads)
        return b.build()

    # -- forward and backward of a micro-batch

    def forward(self, mb: int, received: Var | None) -> Var:
        b, adapted = self.b, "adapter" in self.settings.extras
        b.phase, b.micro_batch = "forward", mb
        before: Tape = []
        after: Tape = []
        b.tape = before
        if self.size.lean:
            layers.masks(self.st)
        start = x = self.embed(mb) if received is None else received
        if self.scale is not None:
            x = b.call("rope_scale", [x, self.scale])
        if adapted:
            x = self.adapter("adapter", x)
        passed = []
        for i in range(self.size.layers):
            b.tape = []
            y = layers.layer(self.st, i, x)
            passed.append((x, b.tape, y))
            x = y
        b.tape = after
        if adapted:
            x = self.adapter("adapter_again", x)
        if self.last:
            x = self.loss(mb, x)
        self.saved[mb] = _Saved(start, before, passed, after, x)
        return x

    def backward(self, mb: int, received: Var | None) -> Var:
        """Backward of a micro-batch from the gradient of its output; returns that of its input (unused on the first stage)."""
        b = self.b
        b.phase, b.micro_batch = "backward", mb
        saved = self.saved.pop(mb)
        b.grads = {
            saved.out: received
            or b.compute("seed_gradient", rules.made, [], make=lambda key: T.constant("fp32", (), 1.0, key))
        }
        b.backward(saved.after)
        for index, (source, tape, out) in reversed(list(enumerate(saved.layers))):
            if not self.settings.recompute:
                b.backward(tape)
                continue
            # the layer runs again when its last module's backward unpacks a saved tensor
            key = f"Module.{self.st.layers_path}.{index}.mlp.MoELayer.backward"
            b.phase, b.tape, b.outer = "recompute", [], f"{key}.{b.next_count(key)}"
            again, recomputed = layers.layer(self.st, index, source), b.tape
            b.phase, b.tape, b.outer = "backward", [], None
            b.grads[again] = b.grads.pop(out)
            b.backward(recomputed, tape)
        b.backward(saved.before)
        return b.grads.pop(saved.start, saved.start)

    def embed(self, mb: int) -> Var:
        b, s, dtype = self.b, self.size, self.st.dtype
        ids = b.leaf(lambda rank: rank.batch(f"ids.{mb}", lambda key: T.integers((s.seq, 1), 0, s.vocab - 1, key)))
        w = self.st.weight("embedding", (s.vocab // s.tp, s.hidden), 1.0, "tp")
        rest: list[Item] = ["null", "null", scalar("float", 2.0), scalar("bool", False), scalar("bool", False)]
        with b.module("module.embedding.word_embeddings", "VocabParallelEmbedding", [ids], {"weight": w}) as m:
            x = b.call("embed", [ids, w], args=[ids, w, *rest], shape=self.st.hidden_shape)
            x = self.st.reduce_from_tensor_parallel("embed_reduce", x)
            m.outputs = [x]
        if "features" in self.settings.extras:
            shape = self.st.hidden_shape
            features = b.leaf(lambda rank: rank.batch(f"features.{mb}", lambda key: T.finite(dtype, shape, 0.5, key)))
            x = b.call("features", [x, features])
        return x

    def adapter(self, role: str, x: Var) -> Var:
        """A module that is called twice a pass, with the same weight."""
        h = self.size.hidden
        w = self.st.weight("adapter", (h, h), h**-0.5)
        with self.b.module("module.adapter", "SharedAdapter", [x], {"weight": w}) as m:
            y = layers.linear(self.st, role, m.inner[0], w)
            m.outputs = [y]
        return y

    def loss(self, mb: int, x: Var) -> Var:
        """Mean cross entropy over the valid tokens of a micro-batch, scaled for accumulation and for fp16."""
        b, s = self.b, self.size
        x = layers.norm(self.st, "final_norm", "module.decoder.final_layernorm", x)
        w = self.st.weight("output", (s.vocab, s.hidden), 0.05)
        with b.module("module.output_layer", "OutputLinear", [x], {"weight": w}) as m:
            logits = layers.linear(self.st, "head", m.inner[0], w)
            m.outputs = [logits]
        labels = b.leaf(lambda rank: rank.batch(f"labels.{mb}", lambda key: T.integers((s.seq,), 0, s.vocab - 1, key)))
        valid = b.leaf(lambda rank: rank.batch(f"valid.{mb}", lambda key: T.valid_tokens(s.seq, key)))
        logits = b.call("logits_float", [b.call("flatten", [logits])])
        losses = b.call("loss", [logits, labels], kwargs={"reduction": scalar("str", "none")})
        total = b.call("loss_sum", [b.call("loss_mask", [losses, valid])])
        mean = b.call("loss_mean", [total, b.call("loss_tokens", [valid])])
        self.losses.append(mean)
        by = self.settings.loss_scale / s.micro_batches
        return b.call("loss_scale", [mean], args=[mean, scalar("float", by)], by=by)

    # -- the pipeline

    def schedule(self) -> None:
        """1F1B, or all forwards then all backwards. In the steady state of 1F1B the two directions go in one call."""
        st, m = self.st, self.size.micro_batches
        warm = m if self.settings.schedule == "afab" else min(self.size.pp - st.variant.stage - 1, m)
        x: Var | None = None
        for mb in range(warm):
            y = self.forward(mb, self.receive("forward", mb))
            self.send("forward", mb, y)
        if m > warm:
            x = self.receive("forward", warm)
        for i in range(m - warm):
            y = self.forward(warm + i, x)
            g = None if self.last else self.b.var()
            if g is not None:
                st.transfer(self._sends("forward", y), self._receives("backward", g))
            out = self.backward(i, g)
            if i == m - warm - 1 or self.first:
                self.send("backward", i, out)
            else:
                x = self.b.var(grad=True)
                st.transfer(self._sends("backward", out), self._receives("forward", x))
        for mb in range(m - warm, m):
            self.send("backward", mb, self.backward(mb, self.receive("backward", mb)))

    def _sends(self, what: str, x: Var) -> Transfer:
        return Transfer("isend", "next" if what == "forward" else "prev", x, f"send_{what}")

    def _receives(self, what: str, x: Var) -> Transfer:
        return Transfer("irecv", "prev" if what == "forward" else "next", x, f"recv_{what}")

    def receive(self, what: str, mb: int) -> Var | None:
        """The activation from the previous stage, or the gradient from the next; None where there is none."""
        self.b.phase, self.b.micro_batch = what, mb
        if self.first if what == "forward" else self.last:
            return None
        x = self.b.var(grad=what == "forward")
        self.st.transfer(self._receives(what, x))
        return x

    def send(self, what: str, mb: int, x: Var) -> None:
        self.b.phase, self.b.micro_batch = what, mb
        if not (self.last if what == "forward" else self.first):
            self.st.transfer(self._sends(what, x))

    # -- after the last micro-batch

    def reduce_loss(self) -> None:
        """The sum of the losses over the world; stages without a loss add zero."""
        b = self.b
        total = b.compute("no_loss", rules.made, [], make=lambda key: T.constant("fp32", (), 0.0, key))
        for x in self.losses:
            total = b.compute("loss_total", rules.added, [total, x])
        self.st.all_reduce("loss_average", total, "world")

    def reduce_gradients(self) -> list[Var]:
        """The gradients that this rank updates: its share of the dense ones, and those of its experts."""
        b, s, how = self.b, self.size, self.settings.grads
        dense = [g for w, g in b.weight_grads.items() if w not in self.st.experts]
        own = [g for w, g in b.weight_grads.items() if w in self.st.experts]
        if s.lean:
            own = [b.compute("expert_bucket", optimizer.concatenated, own, pieces=1)]
        half = len(dense) // 2
        buckets = [dense] if s.lean or half < 2 else [dense[:half], dense[half:]]
        flat = [b.compute("bucket", optimizer.concatenated, part, pieces=s.dp) for part in buckets]
        if s.dp == 1:
            return flat + own
        if how == "reduce_scatter":
            return [self.st.reduce_scatter("grad_reduce", x) for x in flat] + own
        is_async = how == "async_all_reduce"
        reduced = [self.st.all_reduce("grad_reduce", x, "dp", is_async=is_async) for x in flat]
        if is_async:
            if self.losses:  # work between the call and its wait, which does not see the result
                last = self.losses[-1]
                b.call("loss_report", [last], operator="loss_scale", args=[last, scalar("float", 1.0)], by=1.0)
            for x in reduced:
                b.wait(x)
        return reduced + own

    def update(self, grads: list[Var]) -> None:
        """Gradient norm over all ranks, clipping, Adam; with a loss scale the check for infinities before that."""
        b, s = self.b, self.size
        if self.settings.loss_scale > 1.0:
            found = b.compute("found_inf", optimizer.found_infinity, grads)
            self.st.all_reduce("found_inf", found, "world", op="MAX")
            if self.settings.update_skipped:
                return
        flat = b.compute("flat_grads", optimizer.concatenated, grads, pieces=1)
        local = b.call("grad_norm", [flat], args=[flat, scalar("float", 2.0)])
        total = self.st.all_reduce("grad_norm_reduce", b.compute("norm_square", optimizer.squared, [local]), "world")
        coefficient = b.compute("coefficient", optimizer.clip_coefficient, [b.call("grad_norm_root", [total])])
        for i, grad in enumerate(grads):
            b.outer = "optimizer"
            new = self._adam(i, b.call("clip", [grad, coefficient]))
            b.outer = None
            if i == 0 and s.dp > 1 and self.settings.grads == "reduce_scatter":
                self.st.all_gather("param_gather", new)

    def _adam(self, i: int, grad: Var) -> Var:
        b = self.b
        param = b.compute(f"master.{i}", optimizer.state_of, [grad], rms=0.03)
        moment = b.compute(f"moment1.{i}", optimizer.state_of, [grad], rms=1e-4)
        square = b.compute(f"moment2.{i}", optimizer.state_of, [grad], rms=1e-4, positive=True)
        param = b.call("param_mul", [param], args=[param, scalar("float", 0.99999)])
        moment = b.call("first_moment", [moment, grad], args=[moment, grad, scalar("float", 0.1)])
        shown: list[Item] = [square, grad, grad]
        square = b.call("second_moment", [square, grad], args=shown, kwargs={"value": scalar("float", 0.001)})
        root = b.call("root", [square])
        return b.call("param_add", [param, moment, root], kwargs={"value": scalar("float", -0.001)})
