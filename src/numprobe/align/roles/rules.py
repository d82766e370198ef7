"""Module paths of Megatron-Core, Hugging Face, vLLM and SGLang as roles: ``layers.3.mlp.linear_fc2`` is ``down`` of layer 3."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

# how the parts of a fused tensor lie in it
PLAIN, HALVES, STACKED, GROUPED, STACK = "plain", "halves", "stacked", "grouped", "stack"

_LAYER = re.compile(r"(?:^|\.)([A-Za-z_]+)\.([0-9]+)(?=\.|$)")


@dataclass(frozen=True)
class Role:
    """``name`` is a role of ``rules.json``, or the path itself where no rule knows it (``known`` false). ``part`` is the expert
    (``experts.3``, ``shared_experts``) or empty, ``tower`` a second stack of layers (vision, speech, MTP) or empty."""

    name: str
    layer: int | None
    part: str = ""
    tower: str = ""
    known: bool = True
    given: bool = field(default=False, compare=False)  # by the user

    @property
    def place(self) -> str:
        """``layers.3.mlp.down`` without the framework's words: ``3 down``, ``embed``."""
        return " ".join(
            p for p in (self.tower, "" if self.layer is None else str(self.layer), self.part, self.name) if p
        )


@dataclass(frozen=True)
class Rules:
    """Compiled rules: role and pattern, tried in order; a pattern has to match the whole path below the layer."""

    wrappers: frozenset[str]
    roots: frozenset[str]
    towers: frozenset[str]
    blocks: tuple[str, ...]
    outside: tuple[tuple[str, re.Pattern[str]], ...]
    layer: tuple[tuple[str, re.Pattern[str]], ...]
    merged: dict[str, list[str]]
    layouts: tuple[tuple[str, re.Pattern[str]], ...] = ()
    sequence_first: re.Pattern[str] = re.compile("(?!)")
    frameworks: tuple[tuple[str, str, re.Pattern[str]], ...] = ()  # name, side, module and class
    # what was found for a name, which every layer has again
    matched: dict[tuple[bool, str], tuple[str, str] | None] = field(default_factory=dict, compare=False)
    laid_out: dict[str, str] = field(default_factory=dict, compare=False)

    def framework(self, modules: Iterable[str]) -> tuple[str, str]:
        """Name and side of the framework that alone has one of these modules (``linear_qkv.ColumnParallelLinear``); empty
        where none tells."""
        names = set(modules)
        return next(((n, side) for n, side, pattern in self.frameworks if any(map(pattern.fullmatch, names))), ("", ""))

    def layout(self, path: str) -> str:
        """``grouped`` for ``layers.3.self_attention.linear_qkv``: how the parts of what is fused there lie in it."""
        name = path.rpartition(".")[2]
        if name not in self.laid_out:
            fits = (layout for layout, pattern in self.layouts if pattern.fullmatch(name))
            self.laid_out[name] = next(fits, PLAIN)
        return self.laid_out[name]

    def role(self, path: str, container: str) -> Role:
        """The role of a module path; ``container`` is the word before the layer numbers (``layers``, ``h``). A tower has its own.

        Roles that depend on what else is in the layer are left as they are: see :func:`roles_of`.
        """
        parts = [p for p in path.split(".") if p not in self.wrappers]
        while parts and parts[0].isdecimal():  # a list of model chunks
            parts = parts[1:]
        tower = next((t for t in parts if t in self.towers), "")
        if tower:
            parts = parts[parts.index(tower) + 1 :]
        plain = ".".join(parts)
        found = _numbered("" if tower else container).search(plain) if tower or container else None
        if found is None:
            rest = ".".join(p for p in parts if p not in self.roots)
            return self._match(rest, None, tower)
        rest = plain[found.end() :]
        for block in self.blocks:  # MTP: a layer in the layer
            rest = rest.removeprefix(f"{block}.") if rest != block else ""
        return self._match(rest, int(found.group(1)), tower)

    def _match(self, rest: str, layer: int | None, tower: str) -> Role:
        key = layer is not None, rest
        if key not in self.matched:
            self.matched[key] = _first_match(self.layer if layer is not None else self.outside, rest)
        found = self.matched[key]
        return Role(rest, layer, "", tower, known=False) if found is None else Role(found[0], layer, found[1], tower)


@cache
def _numbered(container: str) -> re.Pattern[str]:
    """Where a layer of the container begins; without its name, of any."""
    word = re.escape(container) or "[A-Za-z_]+"
    return re.compile(rf"(?:^|\.){word}\.([0-9]+)(?:\.|$)")


def _first_match(rules: Iterable[tuple[str, re.Pattern[str]]], rest: str) -> tuple[str, str] | None:
    """Name and part of the first rule that fits."""
    for name, pattern in rules:
        found = pattern.fullmatch(rest)
        if found:
            expert = found.groupdict().get("expert") or ""
            return name, expert.replace(".local_experts", "").replace("shared_experts", "shared_expert")
    return None


@lru_cache(maxsize=1)
def standard_rules() -> Rules:
    """The rules that come with numprobe."""
    return rules_from(json.loads((Path(__file__).parent / "rules.json").read_text(encoding="utf-8")))


def rules_from(content: dict[str, Any]) -> Rules:
    """Rules as ``rules.json`` has them.

    Raises:
        ValueError: a pattern is no regular expression, or a section is missing.
    """
    parts: dict[str, str] = content["parts"]

    def compiled(section: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
        found = []
        for name, pattern in content[section]:
            for word in sorted(parts, key=len, reverse=True):
                pattern = pattern.replace(word, parts[word]) if word in pattern else pattern
            found.append((name, re.compile(pattern)))
        return tuple(found)

    return Rules(
        frozenset(content["wrappers"]),
        frozenset(content["roots"]),
        frozenset(content["towers"]),
        tuple(content["blocks"]),
        compiled("outside"),
        compiled("layer"),
        content["merged"],
        tuple((layout, re.compile(pattern)) for layout, pattern in content.get("layouts", [])),
        re.compile(content.get("sequence_first", "(?!)")),
        tuple((name, side, re.compile(pattern)) for name, side, pattern in content.get("frameworks", [])),
    )


def layer_container(paths: Iterable[str]) -> str:
    """The word before the layer numbers: ``layers``, or of the words with at least two numbers the most frequent."""
    numbers: dict[str, set[str]] = {}
    count: Counter[str] = Counter()
    for path in paths:
        found = _LAYER.search(path)
        if found:
            numbers.setdefault(found.group(1), set()).add(found.group(2))
            count[found.group(1)] += 1
    several = [word for word, _ in count.most_common() if len(numbers[word]) > 1] or [w for w, _ in count.most_common()]
    return "layers" if "layers" in several else next(iter(several), "")


def roles_of(paths: Sequence[str], rules: Rules | None = None) -> list[Role]:
    """The roles of all module paths of a model."""
    rules = rules or standard_rules()
    container = layer_container(paths)
    return _told_by_neighbours([rules.role(path, container) for path in paths])


def _told_by_neighbours(roles: Sequence[Role]) -> list[Role]:
    """Names that mean one thing or another, depending on what else is in the layer.

    ``q_layernorm`` is behind the projection to heads, or with MLA between the two projections; ``post_attention_layernorm`` is in
    front of the MLP, or right behind the attention where another norm is in front of the MLP (Gemma); a layer with ``eh_proj``
    is a head for multi-token prediction, which Megatron numbers on its own.
    """
    inside: dict[tuple[str, int | None], set[str]] = defaultdict(set)
    for role in roles:
        inside[role.tower, role.layer].add(role.name)
    heads = sorted(n for (tower, n), names in inside.items() if n is not None and not tower and "mtp_proj" in names)
    changed = []
    for role in roles:
        names = inside[role.tower, role.layer]
        if role.name == "q_norm" and names & {"q_a", "qkv_a"}:
            role = replace(role, name="q_a_norm")
        elif role.name == "mlp_norm_or_post":
            role = replace(role, name="attn_post_norm" if "mlp_norm" in names else "mlp_norm")
        if not role.tower and role.layer in heads:
            role = replace(role, tower="mtp", layer=heads.index(role.layer))
        changed.append(role)
    return changed
