"""Which side is which: told by the names of modules, put right where the dumps were given the other way round."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from numprobe.align.calls import read_calls
from numprobe.align.roles.frameworks import Framework, framework_of
from numprobe.cli.app import app
from numprobe.cli.common import guarded
from numprobe.diagnose import rl_consistency
from numprobe.diagnose.rl_consistency.page import view
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.formats.dump import open_dump
from numprobe.record.errors import NumprobeError
from numprobe.synth.rl import SCENARIOS, simulate

from .conftest import Dump
from .models import Run
from .page_results import ENGINES

OF = {
    "hf": "huggingface",
    "megatron": "megatron",
    "megatron_gelu": "megatron",
    "megatron_tp2": "megatron",
    "vllm": "engine",
}
TRAINERS = [name for name, framework in OF.items() if framework != "engine"]


def framework(folder: Path) -> Framework:
    dump = open_dump(folder, use_cache=False)
    return framework_of(read_calls(dump.rank(dump.steps[0].ranks[0])))


@pytest.mark.parametrize("name", OF)
def test_a_real_engine_is_known(name: str) -> None:
    assert framework(ENGINES / name) == Framework(OF[name], "rollout" if name == "vllm" else "train")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_sides_of_every_scenario_are_known(tmp_path: Path, scenario: str) -> None:
    simulate(scenario, tmp_path)
    assert framework(tmp_path / "train").side == "train"
    assert framework(tmp_path / "rollout").side == "rollout"


def test_a_backward_pass_is_of_training(tmp_path: Path) -> None:
    """Whatever the modules are called: a trainer may use an engine's."""
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    name = "Module.layers.0.mlp.down_proj.RowParallelLinear"
    leaf = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": 1.0,
        "Min": 0.0,
        "Mean": 0.5,
        "Norm": 1.0,
    }
    forward = {"input_args": [leaf], "input_kwargs": {}, "output": [leaf]}
    data = {f"{name}.forward.0": forward, f"{name}.backward.0": {"input": [leaf], "output": [leaf]}}
    for what, expected in ((data, "train"), ({f"{name}.forward.0": forward}, "rollout")):
        head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
        (folder / "dump.json").write_text(json.dumps({**head, "data": what}))
        assert framework(tmp_path) == Framework("engine", expected)


@pytest.mark.parametrize("train", TRAINERS)
def test_exchanged_dumps_give_the_same_answer(train: str) -> None:
    right = analyse(ENGINES / train, ENGINES / "vllm", RlOptions(use_cache=False))
    wrong = analyse(ENGINES / "vllm", ENGINES / train, RlOptions(use_cache=False))
    assert (right.exchanged, wrong.exchanged) == (False, True)
    assert (wrong.verdict, wrong.findings, wrong.mapping) == (right.verdict, right.findings, right.mapping)
    assert (wrong.train, wrong.rollout) == (right.train, right.rollout)
    assert [note.key for note in view.notes(wrong)] == ["note.exchanged"]
    assert not view.notes(right)
    kept = analyse(ENGINES / "vllm", ENGINES / train, RlOptions(use_cache=False, as_given=True))
    assert (kept.exchanged, kept.train) == (False, wrong.rollout)
    assert not view.notes(kept)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_exchange_is_told_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], lang: str) -> None:
    paths = [str(ENGINES / "vllm"), str(ENGINES / "megatron_gelu")]
    arguments = ["rl", *paths, "--no-cache", "--lang", lang, "-o"]
    assert guarded(lambda **more: app([*arguments, str(tmp_path / "a")], **more)) == 1
    wanted = "--as-given"
    assert wanted in capsys.readouterr().out
    for page in ("report.md", "report.html"):
        assert wanted in (tmp_path / "a" / page).read_text()
    assert guarded(lambda **more: app([*arguments, str(tmp_path / "b"), "--json"], **more)) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["exchanged"], told["frameworks"]) == (True, {"train": "megatron", "rollout": "engine"})
    assert guarded(lambda **more: app([*arguments, str(tmp_path / "c"), "--as-given"], **more)) == 1
    assert wanted not in capsys.readouterr().out


@pytest.mark.parametrize(("one", "other"), list(permutations(TRAINERS[:3], 2)))
def test_two_trainers_are_told(one: str, other: str) -> None:
    found = analyse(ENGINES / one, ENGINES / other, RlOptions(use_cache=False))
    assert (found.exchanged, found.note) == (False, "trainers")
    same = OF[one] == OF[other]
    assert [note.key for note in view.notes(found)] == [f"note.trainers{'_same' * same}"]


def test_two_engines_are_told(dump: Dump) -> None:
    found = analyse(dump(Run("engine")), dump(Run("engine"), "L0"), RlOptions(use_cache=False))
    assert (found.note, found.frameworks) == ("engines", {"train": "engine", "rollout": "engine"})


def test_one_dump_for_both_sides_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ENGINES / "vllm")
    for other in (ENGINES / "vllm", link):
        with pytest.raises(NumprobeError, match="same dump") as told:
            rl_consistency.run(ENGINES / "vllm", other, out=tmp_path / "out")
        assert told.value.code == "E-RLC-003"
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("exchanged", "turned"), [(False, False), (True, False), (True, True)])
def test_a_mapping_file_fits_either_way(tmp_path: Path, exchanged: bool, turned: bool) -> None:
    """Written for the right order, or by ``numprobe map`` for the order in which the dumps were given."""
    order = [ENGINES / "hf", ENGINES / "vllm"]
    written = order[::-1] if turned else order
    arguments = ["map", *map(str, written), "-o", str(tmp_path / "map.csv")]
    assert guarded(lambda **more: app(arguments, **more)) in (0, 1)
    given = order[::-1] if exchanged else order
    found = rl_consistency.run(*given, out=tmp_path / "out", mapping=tmp_path / "map.csv")
    assert (found.unknown_names, found.exchanged, found.verdict) == ([], exchanged, "no_difference")
