"""Which records a name in a question means: whole names, parts of them, shorthand; else the nearest ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from numprobe.agent.follow.question import PARTS, Question
from numprobe.record.names import parse_name

NEAREST = 5
MOST_SOUGHT = 8  # words of a question to which the nearest names are looked for
LONGEST_SOUGHT = 200  # characters of one: likeness costs the product of both lengths


def layer_of(name: str) -> int | None:
    """The layer in a record's name, or in a place of the mapping (``layers.3.qkv``)."""
    op = parse_name(name)
    if op.kind != "other":
        return op.layer
    found = re.search(r"(?:^|\.)layers\.([0-9]+)(?:\.|$)", name)
    return int(found.group(1)) if found else None


def holds(name: str, word: str) -> bool:
    """Is ``word`` this name, or whole dotted parts of it, or (three letters and more) some text in it?"""
    low, sought = name.lower(), word.lower().strip(".")
    return (
        f".{sought}." in f".{low}."
        or (len(sought) >= 3 and sought in low)
        or _squeezed(sought) in _squeezed(low).split(".")
    )


def _squeezed(text: str) -> str:
    return text.replace("_", "").replace("-", "")


def in_parts(names: Iterable[str], parts: Sequence[str]) -> bool:
    """Does one of the names lie in one of these parts of a layer?"""
    return any(re.search(PARTS[part], name.lower()) for name in names for part in parts)


def nearest(words: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names most like one of the words, best first: at most five, of those that differ by more than a number one."""
    best: dict[str, tuple[float, str]] = {}
    sought = [word.lower() for word in words if len(word) <= LONGEST_SOUGHT][:MOST_SOUGHT]
    for name in dict.fromkeys(names):
        parts = [p for p in name.lower().split(".") if not p.isdecimal()]
        score = max(
            (difflib.SequenceMatcher(None, word, part).ratio() for word in sought for part in (*parts, name.lower())),
            default=0.0,
        )
        kind = re.sub(r"[0-9]+", "#", name)
        if kind not in best or score > best[kind][0]:
            best[kind] = (score, name)
    ranked = sorted(best.values(), key=lambda found: (-found[0], found[1]))
    return [name for score, name in ranked[:NEAREST] if score > 0.3]


def matching(question: Question, names: Sequence[str]) -> list[str]:
    """The names that hold every word of the question and lie in its layer, in their order; the most exact where some are."""
    chosen = [name for name in names if question.layer is None or layer_of(name) == question.layer]
    for word in question.names:
        exact = [name for name in chosen if f".{word.lower()}." in f".{name.lower()}."]
        chosen = exact or [name for name in chosen if holds(name, word)]
    return chosen
