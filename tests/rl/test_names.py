"""Every name of the frameworks that are known has its role; what no rule knows stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.align.roles.rules import layer_container, roles_of, rules_from, standard_rules


def models() -> dict[str, list[tuple[str, str]]]:
    """By model, the names and the places that they are."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (Path(__file__).parent / "names.txt").read_text().splitlines():
        if line.startswith("= "):
            rows = found.setdefault(line[2:], [])
        elif line and not line.startswith("#"):
            path, place = line.split(maxsplit=1)
            rows.append((path, place))
    return found


@pytest.mark.parametrize("model", models())
def test_every_name_has_its_place(model: str) -> None:
    rows = models()[model]
    roles = roles_of([path for path, _ in rows])
    said = [
        (path, role.place if role.known else f"? {role.place}") for (path, _), role in zip(rows, roles, strict=True)
    ]
    assert said == rows


@pytest.mark.parametrize(
    ("paths", "container"),
    [
        (["model.layers.0.mlp.experts.0", "model.layers.0.mlp.experts.1", "model.layers.1.mlp.experts.0"], "layers"),
        (["transformer.h.0.mlp", "transformer.h.1.mlp"], "h"),
        (["gpt_neox.layers.0.mlp"], "layers"),
        (["embed", "norm"], ""),
    ],
)
def test_the_word_before_layer_numbers(paths: list[str], container: str) -> None:
    assert layer_container(paths) == container


def test_rules_say_every_part_of_what_is_merged() -> None:
    rules = standard_rules()
    names = {name for name, _ in (*rules.outside, *rules.layer)}
    assert {part for parts in rules.merged.values() for part in parts} <= names
    with pytest.raises(KeyError):
        rules_from({})
