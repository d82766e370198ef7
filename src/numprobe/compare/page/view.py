"""What all renderings of a comparison share: which sentence says a finding, where it is, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numprobe.compare.messages import CATALOGUE, say
from numprobe.compare.result import GAPS, PREMISES, Call, CompareResult, Finding, Leaf, Problem
from numprobe.record.names import parse_name
from numprobe.report import numbers
from numprobe.report.messages import fields
from numprobe.report.terminal import printable

SHOWN_CASES = ("split", "replicated", "partial", "diverged")  # of leaves that ranks share


@dataclass(frozen=True)
class Said:
    """A message that is not worded yet."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)


def headline(result: CompareResult) -> Said:
    """The sentence behind the verdict."""
    if result.premise in PREMISES:
        return problems(result)[0]
    if result.premise in ("nothing_compared", "parts"):
        return Said(f"headline.{result.premise}")
    if result.findings:
        return sentence(result.findings[0])
    compared = sum(pair.compared for pair in result.ranks)
    values = {"compared": compared, "dtypes": ", ".join(result.dtypes) or "-", "warnings": result.counts["warning"]}
    return Said("headline.pass_warnings" if result.counts["warning"] else "headline.pass", values)


def sentence(f: Finding, *, first: bool = True) -> Said:
    """What a finding says; ``first``: none of the run comes before it."""
    op = f.op or f.golden_op or ""
    values: dict[str, object] = {
        "first": first,
        "op": op,
        "slot": f.slot,
        "error": _shown(f.error),
        "expected": _shown(f.expected),
    }
    values["ranks"] = sorted(f.ranks)
    if f.cause == "unmatched":
        side = "target" if f.reason == "only_target" else "golden"
        return Said(
            "headline.unmatched", {"op": op, "side": side, "count": max(len(f.only_target) + len(f.only_golden), 1)}
        )
    if f.reason in GAPS and f.cause == "nonfinite":
        return Said("headline.nonfinite.gap", values)
    if f.reason in GAPS:
        return Said(
            f"headline.{f.reason}",
            {
                **values,
                "after": f.after if f.reason == "gap" else None,
                "target": f.only_target[0] if f.only_target else None,
                "golden": f.only_golden[0] if f.only_golden else None,
            },
        )
    if f.cause == "parameter":
        return Said(
            f"headline.parameter.{f.reason}" if f.reason else "headline.parameter", {**values, "parameter": f.parameter}
        )
    own = f.reason and (f.cause in ("introduced", "input") or (f.cause, f.reason) == ("layout", "kind"))
    key = f"headline.{f.cause}.{f.reason}" if own else f"headline.{f.cause}"
    return Said(key, values)


def _shown(error: float | None) -> float | None:
    return error if error is not None and error < float("inf") else None


def layout(f: Finding) -> Said | None:
    """In which order the target holds the golden elements, if that is all."""
    return Said("layout.same", {"layout": f.layout}) if f.layout else None


def notes(result: CompareResult) -> list[Said]:
    """What limits the comparison as a whole."""
    said = []
    for note in result.notes:
        kind, *values = note.split(":")
        if kind == "levels":
            said.append(Said("note.levels", {"target": values[0], "golden": values[1]}))
        elif kind == "merged":
            counts = dict(pair.split("=") for pair in values[2].split(",") if pair)
            shown = {name: int(counts[name]) if name in counts else None for name in SHOWN_CASES}
            said.append(Said("note.merged", {"side": values[0], "ranks": values[1].replace("+", ", "), **shown}))
            if "averaged" in counts:
                said.append(Said("note.averaged", {"side": values[0], "times": int(counts["averaged"])}))
        elif kind == "order":
            said.append(Said("note.order", {"parameter": values[1], "groups": int(values[2])}))
    return said


def problems(result: CompareResult) -> list[Said]:
    """What the comparison lacks, those that leave no verdict first; problems of one kind on one side are told once."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in result.problems:
        groups.setdefault((problem.kind, problem.side), []).append(problem)
    said = []
    for (kind, side), group in groups.items():
        first = group[0]
        values = {**first.values, "side": side, "rank": first.rank, "file": first.file, "more": len(group) - 1 or None}
        needed, optional = fields(CATALOGUE.templates("en")[f"problem.{kind}"])
        shown = {name: printable(v) if isinstance(v, str) else v for name, v in values.items()}
        said.append(Said(f"problem.{kind}", {n: v for n, v in shown.items() if n in needed | optional}))
    return said


def limits(result: CompareResult) -> list[Said]:
    """What is told beside the headline: problems and notes."""
    told = problems(result)
    return [*(told[1:] if result.premise in PREMISES else told), *notes(result)]


def place(f: Finding, lang: str) -> str:
    """``step 0, rank 3, layer 11, forward``."""
    parts = []
    if f.step is not None:
        parts.append(say(lang, "place.step", step=f.step))
    parts.append(say(lang, "place.rank", ranks=sorted(f.ranks)) if f.ranks else ", ".join(f.rank_keys))
    if f.layer is not None:
        parts.append(say(lang, "place.layer", layer=f.layer))
    parts.append(say(lang, f"phase.{f.phase}"))
    return say(lang, "list.comma").join(parts)


def cause(f: Finding, lang: str) -> str:
    gap = f.cause == "introduced" and f.reason in GAPS
    return say(lang, "cause.introduced.gap" if gap else f"cause.{f.cause}")


def code(f: Finding | Call) -> list[str]:
    """``experts.py:148 forward: y = ...`` of the frames outside of libraries, innermost first."""
    found = []
    for frame in f.stack:
        if "site-packages" in frame:
            continue
        head, _, source = frame.partition(", in ")
        file, _, line = head.removeprefix("File ").partition(", line ")
        function, _, text = source.partition(",")
        found.append(f"{'/'.join(file.split('/')[-2:])}:{line} {function.strip()}: {text.strip()}".rstrip(": "))
    return found


def calls_alone(f: Finding) -> list[tuple[str, Call]]:
    """The calls that one side alone makes in a gap, each with the name of its message."""
    return [(name, call) for name, call in (("extra", f.extra), ("missing", f.missing)) if call is not None]


def modules(f: Finding | Call) -> list[str]:
    """Paths of the modules around, innermost first."""
    return [op.path for name in f.inside if (op := parse_name(name)).is_module]


def cited(f: Finding, most: int = 8) -> list[Leaf]:
    """The leaves of the record that tell: tensors, and plain values that differ."""
    tensors = [
        leaf
        for leaf in f.leaves
        if any(s is not None and s.dtype and s.shape is not None for s in (leaf.target, leaf.golden))
    ]
    others = [leaf for leaf in f.leaves if leaf not in tensors and leaf.verdict != "pass"]
    return [*tensors, *others][:most]


def next_steps(result: CompareResult) -> list[Said]:
    """What to do now."""
    if not result.findings or result.findings[0].severity != "error":
        return []
    f = result.findings[0]
    op = f.op or f.golden_op or ""
    module = next(iter(modules(f)), op)
    if f.cause == "input":
        return [Said("next.inputs")]
    if f.cause == "parameter":
        return [Said("next.weights", {"parameter": f.parameter})]
    if f.reason in GAPS:
        module = next((path for _, call in calls_alone(f) for path in modules(call)[:1]), module)
        return [Said("next.record" if f.reason == "gap" else "next.operators", {"module": module})]
    steps = [Said("next.arguments" if f.reason == "argument" else "next.code", {"op": op})]
    return steps if result.mode == "tensor" else [*steps, Said("next.tensor", {"op": op})]


def counts(result: CompareResult, lang: str) -> str:
    shown = [say(lang, f"count.{name}", n=n) for name, n in result.counts.items() if n or name == "pass"]
    return say(lang, "list.comma").join(shown)


def unread(result: CompareResult) -> list[str]:
    """Ranks without partner, and those that could not be read."""
    left = [pair.target or pair.golden for pair in result.ranks if pair.status in ("missing", "unreadable")]
    return list(dict.fromkeys(left))


def percent(value: float | None) -> str:
    return numbers.ABSENT if value is None else "inf" if value == float("inf") else numbers.percent(value)
