"""Speed and memory of ``numprobe rl`` on large dumps of statistics, as ratios to json.load of the two files.

    python benchmarks/rl.py [--layers 61] [--modules 5000] [--curve] [--repeat 3]

A mixture of experts of 61 layers, each expert with modules of its own, as Megatron-Core and as an engine name them: about 5,000
modules a side, or more with more experts. One pair is equal but for rounding; in the other every layer's activation differs, so
that nothing behind the first one agrees. The figures are made up, but fit together as a network's do.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from measure import MB, NUMPROBE, json_load_seconds, machine, median, run, table, warm

TOKENS, HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCAB = 512, 2048, 16, 4, 128, 768, 32_000
Figures = tuple[float, float, float, float]
Record = tuple[str, str | None, dict[str, Any]]


class Network:
    """The tensors of one forward pass, by name: the same on both sides but for rounding, and for ``wrong`` behind a fault."""

    def __init__(self, layers: int, experts: int, *, wrong: bool) -> None:
        self.layers, self.experts, self.wrong = layers, experts, wrong
        self._draw = random.Random(7)
        self._made: dict[str, tuple[int, Figures]] = {}

    def norm(self, name: str, numel: int, norm: float) -> Figures:
        """Max, Min, Mean, Norm of a tensor that is drawn when its name is used first."""
        if name not in self._made:
            rms, largest = norm / math.sqrt(numel), math.sqrt(2 * math.log(max(numel, 2)))
            draw = self._draw
            ends = largest * draw.uniform(0.95, 1.05), -largest * draw.uniform(0.95, 1.05)
            self._made[name] = numel, (rms * ends[0], rms * ends[1], rms * draw.gauss(0, 0.01), norm)
        return self._made[name][1]


class Side:
    """Records of one side, as its framework names and lays them out."""

    def __init__(self, network: Network, train: bool) -> None:
        self.network, self.train = network, train
        self._noise = random.Random(f"train {train}")
        self._seen: dict[str, dict[str, Any]] = {}

    def tensor(
        self, name: str, shape: tuple[int, ...], rms: float, *, behind: bool = False, exact: bool = False
    ) -> Any:
        """One tensor; ``behind``: it is computed from what the fault changed, on the training side."""
        found = self._seen.get(name)
        if found is None:
            numel = math.prod(shape)
            norm = rms * math.sqrt(numel)
            figures = self.network.norm(name, numel, norm)
            noise = self._noise
            apart = 1 + noise.uniform(0.04, 0.09) if behind and self.network.wrong and self.train else 1.0
            by = (0.0, 0.0, 0.0, 0.0) if exact else (2e-3, 2e-3, 0.0, 1e-6)
            shift = 0.0 if exact else noise.gauss(0, 1e-6) * rms
            found = {
                "type": "torch.Tensor",
                "dtype": "torch.bfloat16",
                "shape": list(shape),
                **{
                    key: figure * apart * (1 + noise.gauss(0, one)) + (shift if key == "Mean" else 0.0)
                    for key, figure, one in zip(("Max", "Min", "Mean", "Norm"), figures, by, strict=True)
                },
                "requires_grad": True,
            }
            self._seen[name] = found
        return found if found["shape"] == list(shape) else {**found, "shape": list(shape)}

    def x(self, name: str, width: int, *, rms: float = 1.0, behind: bool = False, tokens: int = TOKENS) -> Any:
        """An activation, sequence first in training and packed in the engine. What is looked up is exact."""
        shape = (tokens, 1, width) if self.train else (tokens, width)
        return self.tensor(name, shape, rms, behind=behind, exact=name == "embedded")

    def weight(self, name: str, *shape: int) -> Any:
        return {"weight": self.tensor(f"{name}.weight", shape, 1 / math.sqrt(shape[-1]), exact=True)}

    def records(self) -> Iterator[Record]:
        """Name, parent and content, as they are recorded: what is inside before what it is in."""
        n, t = self.network, self.train
        root = "Module.module.module" if t else "Module.model"
        ids = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [1, TOKENS] if t else [TOKENS]}
        ids |= {"Max": 31_000, "Min": 17, "Mean": None, "Norm": None, "requires_grad": False}
        word = "embedding.word_embeddings.VocabParallelEmbedding" if t else "embed_tokens.VocabParallelEmbedding"
        yield self._of(f"{root}.{word}", None, [ids], [self.x("embedded", HIDDEN)], self.weight("embed", VOCAB, HIDDEN))
        for layer in range(n.layers):
            yield from self._layer(f"{root}.{'decoder.' if t else ''}layers.{layer}", layer)
        last = self.x(f"stream.{n.layers}", HIDDEN, rms=2.0, behind=True)
        norm = "decoder.final_layernorm" if t else "norm"
        done = self.x("final", HIDDEN, behind=True)
        yield self._of(f"{root}.{norm}.RMSNorm", None, [last], [done], self._gain("final"))
        head = f"{root}.output_layer.ColumnParallelLinear" if t else "Module.lm_head.ParallelLMHead"
        logits = [self.x("logits", VOCAB, rms=1.0, behind=True)]
        yield self._of(head, None, [done], logits, self.weight("head", VOCAB, HIDDEN))

    def _gain(self, name: str) -> Any:
        return {"weight": self.tensor(f"{name}.gain", (HIDDEN,), 1.0, exact=True)}

    @staticmethod
    def _of(path: str, parent: str | None, given: list[Any], out: list[Any], parameters: Mapping[str, Any]) -> Record:
        body = {"input_args": given, "input_kwargs": {}, "output": out, "parameters": dict(parameters)}
        return f"{path}.forward.0", f"{parent}.forward.0" if parent else None, body

    def _layer(self, root: str, i: int) -> Iterator[Record]:
        t, later = self.train, i > 0
        whole = f"{root}.{'TransformerLayer' if t else 'DecoderLayer'}"
        attention = f"{root}.{'self_attention.SelfAttention' if t else 'self_attn.Attention'}"
        block = f"{root}.mlp.{'MoELayer' if t else 'SparseMoeBlock'}"
        a, m = attention.rpartition(".")[0], block.rpartition(".")[0]
        width = HEADS * HEAD + 2 * GROUPS * HEAD
        stream = self.x(f"stream.{i}" if i else "embedded", HIDDEN, rms=2.0 if i else 1.0, behind=later)

        def x(name: str, size: int, *, behind: bool = later, rms: float = 1.0, tokens: int = TOKENS) -> Any:
            return self.x(f"{i}.{name}", size, behind=behind, rms=rms, tokens=tokens)

        normed, qkv, core = x("normed", HIDDEN), x("qkv", width), x("core", HEADS * HEAD, rms=0.3)
        attended, middle = x("attended", HIDDEN, rms=0.3), x("middle", HIDDEN, rms=1.5)
        split = [
            x(f"split.{n}", size, rms=1.0)
            for n, size in (("q", HEADS * HEAD), ("k", GROUPS * HEAD), ("v", GROUPS * HEAD))
        ]
        yield self._of(f"{root}.input_layernorm.RMSNorm", whole, [stream], [normed], self._gain(f"{i}.attn"))
        name = "linear_qkv.ColumnParallelLinear" if t else "qkv_proj.QKVParallelLinear"
        yield self._of(f"{a}.{name}", attention, [normed], [qkv, None], self.weight(f"{i}.qkv", width, HIDDEN))
        name = "core_attention.DotProductAttention" if t else "attn.Attention"
        yield self._of(f"{a}.{name}", attention, split, [core], {})
        name = "linear_proj.RowParallelLinear" if t else "o_proj.RowParallelLinear"
        yield self._of(
            f"{a}.{name}", attention, [core], [attended, None], self.weight(f"{i}.out", HIDDEN, HEADS * HEAD)
        )
        yield self._of(attention, whole, [normed], [attended, None], {})
        name = "pre_mlp_layernorm" if t else "post_attention_layernorm"
        ready = x("ready", HIDDEN)
        yield self._of(f"{root}.{name}.RMSNorm", whole, [middle], [ready], self._gain(f"{i}.mlp"))
        name = "router.TopKRouter" if t else "gate.ReplicatedLinear"
        scores = [x("scores", self.network.experts)]
        yield self._of(f"{m}.{name}", block, [ready], scores, self.weight(f"{i}.router", self.network.experts, HIDDEN))
        group = f"{m}.experts.{'SequentialMLP' if t else 'ModuleList'}"
        for e in range(self.network.experts):
            yield from self._expert(f"{m}.experts.{'local_experts.' if t else ''}{e}", group if t else block, i, e)
        done = x("moe", HIDDEN, behind=True, rms=0.5)
        if t:
            yield self._of(group, block, [ready], [done], {})
        yield self._of(block, whole, [ready], [done], {})
        after = self.x(f"stream.{i + 1}", HIDDEN, rms=2.0, behind=True)
        yield self._of(whole, None, [stream], [after], {})

    def _expert(self, path: str, parent: str, i: int, e: int) -> Iterator[Record]:
        t, later, tokens = self.train, i > 0, TOKENS // 4
        whole = f"{path}.{'MLP' if t else 'ExpertMLP'}"

        def x(name: str, size: int, rms: float, behind: bool) -> Any:
            return self.x(f"{i}.{e}.{name}", size, rms=rms, behind=behind, tokens=tokens)

        given, both = x("given", HIDDEN, 1.0, later), x("both", 2 * FFN, 1.0, later)
        act, done = x("act", FFN, 0.4, True), x("done", HIDDEN, 0.4, True)
        name = "linear_fc1.ColumnParallelLinear" if t else "gate_up_proj.MergedColumnParallelLinear"
        yield self._of(f"{path}.{name}", whole, [given], [both, None], self.weight(f"{i}.{e}.up", 2 * FFN, HIDDEN))
        if not t:
            yield self._of(f"{path}.act_fn.SiluAndMul", whole, [both], [act], {})
        name = "linear_fc2.RowParallelLinear" if t else "down_proj.RowParallelLinear"
        yield self._of(f"{path}.{name}", whole, [act], [done, None], self.weight(f"{i}.{e}.down", HIDDEN, FFN))
        yield self._of(whole, parent, [given], [done, None], {})


def write_pair(folder: Path, layers: int, modules: int, *, wrong: bool) -> tuple[list[Path], int]:
    """Two dumps of about ``modules`` modules a side; their files, and how many modules they have together."""
    experts = max(round((2 * modules / layers - 20) / 7), 2)
    files, total = [], 0
    network = Network(layers, experts, wrong=wrong)
    for name in ("train", "rollout"):
        records = list(Side(network, name == "train").records())
        total += len(records)
        place = folder / name / "step0" / "rank0"
        place.mkdir(parents=True)
        head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
        data = {record: body for record, _, body in records}
        (place / "dump.json").write_text(json.dumps(head | {"data": data}, indent=1))
        (place / "construct.json").write_text(json.dumps({r: parent for r, parent, _ in records}, indent=1))
        (place / "stack.json").write_text("{}")
        files.append(place / "dump.json")
    return files, total


def measured(folder: Path, files: list[Path], start: float, repeat: int) -> tuple[float, float, int, str]:
    """Median seconds of the command without its start, those of json.load, the largest memory, and the verdict."""
    taken, peak, verdict = [], 0, ""
    for number in range(repeat + 1):
        command = [NUMPROBE, "rl", str(folder / "train"), str(folder / "rollout"), "--no-cache", "--json"]
        last = number == repeat  # sampling the memory takes time: of that run only the memory is used
        done = run([*command, "-o", str(folder / f"out{number}")], sample_memory=last, accept=(0, 1, 3))
        verdict = json.loads(done.stdout)["verdict"]
        if last:
            peak = done.peak_uss or 0
        else:
            taken.append(done.seconds - start)
    return statistics.median(taken), median(lambda: json_load_seconds(files), repeat), peak, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--modules", type=int, default=5_000, help="modules a side")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--curve", action="store_true", help="also 15,000 and 50,000 modules a side")
    asked = parser.parse_args()
    print(machine())
    start = median(lambda: run([NUMPROBE, "--version"]).seconds, 3)
    print(f"start: {start:.2f} s")
    rows: list[list[object]] = []
    for modules in (asked.modules, *((15_000, 50_000) if asked.curve else ())):
        for wrong in (False, True):
            with tempfile.TemporaryDirectory(prefix="numprobe-bench-") as scratch:
                folder = Path(scratch)
                files, total = write_pair(folder, asked.layers, modules, wrong=wrong)
                size = warm(folder)
                seconds, load, peak, verdict = measured(folder, files, start, asked.repeat)
                expected = "difference_found" if wrong else "no_difference"
                if verdict != expected:
                    raise SystemExit(f"{verdict} instead of {expected}")
                rows.append([f"{total:,}", verdict, size / MB, load, seconds, seconds / load, peak / MB])
    print(table(["modules of both", "verdict", "MB", "json.load s", "numprobe rl s", "ratio", "memory MB"], rows))


if __name__ == "__main__":
    main()
