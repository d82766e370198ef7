"""The mapping as a file: written, corrected by hand, and read back; forms of other tools; what is wrong with a file is said."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from numprobe.cli.app import app
from numprobe.diagnose.rl_consistency.mapping import mapping_of, render_mapping, write_mapping
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.record.errors import NumprobeError
from numprobe.report.terminal import Style

from .conftest import Dump
from .models import STYLES, Decoder, Run

PAIRS = list(permutations(STYLES, 2))


def renamed(folder: Path, out: Path, names: Mapping[str, str]) -> Path:
    """A copy of a dump whose modules have other names."""
    shutil.copytree(folder, out)
    for path in [*out.rglob("dump.json"), *out.rglob("construct.json"), *out.rglob("stack.json")]:
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        path.write_text(text)
    return out


def with_file(train: Path, rollout: Path, file: Path, content: object) -> RlResult:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return analyse(train, rollout, RlOptions(use_cache=False, mapping=str(file)))


def places(result: RlResult) -> dict[str, tuple[list[str], list[str]]]:
    return {pair.place: (pair.train, pair.rollout) for pair in result.mapping}


@pytest.mark.parametrize(
    "config", [Decoder(), Decoder(experts=4), Decoder(fused_norm=True)], ids=["dense", "moe", "fused"]
)
@pytest.mark.parametrize("pair", PAIRS, ids="|".join)
def test_what_is_written_changes_nothing_when_read(
    dump: Dump, tmp_path: Path, config: Decoder, pair: tuple[str, str]
) -> None:
    train, rollout = (dump(Run(style, config)) for style in pair)
    found = mapping_of(train, rollout, None, None)
    write_mapping(found, tmp_path / "map.csv")
    (tmp_path / "map.json").write_text(render_mapping(found, "en", Style(), as_json=True))
    for name in ("map.csv", "map.json"):
        again = mapping_of(train, rollout, None, None, str(tmp_path / name))
        assert places(again) == places(found)
        assert (again.unmatched_train, again.unmatched_rollout) == (found.unmatched_train, found.unmatched_rollout)
        assert again.unknown_names == []


def test_a_corrected_row(dump: Dump, tmp_path: Path) -> None:
    """A name that no rule knows: without partner, until the file says what it is."""
    strange = renamed(dump(Run("megatron", changed={"1.o": 1.03})), tmp_path / "dump", {"linear_proj": "turn_back"})
    rollout = dump(Run("engine"))
    found = mapping_of(strange, rollout, None, None)
    assert any("turn_back" in name for name in found.unmatched_train)
    assert not any(
        "turn_back" in str(f.suspect) for f in analyse(strange, rollout, RlOptions(use_cache=False)).findings
    )
    write_mapping(found, tmp_path / "map.csv")
    rows = list(csv.DictReader((tmp_path / "map.csv").open()))
    for row in rows:
        if row["place"].endswith(".out"):
            layer = row["place"].split(".")[1]
            row["train"] = f"Module.decoder.layers.{layer}.self_attention.turn_back.RowParallelLinear.forward.0"
    with (tmp_path / "map.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("place", "train", "rollout"))
        writer.writeheader()
        writer.writerows(row for row in rows if row["place"])
    result = analyse(strange, rollout, RlOptions(use_cache=False, mapping=str(tmp_path / "map.csv")))
    [f] = result.findings
    assert (f.clazz, f.role, f.layers) == ("parameter_difference", "out", [1])
    assert not any("turn_back" in name for name in result.unmatched_train)


@pytest.mark.parametrize("form", ["names", "lists", "cells"])
def test_two_names_that_no_rule_knows(dump: Dump, tmp_path: Path, form: str) -> None:
    """They are compared as what they are: a module with inputs, outputs and weights."""
    train = renamed(dump(Run("hf", changed={"1.down": 1.03})), tmp_path / "a", {"down_proj": "shrink"})
    rollout = renamed(dump(Run("engine")), tmp_path / "b", {"down_proj": "narrow"})
    assert all("shrink" not in place for place in places(analyse(train, rollout, RlOptions(use_cache=False))))
    kinds = {"shrink": "Linear", "narrow": "RowParallelLinear"}
    pairs = {
        f"model.layers.{i}.mlp.shrink.{kinds['shrink']}": f"model.layers.{i}.mlp.narrow.{kinds['narrow']}"
        for i in range(3)
    }
    if form == "cells":
        pytest.importorskip("yaml")
        result = with_file(
            train, rollout, tmp_path / "cell_mapping.yaml", "".join(f"{a}: {b}\n" for a, b in pairs.items())
        )
    else:
        keys = {f"Module.{a}.forward.0": f"Module.{b}.forward.0" for a, b in pairs.items()}
        content = keys if form == "names" else {a: [b] for a, b in keys.items()}
        result = with_file(train, rollout, tmp_path / "output_0_key_mapping.json", content)
    rows = [pair for pair in result.mapping if any("shrink" in name for name in pair.train)]
    assert len(rows) == 3
    assert all("narrow" in name for pair in rows for name in pair.rollout)
    [f] = result.findings
    assert (f.clazz, f.layers) == ("parameter_difference", [1])
    assert "shrink" in str(f.suspect.train)
    assert "narrow" in str(f.suspect.rollout)


def test_a_row_without_place_takes_a_record_out(dump: Dump, tmp_path: Path) -> None:
    train, rollout = dump(Run("megatron")), dump(Run("engine"))
    name = "Module.decoder.layers.1.mlp.linear_fc2.RowParallelLinear.forward.0"
    result = with_file(train, rollout, tmp_path / "m.csv", f"place,train,rollout\n,{name},\n")
    assert name in result.unmatched_train
    assert places(result)["layers.1.down"][0] == []


def test_a_list_of_parts(dump: Dump, tmp_path: Path) -> None:
    """One key to three, as the reference announces and cannot read: what is fused by itself stays as it is."""
    train, rollout = dump(Run("megatron")), dump(Run("hf"))
    key = "Module.decoder.layers.0.self_attention.linear_qkv.ColumnParallelLinear.forward.0"
    three = [f"Module.model.layers.0.self_attn.{n}_proj.Linear.forward.0" for n in "qkv"]
    result = with_file(train, rollout, tmp_path / "m.json", {key: three})
    assert places(result)["layers.0.qkv"] == ([key], three)
    assert result.verdict == "no_difference"


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("m.csv", "place,train\na,b\n", "E-RLC-011", "1"),
        ("m.csv", "place,train,rollout\nlayers.0.down,a\n", "E-RLC-011", "2"),
        ("m.csv", "", "E-RLC-011", "1"),
        ("m.json", '{"a": "b",\n "c": }', "E-RLC-011", "2"),
        ("m.json", '{"a": 3}', "E-RLC-011", "1"),
        ("m.json", '[["a", "b"]]', "E-RLC-011", "1"),
        ("m.json", '{"mapping": {"layers.0.down": {"a": 3, "b": []}}}', "E-RLC-011", "1"),
        ("m.json", '{"Module.nothing.Linear.forward.0": "Module.such.Linear.forward.0"}', "E-RLC-012", "nothing"),
    ],
)
def test_a_damaged_file(dump: Dump, tmp_path: Path, name: str, content: str, code: str, says: str) -> None:
    with pytest.raises(NumprobeError) as caught:
        with_file(dump(Run("hf")), dump(Run("engine")), tmp_path / name, content)
    assert caught.value.code == code
    assert says in str(caught.value) + str(caught.value.values)
    assert name in str(caught.value.where)


def test_a_file_that_is_not_there(dump: Dump, tmp_path: Path) -> None:
    for path, code in (
        (tmp_path / "no.csv", "E-RLC-010"),
        (tmp_path, "E-RLC-010"),
        (tmp_path / "no.yaml", "E-CMP-010"),
    ):
        with pytest.raises(NumprobeError) as caught:
            analyse(dump(Run("hf")), dump(Run("engine")), RlOptions(use_cache=False, mapping=str(path)))
        assert caught.value.code == code


def test_a_misspelt_name_is_named_with_the_nearest(dump: Dump, tmp_path: Path) -> None:
    train, rollout = dump(Run("hf")), dump(Run("engine"))
    (tmp_path / "m.csv").write_text(
        "place,train,rollout\n"
        "layers.0.down,Module.model.layers.0.mlp.donw_proj.Linear.forward.0,"
        "Module.model.layers.0.mlp.down_proj.RowParallelLinear.forward.0\n"
        "layers.0.dwon,Module.model.layers.0.mlp.down_proj.Linear.forward.0,\n"
    )
    result = analyse(train, rollout, RlOptions(use_cache=False, mapping=str(tmp_path / "m.csv")))
    assert {(n.side, n.close[0]) for n in result.unknown_names} == {
        ("train", "model.layers.0.mlp.down_proj"),
        ("place", "layers.0.down"),
    }
    for lang, word in (("en", "did you mean"), ("zh", "是否为")):
        for command in ("rl", "map"):
            arguments = [command, str(train), str(rollout), "--mapping", str(tmp_path / "m.csv"), "--lang", lang]
            arguments += ["-o", str(tmp_path / f"{command}_{lang}")]
            said = CliRunner().invoke(app, arguments).stdout
            assert word in said.replace("\n", " ")
