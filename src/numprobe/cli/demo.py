"""``numprobe demo``: a skill on a generated dump, end to end, offline."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from numprobe.cli import common
from numprobe.record.errors import NumprobeError

MARK = ".numprobe-demo"


def demo(
    skill: str = typer.Argument("nan", help="nan or rl"),
    out: Path = typer.Option(
        None, "-o", "--out", help="Folder for dump and report (default demo, demo_rl).", metavar="DIR"
    ),
    jobs: int = common.Jobs,
    lang: str = common.Lang,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Make a dump whose fault is known, and find it: nan, a 512-rank job whose loss is NaN; rl, an engine and a trainer that
    do not agree. Exit code as the skill: 1."""
    language = common.language(lang)
    if skill == "nan":
        code = _nan(out or Path("demo"), jobs, language, quiet)
    elif skill == "rl":
        code = _rl(out or Path("demo_rl"), language, quiet)
    else:
        raise NumprobeError("E-USE-009", "demo {skill}: unknown", do="write numprobe demo nan or rl", skill=skill)
    raise typer.Exit(code)


def _nan(out: Path, jobs: int, lang: str, quiet: bool) -> int:
    from numprobe.diagnose.nan_overflow.command import run_command
    from numprobe.diagnose.nan_overflow.skill import NanOptions
    from numprobe.synth.nan import CI, simulate

    dump = out / "first_step_nan"
    words = {
        "en": f"simulating a job of {CI.world} ranks whose loss is NaN at step 0 -> {dump}",
        "zh": f"模拟 {CI.world} 张卡的训练任务，第 0 步 loss 为 NaN -> {dump}",
    }
    with _new_folder(out):
        _tell(words[lang])
        simulate("grouped_matmul_nan", dump, seed=0, size=CI)
    _tell(f"$ numprobe nan {dump} -o {out / 'report'}")
    return run_command(
        dump,
        NanOptions(jobs=jobs),
        out=out / "report",
        lang=lang,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )


def _rl(out: Path, lang: str, quiet: bool) -> int:
    from numprobe.diagnose.rl_consistency.command import run_command
    from numprobe.diagnose.rl_consistency.skill import RlOptions
    from numprobe.synth.rl import simulate

    words = {
        "en": f"computing a decoder of 8 layers as Megatron (2 ranks) and as vLLM; one of them is wrong -> {out}",
        "zh": f"分别按 Megatron（2 卡）和 vLLM 的方式计算一个 8 层模型，其中一侧有错 -> {out}",
    }
    with _new_folder(out):
        _tell(words[lang])
        simulate("activation_tp2", out, seed=8, layers=8)
    sides = [out / side / "step0" for side in ("train", "rollout")]
    _tell(f"$ numprobe rl {sides[0]} {sides[1]} -o {out / 'report'}")
    return run_command(
        sides[0],
        sides[1],
        RlOptions(),
        out=out / "report",
        lang=lang,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )


def _tell(text: str) -> None:
    from numprobe.report.terminal import printable

    print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """The demo's own folder, made anew; nothing of somebody else's is deleted."""
    from numprobe.report.run_folder import writing

    with writing(out):
        if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
            raise NumprobeError(
                "E-OUT-001", "the demo folder holds something else", where=str(out), do="choose another -o"
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / MARK).touch()
        yield
