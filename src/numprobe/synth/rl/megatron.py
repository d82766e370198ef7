"""The training side as Megatron lays it out: ``[s, b, h]``, q, k and v fused by query group, tensor parallel ranks."""

from __future__ import annotations

import numpy as np

from numprobe.synth.rl.arithmetic import Array
from numprobe.synth.rl.recorder import Spread
from numprobe.synth.rl.side import Runner

ROOT = "module.module"


class Megatron(Runner):
    def forward(self, ids: Array, first: int = 0) -> None:
        """One call of the model over the ids ``[tokens]``."""
        call, tokens = self.recorder.call, self.same(ids[None])

        def run() -> Spread:
            x: Spread = call(
                f"{ROOT}.embedding.word_embeddings",
                "VocabParallelEmbedding",
                (tokens,),
                lambda: [e[:, None] for e in self.embedded(ids)],
                place="embed",
                parameters={"weight": self.rows("embed")},
            )
            for i in range(self.model.layers):
                x = self._layer(x, i)
            gain = {"weight": self.same(self.weights["norm"])}
            x = call(
                f"{ROOT}.decoder.final_layernorm",
                "RMSNorm",
                (x,),
                lambda: self.norm(x, "norm"),
                place="norm",
                parameters=gain,
            )
            head = self.rows("head")
            logits: Spread = call(
                f"{ROOT}.output_layer",
                "ColumnParallelLinear",
                (x,),
                lambda: (self._product(x, head), None),
                place="head",
                parameters={"weight": head},
            )[0]
            return logits

        call(f"{ROOT}", "GPTModel", (tokens,), run)

    def _layer(self, x: Spread, i: int) -> Spread:
        path = f"{ROOT}.decoder.layers.{i}"

        def run() -> tuple[Spread, None]:
            y = self._norm(f"{path}.input_layernorm", x, i, "attn_norm")
            y = self._attention(f"{path}.self_attention", y, i)
            y = self._sum(x, y)
            z = self._norm(f"{path}.pre_mlp_layernorm", y, i, "mlp_norm")
            return self._sum(y, self._mlp(f"{path}.mlp", z, i)), None

        return self.recorder.call(path, "TransformerLayer", (x,), run)[0]

    def _sum(self, x: Spread, y: Spread) -> Spread:
        return self.recorder.api("Tensor.__add__", (x, y), self.add(x, y))

    def _product(self, x: Spread, weight: Spread, bias: Spread | None = None) -> Spread:
        return self.recorder.api("Functional.linear", (x, weight, bias), self.linear(x, weight, bias))

    def _fused(self, i: int, name: str) -> bool:
        """Is this norm part of the linear behind it? That of a latent attention never is: two linears follow."""
        return self.side.fused_norm and not (self.model.latent and name == "attn_norm")

    def _norm(self, path: str, x: Spread, i: int, name: str) -> Spread:
        if self._fused(i, name):
            return self.recorder.call(path, "IdentityOp", (x,), lambda: x)
        gain = {"weight": self.same(self.weights[f"{i}.{name}"])}
        place, full = f"layers.{i}.{name}", f"{i}.{name}"
        return self.recorder.call(path, "RMSNorm", (x,), lambda: self.norm(x, full), place=place, parameters=gain)

    def _column(
        self, path: str, x: Spread, i: int, place: str, weight: Spread, bias: Spread | None, norm: str
    ) -> Spread:
        """A column-parallel linear, with the norm before it where ``norm`` is fused."""
        parameters = {"weight": weight} | ({"bias": bias} if bias else {})
        cls = "ColumnParallelLinear"
        fused = bool(norm) and self._fused(i, norm)
        if fused:
            cls = "TELayerNormColumnParallelLinear"
            parameters = {"layer_norm_weight": self.same(self.weights[f"{i}.{norm}"])} | parameters

        def run() -> tuple[Spread, None]:
            return self._product(self.norm(x, f"{i}.{norm}") if fused else x, weight, bias), None

        places = tuple(f"layers.{i}.{one}" for one in ((place, norm) if fused else (place,)))
        return self.recorder.call(path, cls, (x,), run, place=places, parameters=parameters)[0]

    def _row(self, path: str, x: Spread, i: int, name: str) -> Spread:
        weight = self.columns(f"{i}.{name}")

        def run() -> tuple[Spread, None]:
            return self.recorder.api("Functional.linear", (x, weight), self.reduced(x, weight)), None

        return self.recorder.call(
            path, "RowParallelLinear", (x,), run, place=f"layers.{i}.{name}", parameters={"weight": weight}
        )[0]

    def _copied(self, path: str, cls: str, x: Spread, i: int, name: str, place: str) -> Spread:
        """A linear that every rank has whole."""
        weight = self.same(self.weights[f"{i}.{name}"])
        return self.recorder.call(
            path,
            cls,
            (x,),
            lambda: (self._product(x, weight), None),
            place=f"layers.{i}.{place}",
            parameters={"weight": weight},
        )[0]

    def _attention(self, path: str, x: Spread, i: int) -> Spread:
        latent = self.model.latent

        def run() -> tuple[Spread, None]:
            q, k, v = self._latent(path, x, i) if latent else self._grouped(path, x, i)
            cls = "DSAttention" if latent else "DotProductAttention"
            y: Spread = self.recorder.call(
                f"{path}.core_attention",
                cls,
                tuple([t[:, None] for t in one] for one in (q, k, v)),
                lambda: self._core(path, x, q, k, v, i),
                place=f"layers.{i}.core",
            )
            return self._row(f"{path}.linear_proj", y, i, "out"), None

        cls = "MLASelfAttention" if latent else "SelfAttention"
        return self.recorder.call(path, cls, (x,), run)[0]

    def _core(self, path: str, x: Spread, q: Spread, k: Spread, v: Spread, i: int) -> Spread:
        if self.model.latent:
            self._indexer(f"{path}.core_attention.indexer", x, i)
        done = [self.attend(*one, i) for one in zip(q, k, v, strict=True)]
        return [y.reshape(len(y), 1, -1) for y in done]

    def _grouped(self, path: str, x: Spread, i: int) -> tuple[Spread, Spread, Spread]:
        m = self.model
        weight, bias = self._qkv(i, ""), self._qkv(i, "_bias") if m.bias else None
        qkv = self._column(f"{path}.linear_qkv", x, i, "qkv", weight, bias, "attn_norm")
        parts = [y.reshape(len(y), -1, m.heads // m.groups + 2, m.head) for y in qkv]
        q = [self._turned(y[:, :, :-2].reshape(len(y), -1, m.head)) for y in parts]
        k = [self._turned(y[:, :, -2]) for y in parts]
        return q, k, [y[:, :, -1] for y in parts]

    def _qkv(self, i: int, suffix: str) -> Spread:
        """Rows of q, k and v by query group; one behind the other where the conversion was wrong."""
        rows = [self.weights[f"{i}.{name}{suffix}"] for name in "qkv"]
        if not self.side.stacked_rows:
            groups = [w.reshape(self.model.groups, -1, *w.shape[1:]) for w in rows]
            whole = np.concatenate(groups, 1)
            rows = [whole.reshape(-1, *whole.shape[2:])]
        return np.split(np.concatenate(rows), self.side.world)

    def _turned(self, x: Array) -> Array:
        return self.arithmetic.rotate(x, self.side.rotary)

    def _latent(self, path: str, x: Spread, i: int) -> tuple[Spread, Spread, Spread]:
        m = self.model
        low = self._copied(f"{path}.linear_q_down_proj", "TELinear", x, i, "q_a", "qkv_a")
        kv = self._copied(f"{path}.linear_kv_down_proj", "TELinear", x, i, "kv_a", "qkv_a")
        low = self._gain(f"{path}.q_layernorm", low, i, "q_a_norm")
        content = self._gain(f"{path}.kv_layernorm", [y[..., : m.kv_rank] for y in kv], i, "kv_a_norm")
        self._low = low
        up = self._column(f"{path}.linear_q_up_proj", low, i, "q_b", self.rows(f"{i}.q_b"), None, "")
        both = self._column(f"{path}.linear_kv_up_proj", content, i, "kv_b", self.rows(f"{i}.kv_b"), None, "")
        heads = [y.reshape(len(y), -1, m.head) for y in up]
        q = [np.concatenate([y[..., : m.nope], self._turned(y[..., m.nope :])], -1) for y in heads]
        place = [self._turned(y[..., m.kv_rank :]) for y in kv]
        pairs = [y.reshape(len(y), -1, m.nope + m.head) for y in both]
        k = [
            np.concatenate([y[..., : m.nope], np.broadcast_to(p, (*y.shape[:2], m.rope))], -1)
            for y, p in zip(pairs, place, strict=True)
        ]
        return q, k, [y[..., m.nope :] for y in pairs]

    def _gain(self, path: str, x: Spread, i: int, name: str) -> Spread:
        gain = {"weight": self.same(self.weights[f"{i}.{name}"])}
        place = f"layers.{i}.{name}"
        return self.recorder.call(
            path, "RMSNorm", (x,), lambda: self.norm(x, f"{i}.{name}"), place=place, parameters=gain
        )

    def _indexer(self, path: str, x: Spread, i: int) -> None:
        """Chooses the tokens to attend to: of a prompt that is shorter than its choice all, so that nothing follows from it."""
        self._copied(f"{path}.linear_wq_b", "TELinear", self._low, i, "index_q", "index_q")
        k = self._copied(f"{path}.linear_wk", "TELinear", x, i, "index_k", "index_k")
        self._gain(f"{path}.k_norm", k, i, "index_k_norm")
        self._copied(f"{path}.linear_weights_proj", "TELinear", x, i, "index_weights", "index_weights")

    def _mlp(self, path: str, x: Spread, i: int) -> Spread:
        gate, up = self.halves(i)
        weight = [np.concatenate(pair) for pair in zip(gate, up, strict=True)]

        def run() -> tuple[Spread, None]:
            both = self._column(f"{path}.linear_fc1", x, i, "gate_up", weight, None, "mlp_norm")
            return self._row(f"{path}.linear_fc2", self._gated(both), i, "down"), None

        return self.recorder.call(path, "MLP", (x,), run)[0]

    def _gated(self, both: Spread) -> Spread:
        halves = [np.split(y, 2, axis=-1) for y in both]
        gates, ups = [h[0] for h in halves], [h[1] for h in halves]
        found = [self.arithmetic.gated(self.side.activation, g, u) for g, u in zip(gates, ups, strict=True)]
        if self.side.shows_activation:
            return self.recorder.api(f"Functional.{self.side.activation}", (gates,), found)
        return found
