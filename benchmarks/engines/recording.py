"""What the three engines share: the prompt, and one recorded forward pass by msProbe's debugger or by numprobe's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

TOKENS = 24


def prompt() -> torch.Tensor:
    return torch.randint(0, 500, (TOKENS,), generator=torch.Generator().manual_seed(1))


def requests() -> list[tuple[list[int], int]]:
    """Prompts of several lengths, and the token that all of the answer is: engines can be made to give it."""
    return [(prompt()[:length].tolist(), token) for length, token in ((24, 401), (9, 402), (15, 403))]


def sequences(answer: int) -> list[torch.Tensor]:
    """What training reads: the prompt, or with ``answer`` tokens every request with its answer."""
    whole = [torch.tensor(ids + [token] * answer) for ids, token in requests()]
    return whole if answer else [prompt()]


def arguments(*more: str) -> argparse.Namespace:
    """CHECKPOINT OUT --dtype --task --tool, and ``more`` numbers that are 1 unless said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--tool", default="numprobe", choices=("numprobe", "msprobe"))
    parser.add_argument("--fault", default="")
    parser.add_argument(
        "--answer", type=int, default=0, help="tokens that the engine decodes for each of several requests"
    )
    for name in more:
        parser.add_argument(f"--{name}", type=int, default=1)
    return parser.parse_args()


@contextmanager
def recorded(
    model: torch.nn.Module | list[torch.nn.Module], asked: argparse.Namespace, rank: int = 0
) -> Iterator[None]:
    """Dumps forward what is called inside."""
    if asked.tool == "numprobe":
        from numprobe.pytorch import PrecisionDebugger
    else:
        from msprobe.pytorch import PrecisionDebugger
    section: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["forward"]}
    config = {
        "task": asked.task,
        "dump_path": str(asked.out),
        "rank": [],
        "step": [],
        "level": "mix",
        "statistics": section | {"summary_mode": "statistics"},
        "tensor": section,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"config.{rank}.json"
    path.write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start(model=model)
    with torch.no_grad():
        yield
    debugger.stop()
    debugger.step()
