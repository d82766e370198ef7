"""Train the small llama for a step or two under a collector: ``train.py CONFIG DUMP [options] -- CONFIG DUMP [options] ...``."""

import argparse
import sys

import torch
import torch.nn.functional as F
from llama import Wrapper

from numprobe.pytorch import PrecisionDebugger, seed_all


def train(o: argparse.Namespace) -> None:
    seed_all(seed=1234, mode=True)
    with PrecisionDebugger(config_path=o.config, dump_path=o.dump) as debugger:
        vocabulary = 16 if o.small else 64
        model = Wrapper(vocabulary=16, width=8, heads=2, inner=16) if o.small else Wrapper()
        if o.bf16:
            model = model.to(torch.bfloat16)
        if o.nan:
            with torch.no_grad():
                model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True if o.fused else None)
        generator = torch.Generator().manual_seed(7)
        for _ in range(o.steps):
            ids = torch.randint(0, vocabulary, (2, 5 if o.small else 9), generator=generator)
            debugger.start(model=model)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, vocabulary).float(), ids[:, 1:].reshape(-1))
            loss.backward()
            if not o.opt_outside:
                optimizer.step()
                optimizer.zero_grad()
            debugger.stop()
            debugger.step()
            if o.opt_outside:
                optimizer.step()
                optimizer.zero_grad()
            print("loss", loss.item())


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("dump")
    parser.add_argument("--steps", type=int, default=1)
    for flag in ("--opt-outside", "--fused", "--small", "--bf16", "--nan"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(arguments)


torch.set_num_threads(1)
rest = sys.argv[1:]
while rest:
    cut = rest.index("--") if "--" in rest else len(rest)
    train(options(rest[:cut]))
    rest = rest[cut + 1 :]
