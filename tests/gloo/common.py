"""What every case shares: one process of a gloo group, and the recorder around its steps.

A case runs without the recorder too (no --config): that is the quick way to try a change.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

SEED = 1234


def options(*flags: tuple[str, dict[str, Any]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="config.json of the recorder; without it nothing is recorded")
    parser.add_argument("--steps", type=int, default=1)
    for name, settings in flags:
        parser.add_argument(name, **settings)
    return parser.parse_args()


class Run:
    """One process: its rank, the size of the world, and `steps(model)`, which records each step that it yields."""

    def __init__(self, args: argparse.Namespace, *, deterministic: bool = False) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        torch.use_deterministic_algorithms(deterministic)  # also fills torch.empty with NaN
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        else:
            self.rank, self.world = 0, 1
        self.args = args
        self.debugger = None
        if args.config:
            from msprobe.pytorch import PrecisionDebugger  # replaces functions of torch when constructed

            self.debugger = PrecisionDebugger(config_path=args.config)

    def steps(self, model: torch.nn.Module) -> Iterator[int]:
        for step in range(self.args.steps):
            if self.debugger:
                self.debugger.start(model=model)
            yield step
            if self.debugger:
                self.debugger.stop()
                self.debugger.step()

    def tokens(self, step: int, batch: int, length: int, vocabulary: int, rank: int | None = None) -> torch.Tensor:
        """Token ids [batch, length] that depend on step and rank only."""
        rank = self.rank if rank is None else rank
        generator = torch.Generator().manual_seed(1000 * step + rank)
        return torch.randint(0, vocabulary, (batch, length), generator=generator)

    def close(self) -> None:
        if self.world > 1:
            dist.barrier()
            dist.destroy_process_group()
