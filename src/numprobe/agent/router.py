"""Which skill a sentence asks for, on which paths: keywords, and what lies at the paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from numprobe.agent.probe import Probe, opened_out
from numprobe.agent.sentence import Sentence

FITS, CANNOT = 3.0, -5.0
CLOSE = 1.0  # two intents nearer than this are asked about
NO_WORD = 0.5  # for a skill that the data fits, where the sentence says nothing that another one would need
UNSUPPORTED = ("spike", "op_diff", "infer_debug", "compare_table")
INPUTS: Mapping[str, tuple[str, ...]] = {
    "nan_overflow": ("dump",),
    "rl_consistency": ("train", "rollout"),
    "compare": ("target", "golden"),
    "inspect": ("dump",),
    "map": ("train", "rollout"),
    "follow_up": ("run",),
}
_NOT = re.compile(  # "no spike, the loss is NaN" does not speak of a spike; 有没有 and 是不是 ask whether
    r"(?:(?<![a-z])(?:no|not|without|isn't|never|nor)\s+(?:an?\s+|any\s+|the\s+)?|(?<!有)没有?|(?<!是)不是|并非|(?<!有)无|未见)\s*"
    r"(?:loss\s*|梯度)?(?:nans?(?![a-z])|infs?(?![a-z])|overflows?|溢出|spikes?|尖刺|梯度突变)"
)
_TWO = {"compare", "rl_consistency", "map"}  # ask for two dumps
_NEAR = 14  # characters before a path in which a word says which side it is
_SIDES = {
    "train": r"训练|train|megatron|fsdp|mindspeed|actor",
    "rollout": r"推理|rollout|infer|vllm|sglang",
    "golden": r"标杆|基线|基准|参考|正确|正常|可信|旧|升级前"
    r"|golden|baseline|reference|trusted|expected|correct|good|old|before",
    "target": r"待比|待测|可疑|异常|问题|错误|新|升级后|target|suspect|wrong|faulty|broken|bad|new|after",
}


@dataclass(frozen=True)
class Route:
    """``intent`` is a skill's id, ``inspect``, ``map``, ``follow_up``, ``help``, one of :data:`UNSUPPORTED`, or empty where the
    sentence and the data say nothing; ``missing`` names the inputs that are not given, ``other`` a second intent as likely as the
    first. ``by`` is how the sides were told apart: engine | words | order | empty.
    """

    intent: str
    inputs: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    other: str = ""
    by: str = ""
    surplus: tuple[str, ...] = ()  # paths that the intent has no use for
    scores: dict[str, float] = field(default_factory=dict)


def route(sentence: Sentence, probes: Sequence[Probe]) -> Route:
    """Choose an intent and its inputs. ``probes`` are of the sentence's paths, in their order."""
    runs = [p for p in probes if p.kind == "run"]
    said = _said(sentence.words)
    dumps = [p for p in opened_out(probes) if p.kind == "dump"]
    if runs and not dumps and not (len(runs) > 1 and _TWO & set(said)):
        return Route("follow_up", {"run": runs[0].path}, surplus=tuple(p.path for p in runs[1:]))
    scores = {intent: said.get(intent, 0.0) + _evidence(intent, said, dumps, probes) for intent in _intents()}
    ranked = sorted(
        (s, i) for i, s in scores.items() if said.get(i) or i in ("nan_overflow", "rl_consistency", "compare")
    )
    best_score, best = ranked[-1]
    if not said and not dumps:
        return Route("", scores=scores)
    if best_score <= 0:
        return Route("" if not said else max(said, key=lambda i: said[i]), scores=scores)
    if said.get("spike"):  # spike needs the word, and the word decides
        best = "spike"
    second_score, second = ranked[-2]
    close = best_score - second_score < CLOSE and second_score > 0 and best not in UNSUPPORTED
    names = INPUTS.get(best, ())
    inputs, by = _inputs(best, names, sentence, dumps, [p.path for p in probes])
    used = set(inputs.values())
    return Route(
        best,
        inputs,
        tuple(name for name in names if name not in inputs),
        second if close else "",
        by,
        tuple(p.path for p in dumps if p.path not in used),
        scores,
    )


@lru_cache(maxsize=1)
def _table() -> dict[str, list[tuple[float, re.Pattern[str]]]]:
    content = json.loads((Path(__file__).parent / "intents.json").read_text(encoding="utf-8"))
    return {intent: [(w, re.compile(p)) for w, p in entry["words"]] for intent, entry in content.items()}


def _intents() -> list[str]:
    return list(_table())


def _said(words: str) -> dict[str, float]:
    """The weight of what the sentence says, by intent; nothing for an intent of which it has no word."""
    words = _NOT.sub(" ", words)
    found = {intent: sum(w for w, pattern in rules if pattern.search(words)) for intent, rules in _table().items()}
    return {intent: weight for intent, weight in found.items() if weight}


def _evidence(intent: str, said: Mapping[str, float], dumps: Sequence[Probe], probes: Sequence[Probe]) -> float:
    """What the data at the paths says for an intent."""
    engines = {d.side for d in dumps[:2]}
    two = len(dumps) == 2
    foreign = two and engines == {"train", "rollout"}
    if intent == "nan_overflow":
        if not dumps:
            return 0.0
        if all(d.task == "structure" for d in dumps):
            return CANNOT
        if len(dumps) > 1:
            return 0.0
        # "compare DIR" asks for a second dump, though one alone fits this skill
        return FITS if said.get(intent) else FITS - NO_WORD if said else FITS + NO_WORD
    if intent == "rl_consistency":
        if len(dumps) < 2:
            return CANNOT if len(dumps) == 1 and not said.get(intent) else 0.0
        if not all(d.modules for d in dumps[:2]):
            return CANNOT
        return FITS + 2 * CLOSE if foreign else FITS - 2 * CLOSE if "" in engines else 0.0
    if intent == "compare":
        if len(dumps) < 2:
            return CANNOT if len(dumps) == 1 and not said.get(intent) else 0.0
        return FITS if not foreign else 0.0
    if intent == "compare_table":
        return FITS if any(p.kind in ("compare_table", "table") for p in probes) else 0.0
    return 0.0


def _inputs(
    intent: str, names: Sequence[str], sentence: Sentence, dumps: Sequence[Probe], paths: Sequence[str]
) -> tuple[dict[str, str], str]:
    if len(names) == 1:
        return ({names[0]: dumps[0].path} if dumps else {}), ""
    if len(names) != 2 or not dumps:
        return {}, ""
    if len(dumps) == 1:
        side = _told(names, sentence, dumps, paths)[0] or (dumps[0].side if dumps[0].side in names else "") or names[0]
        return {side: dumps[0].path}, ""
    one, other = dumps[0], dumps[1]
    first, second = names
    if "train" in names and one.side and other.side and one.side != other.side:
        by_side = {one.side: one.path, other.side: other.path}
        return {name: by_side[name] for name in names}, "engine"
    told = _told(names, sentence, dumps[:2], paths)
    if told[0] == second or (told[1] == first and told[0] != first):
        return {first: other.path, second: one.path}, "words"
    by = "words" if first in told or second in told else "order"
    return {first: one.path, second: other.path}, by


def _told(names: Sequence[str], sentence: Sentence, dumps: Sequence[Probe], paths: Sequence[str]) -> list[str]:
    """For each dump the side that a word right before its path, or else the path itself, says; empty where none does."""
    found = []
    for dump in dumps:
        before = ""
        if dump.path in paths and len(sentence.places) == len(paths):
            at = sentence.places[paths.index(dump.path)]
            before = sentence.words[max(0, at - _NEAR) : at].rpartition("\ufffc")[2]
        found.append(_side_in(names, before) or _side_in(names, _own_name(dump.path)))
    return found


def _side_in(names: Sequence[str], text: str) -> str:
    """The side whose word stands last in the text."""
    last = {name: max((m.end() for m in re.finditer(_SIDES[name], text.lower())), default=-1) for name in names}
    best = max(last, key=lambda name: last[name])
    return best if last[best] >= 0 else ""


def _own_name(path: str) -> str:
    """The telling parts of a path: its last folders without ``step0`` and ``rank0``."""
    parts = [p for p in re.split(r"[/\\]", path) if p and not re.fullmatch(r"(?:step|rank|proc)_?[0-9]*", p)]
    return "/".join(parts[-2:])
