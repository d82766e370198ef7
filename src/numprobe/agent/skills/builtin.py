"""numprobe's own skills. The pipelines are imported when one runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from numprobe.agent.skills.skill import Done, Input, Options, Pipeline, Skill
from numprobe.execution.stages import Listener
from numprobe.record.ranges import parse_ranges


class NanOverflowOptions(Options, frozen=True, forbid_unknown_fields=True):
    """``exclude``: names or prefixes of records to leave out; ``top``: how many independent overflow nodes are listed."""

    exclude: tuple[str, ...] = ()
    top: int = 1
    jobs: int | None = None


class RlConsistencyOptions(Options, frozen=True, forbid_unknown_fields=True):
    """``mapping``: a file that says which modules belong together, as ``numprobe map -o`` writes it."""

    mapping: str = ""


class CompareOptions(Options, frozen=True, forbid_unknown_fields=True):
    """``by``: auto, statistics, tensor or digest; ``noise``: a second run of the golden program."""

    by: str = "auto"
    noise: str = ""
    jobs: int | None = None


def _ranges(text: str, option: str) -> frozenset[int] | None:
    return parse_ranges(text, option) if text else None


def _nan_overflow() -> Pipeline:
    from numprobe.diagnose.nan_overflow.command import run_to_folder
    from numprobe.diagnose.nan_overflow.messages import CATALOGUE
    from numprobe.diagnose.nan_overflow.page.screen import render_json_line
    from numprobe.diagnose.nan_overflow.skill import STAGES, NanOptions

    def run(
        inputs: Mapping[str, str], asked: NanOverflowOptions, out: Path | None, lang: str, listener: Listener
    ) -> Done:
        steps, ranks = _ranges(asked.step, "step"), _ranges(asked.rank, "rank")
        chosen = NanOptions(steps, ranks, asked.jobs, asked.exclude, asked.top)
        analysis, folder = run_to_folder(inputs["dump"], chosen, out, lang=lang, listener=listener)
        result = json.loads(render_json_line(analysis.result, folder.path.as_posix()))
        return Done(result, folder.path, analysis.result.exit_code)

    return Pipeline(STAGES, CATALOGUE, run)


def _rl_consistency() -> Pipeline:
    from numprobe.diagnose.rl_consistency.command import run_to_folder
    from numprobe.diagnose.rl_consistency.messages import CATALOGUE
    from numprobe.diagnose.rl_consistency.page.screen import render_json_line
    from numprobe.diagnose.rl_consistency.skill import STAGES, RlOptions

    def run(
        inputs: Mapping[str, str], asked: RlConsistencyOptions, out: Path | None, lang: str, listener: Listener
    ) -> Done:
        steps, ranks = _ranges(asked.step, "step"), _ranges(asked.rank, "rank")
        chosen = RlOptions(steps, ranks, mapping=asked.mapping)
        found, folder = run_to_folder(inputs["train"], inputs["rollout"], chosen, out, lang=lang, listener=listener)
        return Done(json.loads(render_json_line(found, folder.path.as_posix())), folder.path, found.exit_code)

    return Pipeline(STAGES, CATALOGUE, run)


def _compare() -> Pipeline:
    from numprobe.compare import run as comparing
    from numprobe.compare.command import run_to_folder
    from numprobe.compare.messages import CATALOGUE
    from numprobe.compare.page.screen import render_json_line

    def run(inputs: Mapping[str, str], asked: CompareOptions, out: Path | None, lang: str, listener: Listener) -> Done:
        steps, ranks = _ranges(asked.step, "step"), _ranges(asked.rank, "rank")
        chosen = comparing.CompareOptions(steps, ranks, by=asked.by, noise=asked.noise or None, jobs=asked.jobs)
        comparison, folder = run_to_folder(
            inputs["target"], inputs["golden"], chosen, out, lang=lang, listener=listener
        )
        result = json.loads(render_json_line(comparison.result, folder.path.as_posix()))
        return Done(result, folder.path, comparison.result.exit_code)

    return Pipeline(comparing.STAGES, CATALOGUE, run)


BUILTIN = (
    Skill(
        "nan-overflow",
        1,
        (Input("dump", "step folder, rank folder, folder of steps, proc<pid>, or a dump.json"),),
        NanOverflowOptions,
        _nan_overflow,
    ),
    Skill(
        "rl-consistency",
        1,
        (
            Input("train", "dump of the training side: Megatron, FSDP or Hugging Face modules"),
            Input("rollout", "dump of the rollout side: vLLM or SGLang modules"),
        ),
        RlConsistencyOptions,
        _rl_consistency,
    ),
    Skill(
        "compare",
        1,
        (Input("target", "the run under suspicion"), Input("golden", "the run that is trusted")),
        CompareOptions,
        _compare,
    ),
)
