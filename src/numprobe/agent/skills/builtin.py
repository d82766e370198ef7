"""numprobe's own skills. The pipelines are imported when one runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from numprobe.agent.skills import results
from numprobe.agent.skills.skill import Done, Input, Options, Pipeline, Screen, Skill
from numprobe.execution.stages import Listener
from numprobe.record.ranges import parse_ranges

Jobs = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Worker processes; default one a core, up to 8.")]


class NanOverflowOptions(Options, frozen=True, forbid_unknown_fields=True):
    exclude: Annotated[tuple[str, ...], Meta(description="Leave out records of this name or prefix.")] = ()
    top: Annotated[int, Meta(ge=1, description="List the first N independent overflow nodes.")] = 1
    jobs: Jobs = None


class RlConsistencyOptions(Options, frozen=True, forbid_unknown_fields=True):
    mapping: Annotated[str, Meta(description="Which modules belong together: a file that numprobe map -o wrote.")] = ""
    as_given: Annotated[bool, Meta(description="TRAIN is the training side, whatever its module names say.")] = False


class CompareOptions(Options, frozen=True, forbid_unknown_fields=True):
    by: Annotated[
        Literal["auto", "statistics", "tensor", "digest"], Meta(description="auto, statistics, tensor or digest.")
    ] = "auto"
    noise: Annotated[str, Meta(description="A second run of the golden program.")] = ""
    jobs: Jobs = None


def _ranges(text: str, option: str) -> frozenset[int] | None:
    return parse_ranges(text, option) if text else None


def _shown(screen: Screen) -> dict[str, Any]:
    """A screen as the commands of the pipelines take it."""
    return {
        "style_out": screen.out,
        "style_err": screen.err,
        "as_json": screen.as_json,
        "progress": screen.progress,
        "quiet": screen.quiet,
    }


def _nan_overflow() -> Pipeline:
    from numprobe.diagnose.nan_overflow.command import run_command, run_to_folder
    from numprobe.diagnose.nan_overflow.messages import CATALOGUE
    from numprobe.diagnose.nan_overflow.page.screen import render_json_line
    from numprobe.diagnose.nan_overflow.skill import STAGES, NanOptions

    def chosen(asked: NanOverflowOptions) -> NanOptions:
        steps, ranks = _ranges(asked.step, "--step"), _ranges(asked.rank, "--rank")
        return NanOptions(steps, ranks, asked.jobs, asked.exclude, asked.top)

    def run(
        inputs: Mapping[str, str], asked: NanOverflowOptions, out: Path | None, lang: str, listener: Listener
    ) -> Done:
        analysis, folder = run_to_folder(inputs["dump"], chosen(asked), out, lang=lang, listener=listener)
        result = json.loads(render_json_line(analysis.result, folder.path.as_posix()))
        return Done(result, folder.path, analysis.result.exit_code)

    def show(inputs: Mapping[str, str], asked: NanOverflowOptions, out: Path | None, lang: str, screen: Screen) -> int:
        return run_command(inputs["dump"], chosen(asked), out=out, lang=lang, **_shown(screen))

    return Pipeline(STAGES, CATALOGUE, run, show)


def _rl_consistency() -> Pipeline:
    from numprobe.diagnose.rl_consistency.command import run_command, run_to_folder
    from numprobe.diagnose.rl_consistency.messages import CATALOGUE
    from numprobe.diagnose.rl_consistency.page.screen import render_json_line
    from numprobe.diagnose.rl_consistency.skill import STAGES, RlOptions

    def chosen(asked: RlConsistencyOptions) -> RlOptions:
        steps, ranks = _ranges(asked.step, "--step"), _ranges(asked.rank, "--rank")
        return RlOptions(steps, ranks, mapping=asked.mapping, as_given=asked.as_given)

    def run(
        inputs: Mapping[str, str], asked: RlConsistencyOptions, out: Path | None, lang: str, listener: Listener
    ) -> Done:
        sides = inputs["train"], inputs["rollout"]
        found, folder = run_to_folder(*sides, chosen(asked), out, lang=lang, listener=listener)
        return Done(json.loads(render_json_line(found, folder.path.as_posix())), folder.path, found.exit_code)

    def show(
        inputs: Mapping[str, str], asked: RlConsistencyOptions, out: Path | None, lang: str, screen: Screen
    ) -> int:
        return run_command(inputs["train"], inputs["rollout"], chosen(asked), out=out, lang=lang, **_shown(screen))

    return Pipeline(STAGES, CATALOGUE, run, show)


def _compare() -> Pipeline:
    from numprobe.compare import run as comparing
    from numprobe.compare.command import Output, run_command, run_to_folder
    from numprobe.compare.messages import CATALOGUE
    from numprobe.compare.page.screen import render_json_line

    def chosen(asked: CompareOptions) -> comparing.CompareOptions:
        steps, ranks = _ranges(asked.step, "--step"), _ranges(asked.rank, "--rank")
        return comparing.CompareOptions(steps, ranks, by=asked.by, noise=asked.noise or None, jobs=asked.jobs)

    def run(inputs: Mapping[str, str], asked: CompareOptions, out: Path | None, lang: str, listener: Listener) -> Done:
        sides = inputs["target"], inputs["golden"]
        comparison, folder = run_to_folder(*sides, chosen(asked), out, lang=lang, listener=listener)
        result = json.loads(render_json_line(comparison.result, folder.path.as_posix()))
        return Done(result, folder.path, comparison.result.exit_code)

    def show(inputs: Mapping[str, str], asked: CompareOptions, out: Path | None, lang: str, screen: Screen) -> int:
        sides = inputs["target"], inputs["golden"]
        return run_command(*sides, chosen(asked), Output(), out=out, lang=lang, **_shown(screen))

    return Pipeline(comparing.STAGES, CATALOGUE, run, show)


BUILTIN = (
    Skill(
        "nan-overflow",
        1,
        (Input("dump", "step folder, rank folder, folder of steps, proc<pid>, or a dump.json"),),
        NanOverflowOptions,
        _nan_overflow,
        results.NanOverflow,
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
        results.RlConsistency,
    ),
    Skill(
        "compare",
        1,
        (Input("target", "the run under suspicion"), Input("golden", "the run that is trusted")),
        CompareOptions,
        _compare,
        results.Compare,
    ),
)
