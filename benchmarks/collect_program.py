"""The program that ``collect.py`` times: some training steps of a small llama, with one collector or none.

    PYTHON collect_program.py '{"tool": "numprobe", "level": "mix", "task": "statistics", ...}'

Prints one JSON line: wall and processor seconds of every step, parameters' digest after the last step, size of the dump; of the
task tensor also what torch.save alone takes for the tensors of the last step. With ``calls`` there is one step of so many
additions of small tensors instead of training: the growth of the memory, and the seconds that went into writing json.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            proj(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_norm, self.mlp_norm = Norm(width), Norm(width)
        self.attention = Attention(width, heads)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Whole(nn.Module):
    """The outermost module is not recorded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)


def debugger_of(options: dict[str, Any], folder: Path) -> Any:
    if options["tool"] == "none":
        return None
    config = {
        "task": options["task"],
        "level": options["level"],
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        options["task"]: {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": options["summary_mode"]},
        **options.get("extra", {}),
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    if options["tool"] == "numprobe":
        from numprobe.pytorch import PrecisionDebugger
    else:
        from msprobe.pytorch import PrecisionDebugger
    return PrecisionDebugger(config_path=str(path))


class Stopwatch:
    """Seconds spent in a function that is replaced by one that looks at the clock."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds = 0.0
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        setattr(owner, name, timed)


def writing_of(tool: str) -> Callable[[], float]:
    """Seconds that went into a tool's json so far: of msProbe into the standard library's function, as seen from outside."""
    if tool != "numprobe":
        theirs = Stopwatch(json, "dump")
        return lambda: theirs.seconds
    from numprobe.collect.pytorch.recorder import Recorder

    whole, filling = Stopwatch(Recorder, "write"), Stopwatch(Recorder, "_fill")  # the second fetches the figures
    wording = Stopwatch(Recorder, "complete")
    return lambda: whole.seconds - filling.seconds + wording.seconds


def save_alone(dump: Path, folder: Path) -> list[float]:
    """Wall and processor seconds that torch.save takes for the tensors of a dump's last step; the least of three times."""
    last = max(dump.glob("step*"), key=lambda step: int(step.name[4:]))
    tensors = {file.name: torch.load(file, weights_only=True) for file in last.rglob("*.pt")}
    best = [float("inf")] * 2
    for i in range(3):
        out = folder / f"alone{i}"
        out.mkdir()
        began, cpu_began = time.perf_counter(), time.process_time()
        for name, tensor in tensors.items():
            torch.save(tensor, out / name)
        best = [min(best[0], time.perf_counter() - began), min(best[1], time.process_time() - cpu_began)]
        shutil.rmtree(out)
    return best


def many_calls(debugger: Any, calls: int, writing: Callable[[], float]) -> None:
    """One step; an addition makes three records, of its arguments and its result."""
    one, other = torch.ones(8), torch.ones(8)
    for count in (100, calls):  # the first few import and fill caches
        if debugger is not None:
            debugger.start()
        before, written = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, writing()
        for _ in range(count):
            torch.add(one, other)
        if debugger is not None:
            debugger.stop()
            debugger.step()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"records": 3 * calls, "grown_kb": grown, "writing": writing() - written}))


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options.get("threads", 1))
    torch.manual_seed(0)
    scratch = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=scratch))
    debugger = debugger_of(options, folder)
    if "calls" in options:
        many_calls(debugger, options["calls"], writing_of(options["tool"]))
        shutil.rmtree(folder)
        return
    vocabulary = 512
    model = Whole(Llama(options["width"], options["layers"], vocabulary)).to(getattr(torch, options["dtype"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds, cpu = [], []
    for _ in range(options["steps"]):
        ids = torch.randint(0, vocabulary, (2, options["tokens"] + 1))
        began, cpu_began = time.perf_counter(), time.process_time()
        if debugger is not None:
            debugger.start(model=model)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, vocabulary).float(), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    digest = 0
    for parameter in model.parameters():
        digest = zlib.crc32(parameter.detach().view(torch.uint8).numpy().tobytes(), digest)
    dump = folder / "dump"
    result = {
        "seconds": seconds,
        "cpu": cpu,
        "digest": digest,
        "bytes": sum(f.stat().st_size for f in dump.rglob("*") if f.is_file()),
        "loss": loss.item(),
    }
    if options["tool"] == "numprobe" and options["task"] == "tensor":
        result["save_alone"] = save_alone(dump, folder)
    print(json.dumps(result))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
