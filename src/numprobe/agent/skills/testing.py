"""For the tests of a skill: run it on real files, and hold it to what every skill promises."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from numprobe.agent.skills.front_matter import read_skill_file
from numprobe.agent.skills.registry import Found, load_skill, pipeline_of
from numprobe.agent.skills.schema import schema_of
from numprobe.agent.skills.skill import Done
from numprobe.execution.progress import Progress
from numprobe.report.run_folder import MANIFEST, plain


def run_skill(folder: Path, inputs: Mapping[str, str | Path], out: Path, **options: object) -> Done:
    """Run the skill in ``folder`` twice, into ``out/1`` and ``out/2``; what the first run gave.

    Raises:
        AssertionError: an input was written to; a stage that was not named; an exit code that none has; a result that does not
            fit its type; no finished manifest; other artifacts in the second run.
        NumprobeError: SKILL.md or skill.py is wrong (E-SKL), or the input is.
    """
    file = read_skill_file(folder)
    skill = load_skill(Found(file.name, "local", str(folder), file=file, runs=True))
    schema_of(skill)
    pipeline = pipeline_of(skill, str(folder))
    asked = msgspec.convert(options, skill.options)
    paths = {name: str(path) for name, path in inputs.items()}
    assert set(paths) == {one.name for one in skill.inputs}, f"the inputs are {[one.name for one in skill.inputs]}"
    before = {name: _digests(Path(path)) for name, path in paths.items()}
    runs = []
    for number in ("1", "2"):
        events: list[Progress] = []
        done = pipeline.run(paths, asked, out / number, "en", events.append)
        assert events, "no stage was told"
        assert {event.name for event in events} <= set(pipeline.stages), "a stage that Pipeline.stages does not name"
        runs.append(done)
    first, second = runs
    assert before == {name: _digests(Path(path)) for name, path in paths.items()}, "an input was written to"
    assert first.exit_code in (0, 1, 3), "exit codes: 0 nothing wrong found, 1 a problem, 3 the data cannot decide"
    msgspec.convert(plain(first.result), skill.result)
    manifest = json.loads((first.folder / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["status"] == "done", "run.finish('done') was not called"
    artifacts = [{n: d for n, d in _digests(done.folder).items() if n != MANIFEST} for done in runs]
    assert artifacts[0] == artifacts[1], "two runs of the same input write other bytes"
    results = [{key: value for key, value in done.result.items() if key != "out"} for done in (first, second)]
    assert results[0] == results[1], "two runs of the same input give other results"
    return first


def _digests(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
