"""A path at which nothing lies, or the results of a run: what may have been meant is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numprobe.formats.dump import open_dump
from numprobe.formats.near import near_path
from numprobe.record.errors import NumprobeError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("dump/step_0", "dump/step0"),
        ("dmup/step0", "dump/step0"),
        ("dmup/step0/rank9", "dump"),  # of what follows nothing is made up
        ("DUMP/step0", "dump/step0"),
        ("dump/step0/", ""),  # is there
        ("elsewhere/x", ""),
        ("dump/step0/rank0/dump.jsn", "dump/step0/rank0/dump.json"),
        ("x" * 5000, ""),
        ("dump\0/step0", "dump/step0"),
        ("~nobody_of_this_name/dump", ""),
        ("", ""),
    ],
)
def test_the_nearest_name_beside_it(given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dump" / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "dump" / "step0" / "rank0" / "dump.json").touch()
    monkeypatch.chdir(tmp_path)
    assert near_path(given) == meant
    if meant:
        with pytest.raises(NumprobeError) as caught:
            open_dump(given)
        assert (caught.value.code, caught.value.do) == ("E-FMT-001", f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        ({"skill": "nan", "inputs": {"dump": "/data/a"}}, ["/data/a"]),
        ({"skill": "rl", "inputs": {"train": "/data/a", "rollout": "/data/b", "n": 3}}, ["/data/a", "/data/b"]),
        ({"skill": "nan", "inputs": ["/data/a"]}, []),
        ({"inputs": {"dump": "/data/a"}}, []),
        (["skill"], []),
    ],
)
def test_the_folder_of_a_run_is_no_dump(manifest: object, named: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(NumprobeError) as caught:
        open_dump(tmp_path)
    assert caught.value.code == "E-FMT-002"
    assert ("results of a numprobe run" in caught.value.what) == bool(named)
    assert all(path in caught.value.do for path in named)
