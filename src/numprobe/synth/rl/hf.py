"""The training side as Hugging Face lays it out, below FSDP's wrappers: ``[b, s, h]``, every projection by itself."""

from __future__ import annotations

from numprobe.synth.rl.arithmetic import Array
from numprobe.synth.rl.recorder import Spread
from numprobe.synth.rl.side import Runner, place_of

WRAPPED = "_fsdp_wrapped_module"
CLASSES = {"silu": "SiLUActivation", "gelu": "GELUTanh", "relu": "ReLU"}


class HuggingFace(Runner):
    """Of a model with grouped heads."""

    def forward(self, ids: Array, first: int = 0) -> None:
        """One call of the model over the ids ``[tokens]``."""
        call, tokens, root = self.recorder.call, self.same(ids[None]), f"{WRAPPED}.model"

        def model() -> Spread:
            x: Spread = call(
                f"{root}.embed_tokens",
                "Embedding",
                (tokens,),
                lambda: [e[None] for e in self.embedded(ids)],
                place="embed",
                parameters={"weight": self.same(self.weights["embed"])},
            )
            for i in range(self.model.layers):
                x = self._layer(f"{root}.layers.{i}.{WRAPPED}", x, i)
            return self._norm(f"{root}.norm", x, "norm")

        def run() -> Spread:
            x = call(root, "Qwen2Model", (), model, kwargs={"input_ids": tokens})
            return self._linear(f"{WRAPPED}.lm_head", x, "head")

        call(WRAPPED, "Qwen2ForCausalLM", (), run, kwargs={"input_ids": tokens})

    def _norm(self, path: str, x: Spread, name: str) -> Spread:
        gain, place = {"weight": self.same(self.weights[name])}, place_of(name)
        return self.recorder.call(path, "Qwen2RMSNorm", (x,), lambda: self.norm(x, name), place=place, parameters=gain)

    def _linear(self, path: str, x: Spread, name: str, place: str = "") -> Spread:
        weight = self.same(self.weights[name])
        bias = self.same(self.weights[f"{name}_bias"]) if f"{name}_bias" in self.weights else None

        def run() -> Spread:
            return self.recorder.api("Functional.linear", (x, weight, bias), self.linear(x, weight, bias))

        parameters = {"weight": weight} | ({"bias": bias} if bias else {})
        return self.recorder.call(path, "Linear", (x,), run, place=place or place_of(name), parameters=parameters)

    def _layer(self, path: str, x: Spread, i: int) -> Spread:
        def run() -> Spread:
            y = self._norm(f"{path}.input_layernorm", x, f"{i}.attn_norm")
            y = self.add(x, self._attention(f"{path}.self_attn", y, i))
            z = self._norm(f"{path}.post_attention_layernorm", y, f"{i}.mlp_norm")
            return self.add(y, self._mlp(f"{path}.mlp", z, i))

        return self.recorder.call(path, "Qwen2DecoderLayer", (x,), run)

    def _attention(self, path: str, x: Spread, i: int) -> Spread:
        m, rotate = self.model, self.arithmetic.rotate

        def run() -> tuple[Spread, None]:
            names = {n: self._linear(f"{path}.{n}_proj", x, f"{i}.{n}", f"layers.{i}.qkv") for n in "qkv"}
            q, k, v = ([y.reshape(m.tokens, -1, m.head) for y in one] for one in names.values())
            q, k = ([rotate(y, self.side.rotary) for y in one] for one in (q, k))
            done = [self.attend(*one, i).reshape(1, m.tokens, -1) for one in zip(q, k, v, strict=True)]
            return self._linear(f"{path}.o_proj", done, f"{i}.out"), None

        return self.recorder.call(path, "Qwen2Attention", (), run, kwargs={"hidden_states": x})[0]

    def _mlp(self, path: str, x: Spread, i: int) -> Spread:
        gate, up = ("up", "gate") if self.side.exchanged_halves else ("gate", "up")
        side = self.side

        def run() -> Spread:
            g = self._linear(f"{path}.gate_proj", x, f"{i}.{gate}", f"layers.{i}.gate_up")
            u = self._linear(f"{path}.up_proj", x, f"{i}.{up}", f"layers.{i}.gate_up")
            act = self.recorder.call(
                f"{path}.act_fn",
                CLASSES[side.activation],
                (g,),
                lambda: [self.arithmetic.activated(side.activation, y) for y in g],
                place=f"layers.{i}.gate_act",
            )
            product = [self.arithmetic.round(a * b) for a, b in zip(act, u, strict=True)]
            return self._linear(f"{path}.down_proj", product, f"{i}.down")

        return self.recorder.call(path, "Qwen2MLP", (x,), run)
