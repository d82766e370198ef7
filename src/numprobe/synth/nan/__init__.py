"""Simulated dumps with known truth: see :func:`simulate`."""

from __future__ import annotations

from numprobe.synth.nan.scenarios import HELD_OUT, SCENARIOS
from numprobe.synth.nan.settings import CI, NIGHTLY, ONE, UNIT, Settings, Size, sized
from numprobe.synth.nan.simulate import simulate
from numprobe.synth.nan.truth import Source, Truth

__all__ = [
    "CI",
    "HELD_OUT",
    "NIGHTLY",
    "ONE",
    "SCENARIOS",
    "UNIT",
    "Settings",
    "Size",
    "Source",
    "Truth",
    "simulate",
    "sized",
]
