"""Dumps that cannot be compared: one clear answer each, and nobody is blamed."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from numprobe.pytorch import PrecisionDebugger
from numprobe.record.errors import NumprobeError

from .conftest import Dump
from .models import STYLES, Decoder, Run, make_tokens
from .recorded import compared

DENSE = Decoder()
PAIRS = list(permutations(STYLES, 2))
BOTH = pytest.mark.parametrize("experts", [0, 4], ids=["dense", "mixture"])


@BOTH
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
@pytest.mark.parametrize(
    ("batch", "reason"),
    [(make_tokens(seed=9), "tokens"), (make_tokens((14, 14)), "count"), (make_tokens((12,)), "count")],
)
def test_other_tokens(dump: Dump, pair: tuple[str, str], experts: int, batch: list[object], reason: str) -> None:
    config = Decoder(experts=experts)
    result = compared(dump(Run(pair[0], config), "mix", [batch]), dump(Run(pair[1], config)))
    assert (result.verdict, result.reason, result.findings, result.exit_code) == ("premise_broken", reason, [], 3)


def test_a_prompt_shifted_by_one(dump: Dump) -> None:
    """Largest and smallest id stay the same: only the embedding's output tells."""
    shifted = [prompt.roll(1) if n else prompt for n, prompt in enumerate(make_tokens((13, 13)))]
    cut = [prompt[1:] for prompt in shifted]
    result = compared(dump(Run("hf"), "mix", [cut]), dump(Run("engine")))
    assert (result.verdict, result.reason) == ("premise_broken", "tokens")


@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
@pytest.mark.parametrize("other", [replace(DENSE, layers=2), replace(DENSE, hidden=32)], ids=["layers", "width"])
def test_another_model(dump: Dump, pair: tuple[str, str], other: Decoder) -> None:
    result = compared(dump(Run(pair[0], other)), dump(Run(pair[1])))
    assert (result.verdict, result.reason, result.findings) == ("premise_broken", "models", [])


@pytest.mark.parametrize("level", [("L1", "mix"), ("mix", "L1")])
def test_a_side_without_modules(dump: Dump, level: tuple[str, str]) -> None:
    with pytest.raises(NumprobeError) as caught:
        compared(dump(Run("hf"), level[0]), dump(Run("engine"), level[1]))
    assert caught.value.code == "E-RLC-001"


def test_two_training_dumps(dump: Dump) -> None:
    """They are compared like any other: the answer is about what was given."""
    result = compared(dump(Run("megatron")), dump(Run("megatron", changed={"1.o": 1.03})))
    [finding] = result.findings
    assert (finding.clazz, finding.role, finding.layers) == ("parameter_difference", "out", [1])
    assert compared(dump(Run("megatron")), dump(Run("megatron"))).coverage == 1.0


def test_modules_that_no_rule_knows(tmp_path: Path) -> None:
    """Nothing of them is compared: that a few others agree says nothing."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.first, self.second, self.norm = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.first(self.decoder(self.encoder(x)))))

    folders = []
    for factor in (1.0, 3.0):
        torch.manual_seed(0)
        model = Net()
        model.second.weight.data *= factor
        folder = tmp_path / f"{factor}"
        with torch.no_grad(), PrecisionDebugger(task="statistics", dump_path=str(folder), level="L0") as debugger:
            debugger.start(model=model)
            model(torch.ones(2, 8))
            debugger.stop()
            debugger.step()
        folders.append(folder)
    result = compared(*folders)
    assert (result.verdict, result.reason, result.exit_code) == ("inconclusive", "coverage", 3)
