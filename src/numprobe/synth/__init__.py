"""Simulated dumps with known truth: see :func:`simulate`."""

from __future__ import annotations

from numprobe.synth.scenarios import HELD_OUT, SCENARIOS
from numprobe.synth.settings import CI, NIGHTLY, ONE, UNIT, Settings, Size, sized
from numprobe.synth.simulate import simulate
from numprobe.synth.truth import Source, Truth

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
