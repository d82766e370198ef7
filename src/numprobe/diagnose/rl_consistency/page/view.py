"""What all renderings share: which sentence says a conclusion, and what to do next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from numprobe.diagnose.rl_consistency.messages import say
from numprobe.diagnose.rl_consistency.result import Figures, Finding, Key, RlResult
from numprobe.record.names import parse_name
from numprobe.report import numbers

FOUR = ("Max", "Min", "Mean", "Norm")
REASONS = ("tokens", "count", "models", "steps")  # that have a text of their own
MOST_SLOTS = 3  # of a record, on a terminal


@dataclass(frozen=True)
class Said:
    """A message that is not worded yet."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)


def headline(result: RlResult) -> Said:
    """The sentence behind the verdict."""
    if result.verdict == "premise_broken":
        return Said(f"headline.premise.{result.reason}")
    if result.verdict == "inconclusive":
        return Said(f"headline.{result.reason}", {"coverage": result.coverage})
    if not result.findings:
        values = {"compared": compared(result), "layers": result.layers, "coverage": result.coverage}
        return Said("headline.no_difference", values)
    return sentence(result.findings[0])


def sentence(f: Finding, *, first: bool = True) -> Said:
    """What a finding says; ``first``: none of the run comes before it."""
    several = f.layers if len(f.layers) > 1 else None
    named = short(suspect(f))
    if f.probe is not None and f.probe.exact and f.kind in ("different", "missing"):
        fits = {side: fitting(names) for side, names in (("train", f.probe.train), ("rollout", f.probe.rollout))}
        if all(fits.values()):
            anchor = short(key(f.anchor)) or named
            return Said("headline.activation", {"anchor": anchor, "layers": several, **fits})
    known: dict[str, dict[str, object]] = {
        "missing_operator": {
            "anchor": short(key(f.anchor)) or None,
            "suspect": named,
            "first": first,
            "error": _finite(f.error),
            **_guess(f),
        },
        "configuration_difference": {"suspect": named, "ratio": f.ratio and f"{f.ratio:.4g}"},
        "implementation_difference": {
            "suspect": named,
            "first": first,
            "error": _finite(f.error),
            "expected": _finite(f.expected),
        },
        "parameter_difference": {"suspect": named, "parameter": f.parameter, "error": _finite(f.error)},
    }
    if f.clazz == "layout_error":
        return Said("headline.layout_error", {"suspect": named, "transform": f.transform, "layers": several})
    if f.clazz == "nonfinite_one_side" and (side := nonfinite_side(f)):
        return Said("headline.nonfinite_side", {"suspect": named, "side": side})
    return Said(f"headline.{f.clazz}", known.get(f.clazz, {"suspect": named}))


def nonfinite_side(f: Finding) -> str:
    """The side whose Max or Min is not finite; empty where that is not one alone. Mean and Norm may overflow by themselves."""
    sides = {
        side
        for figures in f.figures
        if figures.slot == f.slot
        for side, four in (("train", figures.train), ("rollout", figures.rollout))
        if any(x is not None and not math.isfinite(x) for x in four[:2])
    }
    return sides.pop() if len(sides) == 1 else ""


def fitting(names: Sequence[str]) -> str:
    """``gelu_tanh / gelu``: what fits equally well."""
    return " / ".join(names)


def _guess(f: Finding) -> dict[str, str | None]:
    """What the figures of both sides fit, where that differs and is not measured."""
    p = f.probe
    if p is None or p.exact or not p.train or not p.rollout or set(p.train) & set(p.rollout):
        return {"train": None, "rollout": None}
    return {"train": fitting(p.train), "rollout": fitting(p.rollout)}


def probed(f: Finding, lang: str) -> str:
    """What the activation probe says; empty where there was none."""
    if f.probe is None:
        return ""
    fits = {
        side: fitting(names) or say(lang, "screen.probe_none")
        for side, names in (("train", f.probe.train), ("rollout", f.probe.rollout))
    }
    return say(lang, "screen.probe_exact" if f.probe.exact else "screen.probe_guess", **fits)


def _finite(value: float | None) -> float | None:
    return value if value is not None and value < float("inf") else None


def key(found: Key | None) -> str:
    """The name on the training side, else that on the rollout side."""
    return (found.train or found.rollout or "") if found else ""


def suspect(f: Finding) -> str:
    return key(f.suspect)


def compared(result: RlResult) -> int:
    return sum(result.counts[v] for v in ("pass", "warning", "error"))


MOST_UNKNOWN = 5  # names of a mapping file


def notes(result: RlResult) -> list[Said]:
    """What to know beside the conclusion."""
    told = [Said("note.exchanged", {"train": result.train, "rollout": result.rollout})] if result.exchanged else []
    if result.note:
        same = len(set(result.frameworks.values())) == 1
        told.append(Said(f"note.{result.note}_same" if same else f"note.{result.note}"))
    return [*told, *unknown_names(result)]


def steps(result: RlResult) -> Said | None:
    """Which calls were taken together, where they were more than one."""
    if result.steps is None:
        return None
    found = result.steps
    values = {"train_calls": found.train_calls, "rollout_calls": found.rollout_calls}
    if found.tokens is None:
        return Said("screen.steps_sizes", values)
    tokens = {"tokens": found.tokens, "train": found.train_tokens, "rollout": found.rollout_tokens}
    return Said("screen.steps_ids", {**values, **tokens})


def unknown_names(result: RlResult) -> list[Said]:
    """What the mapping file names and no record has."""
    return [
        Said(f"unknown.{n.side}", {"name": n.name, "close": n.close[0] if n.close else None})
        for n in result.unknown_names[:MOST_UNKNOWN]
    ]


def why(result: RlResult) -> Said:
    """Why a run ends without a finding and without a verdict on the difference."""
    if result.reason == "coverage":
        return Said("page.why.text.coverage", {"coverage": result.coverage})
    return Said(f"page.why.text.{result.reason if result.reason in REASONS else result.verdict}")


def next_steps(result: RlResult) -> list[Said]:
    """What to do now."""
    if result.verdict == "premise_broken":
        return [Said({"models": "page.next.models", "steps": "next.steps"}.get(result.reason, "next.tokens"))]
    if result.verdict == "inconclusive":
        return [Said("next.coverage")]
    if not result.findings:
        return []
    f = result.findings[0]
    if f.clazz == "parameter_difference":
        return [Said("next.parameter")]
    if f.clazz == "layout_error":
        return [Said("next.layout")]
    if f.kind == "scale":
        return [Said("next.scale")]
    if f.clazz == "nonfinite_one_side" and (side := nonfinite_side(f)):
        return [Said("next.nan", {"dump": result.train if side == "train" else result.rollout})]
    if f.kind in ("rotary", "rotary_angle"):
        return [Said("next.rotary")]
    first = [Said("next.activation")] if f.clazz == "missing_operator" else []
    if result.tensors:
        return first or [Said("next.mapping")]
    names = {"suspect": short(suspect(f)), "anchor": short(key(f.anchor)) or None}  # parts of names, as list takes them
    record = Said("next.config", result.next) if result.next else Said("next.implementation", names)
    return [*first, record, *([] if first else [Said("next.mapping")])]


def short(name: str) -> str:
    """``Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0`` -> ``layers.0.mlp.linear_fc2``; others as they are.

    For headlines: the full name stands next to it.
    """
    op = parse_name(name)
    if not op.is_module or not op.path:
        return name
    start = f".{op.path}".find(".layers.")
    return op.path[start:] if start >= 0 else op.path


def tail(name: str) -> str:
    """``linear_fc2``: the module's own name, where its layer stands next to it."""
    return short(name).rpartition(".")[2] if parse_name(name).is_module else name


def layer(found: Key) -> int | None:
    return parse_name(key(found)).layer


def outputs(figures: Sequence[Figures]) -> list[Figures]:
    """Of an anchor: the outputs, which are what agrees."""
    return [f for f in figures if f.slot.startswith("output") and f.verdict != "unmatched"][:MOST_SLOTS]


def telling(f: Finding) -> list[Figures]:
    """Of a suspect: the slot of the finding and what else was compared, errors first where there are many."""
    known = [x for x in f.figures if x.verdict != "unmatched"]
    worst = sorted(known, key=lambda x: (x.slot != f.slot, x.verdict != "error"))[:MOST_SLOTS]
    return [x for x in known if x in worst]


@dataclass(frozen=True)
class Between:
    """What lies between anchor and suspect on each side."""

    train: list[str]
    rollout: list[str]


def between(f: Finding) -> Between:
    """The segment by side."""
    told = list(zip(f.segment_sides, f.segment, strict=True))
    return Between(*([name for side, name in told if side == wanted] for wanted in ("train", "rollout")))


@dataclass(frozen=True)
class Term:
    """A term of a confidence, as the waterfall shows it."""

    value: float
    message: Said


def terms(f: Finding) -> list[Term]:
    """All terms; where the sum was clamped, that is one of them."""
    found = [Term(t.value, Said(t.key)) for t in f.terms]
    rest = f.confidence - sum(t.value for t in f.terms)
    return [*found, Term(rest, Said("page.confidence.cap"))] if abs(rest) >= 0.005 else found


def steps_of(found: list[Term]) -> list[tuple[float, float]]:
    """Where each term begins and ends."""
    ends = [sum(term.value for term in found[:n]) for n in range(len(found) + 1)]
    return list(itertools.pairwise(ends))


def level(f: Finding) -> str:
    return "high" if f.confidence >= 0.75 else "medium" if f.confidence >= 0.5 else "low"


def confidence(f: Finding, lang: str) -> str:
    """``0.85 high = 0.30 base + ...``"""
    said = ""
    for t in terms(f):
        sign = "-" if t.value < 0 else "+"
        said += f" {sign} " if said else ""
        said += f"{abs(t.value):.2f} {say(lang, t.message.key)}"
    return say(
        lang,
        "screen.confidence_text",
        value=f"{f.confidence:.2f}",
        level=say(lang, f"confidence.{level(f)}"),
        terms=said,
    )


def percent(value: float | None) -> str:
    return numbers.ABSENT if value is None else "inf" if value == float("inf") else numbers.percent(value)
