"""The rollout side as vLLM lays it out on Ascend: packed ``[tokens, h]``, fused projections, norms that add the residual."""

from __future__ import annotations

import numpy as np

from numprobe.synth.rl.arithmetic import Array
from numprobe.synth.rl.recorder import Spread
from numprobe.synth.rl.side import Runner, place_of

CLASSES = {"silu": "AscendSiluAndMul", "gelu": "AscendGeluAndMul", "relu": "AscendReluAndMul"}
KERNELS = {"silu": "NPU.npu_swiglu", "gelu": "NPU.npu_geglu", "relu": "Functional.relu"}


class Engine(Runner):
    """Keys and values of a prompt are kept, for the calls that go on with it."""

    def forward(self, ids: Array, first: int = 0) -> None:
        """One call of the model over the packed ids ``[tokens]``, then the logits of the last one and a sample.

        ``first`` is the position of the first of them: the earlier ones were given to the calls before."""
        call, tokens = self.recorder.call, self.same(ids)
        self._first, self._positions = first, self.same(np.arange(first, first + len(ids)))
        if not first:
            self._kept: dict[int, list[tuple[Array, Array]]] = {}

        def model() -> Spread:
            x: Spread = call(
                "model.embed_tokens",
                "AscendVocabParallelEmbedding",
                (tokens,),
                lambda: self.embedded(ids),
                place="embed",
                parameters={"weight": self.rows("embed")},
            )
            residual: Spread | None = None
            for i in range(self.model.layers):
                x, residual = self._layer(f"model.layers.{i}", x, residual, i)
            return self._norm("model.norm", x, residual, "norm")[0]

        kwargs = {"input_ids": tokens, "positions": self._positions}
        x: Spread = call("model", "LlamaModel", (), model, kwargs=kwargs)
        last, head = [y[-1:] for y in x], self.rows("head")
        logits: Spread = call(
            "lm_head",
            "AscendParallelLMHead",
            (last,),
            lambda: self.linear(last, head),
            place="head",
            parameters={"weight": head},
        )
        whole = self.same(np.concatenate(logits, -1))
        call("logits_processor", "LogitsProcessor", (logits,), lambda: whole)
        call("sampler", "Sampler", (whole,), lambda: [y.argmax(-1) for y in whole])

    def _norm(self, path: str, x: Spread, residual: Spread | None, name: str) -> tuple[Spread, Spread]:
        """Normed, and what goes on as the residual."""
        place = place_of(name)
        total = x if residual is None else self.add(x, residual)
        gain = {"weight": self.same(self.weights[name])}
        cls = "AscendRMSNorm"
        if residual is None:
            y = self.recorder.call(path, cls, (x,), lambda: self.norm(x, name), place=place, parameters=gain)
            return y, x
        both = (x, residual)
        return self.recorder.call(
            path, cls, both, lambda: (self.norm(total, name), total), place=place, parameters=gain
        )

    def _linear(
        self, path: str, cls: str, x: Spread, i: int, place: str, weight: Spread, bias: Spread | None = None
    ) -> Spread:
        def run() -> tuple[Spread, None]:
            return self.recorder.api("Functional.linear", (x, weight, bias), self.linear(x, weight, bias)), None

        parameters = {"weight": weight} | ({"bias": bias} if bias else {})
        return self.recorder.call(path, cls, (x,), run, place=f"layers.{i}.{place}", parameters=parameters)[0]

    def _row(self, path: str, x: Spread, i: int, name: str) -> Spread:
        weight = self.columns(f"{i}.{name}")

        def run() -> tuple[Spread, None]:
            return self.recorder.api("Functional.linear", (x, weight), self.reduced(x, weight)), None

        cls, place = "AscendRowParallelLinear", f"layers.{i}.{name}"
        return self.recorder.call(path, cls, (x,), run, place=place, parameters={"weight": weight})[0]

    def _copied(self, path: str, cls: str, x: Spread, i: int, names: tuple[str, ...], place: str) -> Spread:
        """A linear that every rank has whole; several weights are one behind the other."""
        weight = self.same(np.concatenate([self.weights[f"{i}.{name}"] for name in names]))
        return self._linear(path, cls, x, i, place, weight)

    def _layer(self, path: str, x: Spread, residual: Spread | None, i: int) -> tuple[Spread, Spread]:
        def run() -> tuple[Spread, Spread]:
            y, kept = self._norm(f"{path}.input_layernorm", x, residual, f"{i}.attn_norm")
            y = self._attention(f"{path}.self_attn", y, i)
            y, kept = self._norm(f"{path}.post_attention_layernorm", y, kept, f"{i}.mlp_norm")
            return self._mlp(f"{path}.mlp", y, i), kept

        cls = "DeepseekV2DecoderLayer" if self.model.latent else "LlamaDecoderLayer"
        return self.recorder.call(path, cls, (self._positions, x, residual), run)

    def _attention(self, path: str, x: Spread, i: int) -> Spread:
        def run() -> Spread:
            y = self._latent(path, x, i) if self.model.latent else self._grouped(path, x, i)
            return self._row(f"{path}.o_proj", y, i, "out")

        cls = "DeepseekV2MLAAttention" if self.model.latent else "LlamaAttention"
        kwargs = {"positions": self._positions, "hidden_states": x}
        return self.recorder.call(path, cls, (), run, kwargs=kwargs)

    def _grouped(self, path: str, x: Spread, i: int) -> Spread:
        m = self.model
        weight = self._stacked([self.rows(f"{i}.{n}") for n in "qkv"])
        bias = self._stacked([self.rows(f"{i}.{n}_bias") for n in "qkv"]) if m.bias else None
        qkv = self._linear(f"{path}.qkv_proj", "AscendQKVParallelLinear", x, i, "qkv", weight, bias)
        q_size, kv_size = m.heads * m.head // self.side.world, m.groups * m.head // self.side.world
        parts = [np.split(y, [q_size, q_size + kv_size], -1) for y in qkv]
        q, k, v = ([one[n] for one in parts] for n in range(3))
        q, k = self.recorder.call(
            f"{path}.rotary_emb",
            "AscendRotaryEmbedding",
            (self._positions, q, k),
            lambda: (self._turned(q), self._turned(k)),
        )
        return self._core(path, "Attention", "attn", (q, k, v), q, k, v, i)

    def _stacked(self, weights: list[Spread]) -> Spread:
        return [np.concatenate(one) for one in zip(*weights, strict=True)]

    def _turned(self, x: Spread) -> Spread:
        heads = [y.reshape(len(y), -1, self.model.rope) for y in x]
        return [self.arithmetic.rotate(y, self.side.rotary, first=self._first).reshape(len(y), -1) for y in heads]

    def _core(
        self, path: str, cls: str, name: str, inputs: tuple[Spread, ...], q: Spread, k: Spread, v: Spread, i: int
    ) -> Spread:
        def run() -> Spread:
            done, earlier, kept = [], self._kept.get(i), []
            for rank, one in enumerate(zip(q, k, v, strict=True)):
                heads = [t.reshape(len(t), -1, self.model.head) for t in one]
                keys, values = heads[1:]
                if earlier is not None:
                    keys, values = (np.concatenate(both) for both in zip(earlier[rank], heads[1:], strict=True))
                kept.append((keys, values))
                y = self.attend(heads[0], keys, values, i)
                done.append(y.reshape(len(y), -1))
            self._kept[i] = kept
            return done

        return self.recorder.call(f"{path}.{name}", cls, inputs, run, place=f"layers.{i}.core")

    def _latent(self, path: str, x: Spread, i: int) -> Spread:
        m = self.model
        both = self._copied(f"{path}.fused_qkv_a_proj", "AscendMergedReplicatedLinear", x, i, ("q_a", "kv_a"), "qkv_a")
        low = self._norm(f"{path}.q_a_layernorm", [y[:, : m.q_rank] for y in both], None, f"{i}.q_a_norm")[0]
        kv = [y[:, m.q_rank :] for y in both]
        content = self._norm(f"{path}.kv_a_layernorm", [y[:, : m.kv_rank] for y in kv], None, f"{i}.kv_a_norm")[0]
        column = "AscendColumnParallelLinear"
        up = self._linear(f"{path}.q_b_proj", column, low, i, "q_b", self.rows(f"{i}.q_b"))
        pairs = self._linear(f"{path}.kv_b_proj", column, content, i, "kv_b", self.rows(f"{i}.kv_b"))
        copied = "AscendReplicatedLinear"
        self._copied(f"{path}.indexer.wq_b", copied, low, i, ("index_q",), "index_q")
        k = self._copied(f"{path}.indexer.wk", copied, x, i, ("index_k",), "index_k")
        self._norm(f"{path}.indexer.k_norm", k, None, f"{i}.index_k_norm")
        self._copied(f"{path}.indexer.weights_proj", copied, x, i, ("index_weights",), "index_weights")
        heads = [y.reshape(len(y), -1, m.head) for y in up]
        turned = self._turned([np.ascontiguousarray(y[..., m.nope :]).reshape(len(y), -1) for y in heads])
        q = [
            np.concatenate([y[..., : m.nope], t.reshape(*y.shape[:2], -1)], -1)
            for y, t in zip(heads, turned, strict=True)
        ]
        place = self._turned([y[:, m.kv_rank :] for y in kv])
        split = [y.reshape(len(y), -1, m.nope + m.head) for y in pairs]
        keys = [
            np.concatenate([y[..., : m.nope], np.broadcast_to(p[:, None], (*y.shape[:2], m.rope))], -1)
            for y, p in zip(split, place, strict=True)
        ]
        values = [y[..., m.nope :] for y in split]
        return self._core(path, "AscendMLAAttention", "mla_attn", (q, content, place), q, keys, values, i)

    def _mlp(self, path: str, x: Spread, i: int) -> Spread:
        weight = self._stacked(list(self.halves(i)))

        def run() -> Spread:
            both = self._linear(f"{path}.gate_up_proj", "AscendMergedColumnParallelLinear", x, i, "gate_up", weight)
            gated = self._gated(both)
            if self.side.shows_activation:
                name = self.side.activation
                gated = self.recorder.call(
                    f"{path}.act_fn",
                    CLASSES[name],
                    (both,),
                    lambda: self.recorder.api(KERNELS[name], (both,), gated),
                    place=f"layers.{i}.act",
                )
            return self._row(f"{path}.down_proj", gated, i, "down")

        return self.recorder.call(path, "LlamaMLP", (x,), run)

    def _gated(self, both: Spread) -> Spread:
        halves = [np.split(y, 2, axis=-1) for y in both]
        return [self.arithmetic.gated(self.side.activation, g, u) for g, u in halves]
