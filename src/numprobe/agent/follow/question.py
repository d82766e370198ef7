"""What a question on a run asks for: its kind, the names, ranks and layer in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from numprobe.agent.sentence import Sentence, read_sentence
from numprobe.record.errors import NumprobeError
from numprobe.record.ranges import parse_ranges

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_LAYER = re.compile(  # a whole number, none of its digits left out
    r"\blayers?[ ._#]*([0-9]{1,18})(?![0-9])|第\s*([0-9]{1,18})\s*(?:层|个?layer)|(?<![0-9])([0-9]{1,18})\s*层"
)
PARTS = {  # what people call a part of a layer: the components of module paths
    "attention": r"(?:^|\.)(?:self_|cross_)?att(?:n|ention)(?=\.|$)",
    "mlp": r"(?:^|\.)(?:mlp|ffn|feed_forward|experts|moe|block_sparse_moe|shared_experts?)(?=\.|$)",
    "norm": r"norm|(?:^|\.)ln_",
    "experts": r"(?:^|\.)(?:\w*experts?|\w*moe|router)(?=\.|$)",
    "embedding": r"embed",
    "head": r"lm_head|output_layer|logits",
}
_PART_WORDS = {
    "attention": r"(?<![a-z_.])(?:self[-_ ]?)?att(?:n|ention)(?![a-z_.])|注意力",
    "mlp": r"(?<![a-z_.])(?:mlp|ffn|feed[- ]?forward)(?![a-z_.])|前馈|全连接",
    "norm": r"(?<![a-z_.])(?:layer)?norms?(?![a-z_.])|归一化",
    "experts": r"(?<![a-z_.])(?:moe|experts?)(?![a-z_.])|专家",
    "embedding": r"(?<![a-z_.])embeddings?(?![a-z_.])|词嵌入|嵌入层",
    "head": r"(?<![a-z_.])(?:lm[-_ ]head|logits)(?![a-z_.])|输出层",
}
_PLAIN = re.compile(  # words that are no name, though they look like one
    r"(?:why|what|which|where|when|who|how|is|are|was|were|be|do|does|did|not|no|the|a|an|of|on|in|at|to|for|from|and|or|with"
    r"|without|by|it|its|this|that|these|those|show|me|my|list|give|tell|explain|print|display|see|look|only|just|compare"
    r"|comparison|numbers?|figures?|values?|statistics|stats|details?|data|table|rank|ranks|card|cards|layers?|step|steps"
    r"|module|modules|ops?|operators?|apis?|records?|first|last|all|every|each|same|side|sides|train|training|rollout"
    r"|inference|target|golden|exclude[ds]?|excluding|leave|out|rerun|run|again|stack|call|chain|source|sources|victims?"
    r"|relays?|clean|dirty|missing|partial|nan|inf|overflow|confidence|sure|evidence|spread|mapping|report|would|could|should"
    r"|can|confirm|next|please|input|inputs|output|outputs|weight|weights|parameter|parameters|gradient|gradients|max|min|mean"
    r"|norm|there|has|have|had|been|more|full|about|between|than|then|but|if|so|as|else|other|others|any|anything|made|make"
    r"|makes|i|we|us|you|your|our|he|she|they|them|their|his|her|one|two|some|many|much|will|shall|may|might|must|let|get|got"
    r"|bf16|fp16|fp32|fp64|fp8|bfloat16|float16|float32|float64|half|noise|just|trust|code|config|configs|file|files|ruled"
    r"|difference|differences|differ|differs|suspect|anchor|finding|findings|forward|backward|s|t|re|isn|aren|wasn|don|doesn)"
)


@dataclass(frozen=True)
class Question:
    """``kind`` is one of ``questions.json``, the first of ``kinds``, or empty; ``names`` are as the question spells them;
    ``parts`` are keys of :data:`PARTS`."""

    text: str
    lang: str
    kind: str
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    layer: int | None
    parts: tuple[str, ...]
    steps: tuple[int, ...] = ()


def read_question(text: str, lang: str | None = None) -> Question:
    """Take a question apart. ``lang``: the language of the answer where it is not that of the question.

    Raises:
        NumprobeError: E-AGT-011 it is too long.
    """
    return question_of(read_sentence(text), lang)


def question_of(sentence: Sentence, lang: str | None = None) -> Question:
    """The question in a sentence, without its paths."""
    text, lower = sentence.rest.replace("\ufffc", " "), sentence.words
    kinds = tuple(kind for kind, pattern in _patterns() if pattern.search(lower))
    layer = _LAYER.search(lower)
    parts = tuple(part for part, pattern in _PART_WORDS.items() if re.search(pattern, lower))
    return Question(
        text,
        lang or sentence.lang,
        kinds[0] if kinds else "",
        kinds,
        _names(text, parts),
        _numbers(sentence.ranks),
        int(next(filter(None, layer.groups()))) if layer else None,
        parts,
        _numbers(sentence.steps),
    )


@lru_cache(maxsize=1)
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    content = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))
    return [(kind, re.compile(pattern)) for kind, pattern in content]


def _names(text: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Words that may name a record: what is no ordinary word of a question, no number and no part of a layer."""
    found: list[str] = []
    for match in _NAME.finditer(text):
        word = match.group().strip(".")
        plain = word.lower()
        if _PLAIN.fullmatch(plain) or any(re.fullmatch(_PART_WORDS[part], plain) for part in parts):
            continue
        if re.fullmatch(r"layers?[._]?[0-9]*|e[0-9]+|r[0-9]+", plain):
            continue
        if word not in found:
            found.append(word)
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(sorted(parse_ranges(text, "")))
    except NumprobeError:
        return ()
