"""What all renderings share: which sentence says a conclusion, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numprobe.diagnose.rl_consistency.messages import say
from numprobe.diagnose.rl_consistency.result import Finding, RlResult


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


def sentence(f: Finding) -> Said:
    """What a finding says."""
    several = f.layers if len(f.layers) > 1 else None
    known: dict[str, dict[str, object]] = {
        "missing_operator": {
            "anchor": key(f.anchor) or "-",
            "suspect": suspect(f),
            "layers": several,
            "error": f.error,
        },
        "configuration_difference": {"suspect": suspect(f), "ratio": f.ratio and f"{f.ratio:.4g}"},
        "implementation_difference": {
            "suspect": suspect(f),
            "error": _finite(f.error),
            "expected": _finite(f.expected),
        },
        "parameter_difference": {"suspect": suspect(f), "parameter": f.parameter, "error": _finite(f.error)},
    }
    return Said(f"headline.{f.clazz}", known.get(f.clazz, {"suspect": suspect(f)}))


def _finite(value: float | None) -> float | None:
    return value if value is not None and value < float("inf") else None


def key(found: object) -> str:
    """The name on the training side, else that on the rollout side."""
    return (getattr(found, "train", None) or getattr(found, "rollout", None) or "") if found else ""


def suspect(f: Finding) -> str:
    return key(f.suspect)


def compared(result: RlResult) -> int:
    return sum(result.counts[v] for v in ("pass", "warning", "error"))


def next_steps(result: RlResult) -> list[Said]:
    """What to do now."""
    if result.verdict == "premise_broken":
        return [Said("next.tokens")]
    if result.verdict == "inconclusive":
        return [Said("next.coverage")]
    if not result.findings:
        return []
    f = result.findings[0]
    if f.clazz == "missing_operator":
        return [Said("next.activation")]
    if f.clazz == "parameter_difference":
        return [Said("next.parameter")]
    if f.kind == "scale":
        return [Said("next.scale")]
    return [Said("next.implementation", {"suspect": suspect(f), "anchor": key(f.anchor) or "-"}), Said("next.mapping")]


def confidence(f: Finding, lang: str) -> str:
    level = "high" if f.confidence >= 0.75 else "medium" if f.confidence >= 0.5 else "low"
    terms = " + ".join(f"{t.value:.2f} {say(lang, t.key)}" for t in f.terms)
    return say(
        lang, "screen.confidence_text", value=f"{f.confidence:.2f}", level=say(lang, f"confidence.{level}"), terms=terms
    )
