"""``numprobe compare`` with mapping files: msProbe's partners, and clear errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest

from cli.shell import INTEROP, Ran, numprobe

from .msprobe_tables import Table, csv_table, differences, the_csv
from .test_msprobe_rows import STORE

LAYERS = INTEROP / "compare" / "layer_mapping"


def compare(cwd: Path, folder: Path, *options: object) -> Ran:
    cwd.mkdir(exist_ok=True)
    dumps = [folder / side / "dump.json" for side in ("target", "golden")]
    return numprobe(cwd, "compare", *dumps, "--compat", "msprobe", "-o", "out", "--no-cache", *options)


def our_csv(cwd: Path) -> Table:
    return csv_table(the_csv(cwd / "out"))


def partners(table: Table) -> dict[str, str]:
    return {line[0]: line[1] for line in table[1]}


@pytest.mark.parametrize("folder", [LAYERS, STORE / "layers"], ids=["interop", "two layers"])
def test_layers_are_translated_as_msprobe_does(folder: Path, tmp_path: Path) -> None:
    """Every cell, and the data mapping byte for byte; also layers that the two sides count from other numbers."""
    (layers,) = folder.glob("*.yaml")
    ran = compare(tmp_path, folder, "-lm", layers)
    assert ran.code == 0, ran.err
    assert differences(our_csv(tmp_path), csv_table(the_csv(folder / "result"))) == []
    (ours,) = (tmp_path / "out").glob("data_mapping_*.yaml")
    (theirs,) = (folder / "result").glob("data_mapping_*.yaml")
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_data_mapping_that_was_written_can_be_given(tmp_path: Path) -> None:
    written = next((STORE / "layers" / "result").glob("data_mapping_*.yaml"))
    ran = compare(tmp_path, STORE / "layers", "-dm", written)
    assert ran.code == 0, ran.err
    assert "E-CMP-014" not in ran.err  # N/A is no name
    assert differences(our_csv(tmp_path), csv_table(the_csv(STORE / "layers" / "result"))) == []


# the gradients of two arguments that change places, which msProbe pairs by the list of the outputs
WRONG = ("Mint.add.0.backward.output.0",)


@pytest.mark.parametrize(
    ("folder", "result", "option", "file"),
    [
        ("cells", "by_cell", "-cm", "cells.yaml"),
        ("cells", "by_item", "-dm", "items.yaml"),
        ("cells", "by_api", "-am", "apis.yaml"),
        ("apis", "result", "-am", "apis.yaml"),
    ],
)
def test_what_msprobe_pairs_is_paired(folder: str, result: str, option: str, file: str, tmp_path: Path) -> None:
    compare(tmp_path, STORE / folder, option, STORE / folder / file)
    ours, theirs = our_csv(tmp_path), csv_table(the_csv(STORE / folder / result))
    wanted = {name: golden for name, golden in partners(theirs).items() if golden != "N/A" and name not in WRONG}
    assert {name: partners(ours)[name] for name in wanted} == wanted
    found = (ours[0], [line for line in ours[1] if line[0] in wanted])
    assert differences(found, (theirs[0], [line for line in theirs[1] if line[0] in wanted])) == []


def test_more_is_paired_than_msprobe_does(tmp_path: Path) -> None:
    """MindSpore's APIs need no option; -am and -cm go together; gradients follow the arguments."""
    compare(tmp_path, STORE / "cells", "-am", STORE / "cells" / "apis.yaml", "-cm", STORE / "cells" / "cells.yaml")
    assert "N/A" not in partners(our_csv(tmp_path)).values()
    compare(tmp_path / "apis", STORE / "apis", "-am", STORE / "apis" / "apis.yaml")
    found = partners(our_csv(tmp_path / "apis"))
    assert found["Mint.add.0.backward.output.0"] == "Torch.add.0.backward.output.1"
    assert found["Mint.add.0.backward.input.0"] == "Torch.add.0.backward.input.0"  # msProbe: N/A
    assert found["Functional.x.0.forward.output.0"] == "N/A"  # not in the list


def test_a_leaf_without_partner_by_the_mapping(tmp_path: Path) -> None:
    compare(tmp_path, STORE / "cells", "-dm", STORE / "cells" / "items.yaml", "-cm", STORE / "cells" / "cells.yaml")
    frame = pl.read_parquet(tmp_path / "out" / "compare.parquet")
    of_equal = frame.filter(pl.col("target_op").str.starts_with("Tensor.equal"), pl.col("path") == "output.0")
    assert sorted(of_equal["verdict"].to_list()) == ["unmatched_golden", "unmatched_target"]
    found = partners(our_csv(tmp_path))
    assert found["Mint.add.0.forward.input.0"] == found["Mint.add.0.forward.input.1"] == "Torch.add.0.forward.input.1"


@pytest.mark.parametrize(
    "form", [["-cm"], ["-cm", "default"], ["--cell_mapping"], ["-am"], ["-lm"], ["-lm", "-am", "-cm"]]
)
def test_without_a_value(form: list[str], tmp_path: Path) -> None:
    ran = compare(tmp_path, STORE / "cells", *form)
    assert ran.code in (0, 1, 3), ran.err
    assert partners(our_csv(tmp_path))["Mint.add.0.forward.output.0"] == "Torch.add.0.forward.output.0"


@pytest.mark.parametrize(
    "text",
    [
        "ms_api: Mint.add\npt_api: Torch.add\nms_args: [0, 1]\npt_args: [1, 0]\n",
        "- {ms_api: Mint.add, pt_api: Torch.add, ms_args: [0, 1], pt_args: [1, 0], ms_outputs: [0], pt_outputs: [0]}\n",
        '[{"ms_api": "Mint.add", "pt_api": "Torch.add", "ms_args": [0, 1], "pt_args": [1, 0]}]',
    ],
    ids=["one", "documented keys", "JSON"],
)
def test_api_mappings_that_msprobe_documents_and_refuses(text: str, tmp_path: Path) -> None:
    """W-24."""
    (tmp_path / "apis.yaml").write_text(text, encoding="utf-8")
    compare(tmp_path, STORE / "cells", "-am", tmp_path / "apis.yaml")
    found = partners(our_csv(tmp_path))
    assert found["Mint.add.0.forward.input.0"] == "Torch.add.0.forward.input.1"
    assert found["Mint.add.0.forward.output.0"] == "Torch.add.0.forward.output.0"


# --- names that nothing has ------------------------------------------------------------------------------------------

MISSPELLED = {
    "-dm": ("Mint.add.0.forward.imput.1: Torch.add.0.forward.input.1\n", "Mint.add.0.forward.input.1"),
    "-cm": ("net.fc1.Dense: model.fc1.Linear\nnet.fc3.Dense: model.fc2.Linear\n", "net.fc2.Dense"),
    "-am": ("- {ms_api: Mint.ad, pt_api: Torch.add}\n", "Mint.add"),
    "-lm": ("TopLayer: {nett: model}\n", "net"),
}


@pytest.mark.parametrize("option", MISSPELLED)
def test_an_unknown_name_is_a_warning_with_the_nearest(option: str, tmp_path: Path) -> None:
    text, nearest = MISSPELLED[option]
    (tmp_path / "mapping.yaml").write_text(text, encoding="utf-8")
    ran = compare(tmp_path, STORE / "cells", option, tmp_path / "mapping.yaml")
    assert ran.code in (0, 1, 3)
    assert "! E-CMP-014" in ran.err
    assert option in ran.err
    assert f"the nearest is {nearest}" in " ".join(ran.err.split())
    in_chinese = ("--lang", "zh", "--progress", "json")
    again = compare(tmp_path / "zh", STORE / "cells", option, tmp_path / "mapping.yaml", *in_chinese)
    warnings = [json.loads(line) for line in again.err.splitlines() if '"warning"' in line]
    assert [(w["kind"], w["code"]) for w in warnings] == [("warning", "E-CMP-014")]
    assert nearest in warnings[0]["do"]


def test_a_name_that_another_rank_has_is_no_warning(tmp_path: Path) -> None:
    """With pipeline parallelism every rank has a part of the model."""
    for side, name in (("target", "Functional.x"), ("golden", "Torch.y")):
        for rank, folder in enumerate(("cells", "apis")):
            place = tmp_path / side / "step0" / f"rank{rank}"
            place.mkdir(parents=True)
            (place / "dump.json").write_bytes((STORE / folder / side / "dump.json").read_bytes())
        assert name in (place / "dump.json").read_text(encoding="utf-8")
    ran = numprobe(
        tmp_path, "compare", "target", "golden", "-am", STORE / "apis" / "apis.yaml", "-o", "out", "--no-cache"
    )
    assert ran.code in (0, 1, 3)
    assert "E-CMP-014" not in ran.err


# --- bad files -------------------------------------------------------------------------------------------------------

BAD = [
    ("-dm", "a: b\n c: d\n", "E-CMP-011", "line 2"),
    ("-dm", "- a: b\n", "E-CMP-012", "line 1"),
    ("-dm", "a: b\nc: [d]\n", "E-CMP-012", "line 2"),
    ("-dm", "", "E-CMP-012", "line 1"),
    ("-cm", "net: model\nDense:\n", "E-CMP-012", "line 2"),
    ("-cm", "just text\n", "E-CMP-012", "line 1"),
    ("-lm", "TopLayer:\n  net: model\nNet: attention\n", "E-CMP-012", "line 3"),
    ("-lm", "Net: {a: b", "E-CMP-011", "line 1"),
    ("-lm", "!!python/object/apply:os.system [ls]\n", "E-CMP-012", "line 1"),
    ("-am", "- ms_api: Mint.add\n", "E-CMP-012", "line 1"),
    ("-am", "- ms_api: Mint.add\n  pt_api: add\n", "E-CMP-012", "line 2"),
    ("-am", "- ms_api: Mint.add\n  pt_api: Torch.add\n  ms_arg: [0]\n  pt_argz: [0]\n", "E-CMP-012", "line 4"),
    ("-am", "- ms_api: Mint.add\n  pt_api: Torch.add\n  ms_args: [0, 1]\n  pt_args: [0]\n", "E-CMP-012", "line 1"),
    ("-am", "- ms_api: Mint.add\n  pt_api: Torch.add\n  ms_args: 0\n  pt_args: 0\n", "E-CMP-012", "line 3"),
    ("-am", "\x00", "E-CMP-011", ""),
    ("-cm", "[" * 3000, "E-CMP-011", ""),
]


@pytest.mark.parametrize(("option", "text", "code", "line"), BAD)
def test_a_damaged_mapping_is_one_error(option: str, text: str, code: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.yaml").write_text(text, encoding="utf-8")
    ran = compare(tmp_path, STORE / "cells", option, tmp_path / "mapping.yaml")
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("E-CMP") == 1
    assert code in ran.err
    assert line in ran.err
    assert "mapping.yaml" in "".join(ran.err.split())
    assert not (tmp_path / "out").exists()


def test_a_mapping_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("nowhere.yaml", "bytes.yaml", "."):
        ran = compare(tmp_path, STORE / "cells", "-lm", tmp_path / name)
        assert (ran.code, "E-CMP-010" in ran.err) == (2, True), name


def test_without_pyyaml_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    ran = compare(tmp_path, STORE / "cells", "-cm", STORE / "cells" / "cells.yaml")
    assert ran.code == 2
    assert "pip install 'numprobe[yaml]'" in ran.err
    assert compare(tmp_path, STORE / "cells", "-cm").code in (0, 1, 3)  # what is built in needs none
