"""Pairs of dumps of one model with known truth: see :func:`simulate`."""

from __future__ import annotations

from numprobe.synth.rl.scenarios import SCENARIOS, Expected
from numprobe.synth.rl.simulate import Truth, simulate

__all__ = ["SCENARIOS", "Expected", "Truth", "simulate"]
