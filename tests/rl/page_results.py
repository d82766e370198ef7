"""Results for the page: those of the real engines, and what they do not show, made from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec

from numprobe.diagnose.rl_consistency.result import Figures, Finding, Key, Pair, RlResult, Term
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse

ENGINES = Path(__file__).parents[1] / "data" / "interop" / "engines"
HOSTILE = "</script><img src=x onerror=alert(1)>{{7*7}}'\"\u202e\x1b[2J\ud800"


@lru_cache
def engines(train: str) -> RlResult:
    """A training engine against vllm."""
    found = analyse(ENGINES / train, ENGINES / "vllm", RlOptions(use_cache=False))
    return msgspec.structs.replace(found, train=f"dump/{train}", rollout="dump/vllm")


def gelu() -> RlResult:
    return engines("megatron_gelu")


def same() -> RlResult:
    return engines("megatron")


def tokens() -> RlResult:
    return msgspec.structs.replace(gelu(), verdict="premise_broken", reason="tokens", findings=[])


def nothing_paired() -> RlResult:
    return msgspec.structs.replace(tokens(), mapping=[], unmatched_train=[], unmatched_rollout=[])


def coverage() -> RlResult:
    """A quarter paired, no figures to compare, and no record left over on one side."""
    alone = [f"Module.model.layers.{n}.block.Block.forward.0" for n in range(400)]
    return msgspec.structs.replace(
        same(),
        verdict="inconclusive",
        reason="coverage",
        coverage=0.25,
        unmatched_train=[],
        unmatched_rollout=alone,
        detection_limit=None,
    )


def several() -> RlResult:
    """The real finding, and others that are of other classes: blind, competing, a factor, infinite, without anchor."""
    (first,) = gelu().findings
    blind = msgspec.structs.replace(first, blind=["rotary", "heads", "gate_up", "qkv_rows", "order"], confidence=0.97)
    suspect = Key("Module.decoder.layers.1.self_attention.linear_proj.RowParallelLinear.forward.0", None)
    figures = [Figures("output.0", [1.0, -1.0, 0.0, 3.0], [float("inf"), -1.0, 0.0, None], float("inf"), 1e-6, "error")]
    other = msgspec.structs.replace(
        first, clazz="nonfinite_one_side", kind="output", role="out", suspect=suspect, anchor=None, anchor_figures=[]
    )
    other = msgspec.structs.replace(
        other,
        figures=figures,
        error=float("inf"),
        competing=True,
        layers=[],
        segment=[],
        segment_sides=[],
        slot="output.0",
    )
    scale = msgspec.structs.replace(first, clazz="configuration_difference", kind="scale", ratio=0.125, confidence=0.4)
    return msgspec.structs.replace(gelu(), findings=[blind, other, *[scale] * 60])


def sixty_one_layers() -> RlResult:
    """61 layers of 17 roles; layer 17 starts it."""
    roles = [f"role_{letter}" for letter in "abcdefghijklmno"]

    def pair(layer: int, role: str) -> Pair:
        behind = (layer, role) >= (17, "role_k")
        name = f"Module.module.module.decoder.layers.{layer}.mlp.{role}.TEColumnParallelLinear.forward.0"
        other = f"Module.model.layers.{layer}.mlp.{role}.AscendMergedColumnParallelLinear.forward.1"
        return Pair(
            f"layers.{layer}.{role}", [name], [other], "error" if behind else "pass", 0.1, 60.06 if behind else 0.5
        )

    mapping = [pair(layer, role) for layer in range(61) for role in roles]
    suspect, anchor = pair(17, "role_k"), pair(17, "role_j")
    (first,) = gelu().findings
    found: Finding = msgspec.structs.replace(
        first,
        suspect=Key(suspect.train[0], suspect.rollout[0]),
        anchor=Key(anchor.train[0], anchor.rollout[0]),
        layers=[17],
    )
    return msgspec.structs.replace(gelu(), findings=[found], mapping=mapping, layers=61)


def hostile() -> RlResult:
    """Every text that comes from a dump tries to leave its place."""
    key = Key(HOSTILE, HOSTILE + "2")
    (first,) = gelu().findings
    found = msgspec.structs.replace(
        first,
        anchor=key,
        suspect=key,
        segment=[HOSTILE],
        segment_sides=["rollout"],
        slot=HOSTILE,
        parameter=HOSTILE,
        terms=[Term("term.base", 0.5)],
    )
    slot = Figures(HOSTILE, [float("nan")] * 4, [1.0] * 4, None, None, "error")
    found = msgspec.structs.replace(found, figures=[slot], anchor_figures=[slot])
    return msgspec.structs.replace(
        gelu(),
        findings=[found, found],
        train=HOSTILE,
        rollout=HOSTILE,
        mapping=[Pair(HOSTILE, [HOSTILE], [HOSTILE + "2"], "error", None, None)] * 130,
        unmatched_train=[HOSTILE],
        unmatched_rollout=[HOSTILE],
    )


ALL: dict[str, Callable[[], RlResult]] = {
    sample.__name__: sample
    for sample in (gelu, same, tokens, nothing_paired, coverage, several, sixty_one_layers, hostile)
}
