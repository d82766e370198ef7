"""``numprobe demo``: a skill on a generated dump, end to end, offline."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import typer

from numprobe.cli import common
from numprobe.record.errors import NumprobeError

MARK = ".numprobe-demo"


def demo(
    skill: str = typer.Argument("nan", help="nan"),
    out: Path = typer.Option(Path("demo"), "-o", "--out", help="Folder for the dump and the report.", metavar="DIR"),
    jobs: int = common.Jobs,
    lang: str = common.Lang,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Make the dump of a 512-rank job whose loss is NaN at its first step, and find the cause. Exit code as nan: 1."""
    from numprobe.diagnose.nan_overflow.command import run_command
    from numprobe.diagnose.nan_overflow.skill import NanOptions
    from numprobe.report.run_folder import writing
    from numprobe.report.terminal import printable
    from numprobe.synth.nan import CI, simulate

    if skill != "nan":
        raise NumprobeError("E-USE-009", "demo {skill}: unknown", do="write numprobe demo nan", skill=skill)
    language = common.language(lang)
    dump = out / "first_step_nan"
    words = {
        "en": f"simulating a job of {CI.world} ranks whose loss is NaN at step 0 -> {dump}",
        "zh": f"模拟 {CI.world} 张卡的训练任务，第 0 步 loss 为 NaN -> {dump}",
    }
    with writing(out):
        if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
            raise NumprobeError(
                "E-OUT-001", "the demo folder holds something else", where=str(out), do="choose another -o"
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / MARK).touch()
        print(printable(words[language]), file=sys.stderr, flush=True)
        simulate("grouped_matmul_nan", dump, seed=0, size=CI)
    print(printable(f"$ numprobe nan {dump} -o {out / 'report'}"), file=sys.stderr, flush=True)
    code = run_command(
        dump,
        NanOptions(jobs=jobs),
        out=out / "report",
        lang=language,
        style_out=common.style(sys.stdout, quiet=quiet),
        style_err=common.style(sys.stderr, quiet=quiet),
        quiet=quiet,
    )
    raise typer.Exit(code)
