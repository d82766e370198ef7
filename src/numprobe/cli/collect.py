"""``numprobe collect check SCRIPT [ARGS...]``: does the recorder leave a script's numbers alone?"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from numprobe.cli import common
from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.collect.selfcheck.runs import Difference, Result
    from numprobe.report.messages import Catalogue

EXIT_CODES = {"unchanged": 0, "changed": 1, "inconclusive": 3}
_NAMED = 3  # parameters that a difference names
# what follows the script belongs to it
CONTEXT = {"allow_interspersed_args": False}


def check(
    script: str = typer.Argument(..., help="A Python script that trains, or a program such as torchrun."),
    arguments: list[str] = typer.Argument(None, help="Its arguments; options of check come before SCRIPT."),
    config: Path = typer.Option(None, "--config", help="config.json of the recorder.", metavar="FILE"),
    level: str = typer.Option(None, "--level", help="L0, L1 or mix; default mix.", metavar="LEVEL"),
    steps: int = typer.Option(None, "--steps", help="End each run after so many optimizer steps.", min=1, metavar="N"),
    out: Path = typer.Option(None, "-o", "--out", help="Keep dump, journals and outputs there.", metavar="DIR"),
    as_json: bool = common.Json,
    lang: str = common.Lang,
    quiet: bool = common.Quiet,
    debug: bool = common.Debug,
) -> None:
    """Run a script twice without the recorder and once with it: are all losses and parameters bit-identical?"""
    from numprobe.collect.pytorch.settings import load_settings
    from numprobe.collect.selfcheck.runs import check as run
    from numprobe.collect.selfcheck.runs import command_of

    settings = {"level": level} if level or config is None else {}
    settings = {key: value or "mix" for key, value in settings.items()}
    load_settings(config, **settings)
    if config is not None:
        settings["config_path"] = str(config.resolve())
    command = command_of(script, arguments or [])
    language, words = common.language(lang), _catalogue()

    def tell(name: str) -> None:
        if not quiet:
            print(words.say(language, f"check.run.{name}"), file=sys.stderr, flush=True)

    with _folder(out) as folder:
        result = run(command, folder, settings=settings, steps=steps, tell=tell)
    if as_json:
        print(json.dumps({**asdict(result), "out": None if out is None else str(out)}))
    else:
        print(render(result, language, words, out))
    raise typer.Exit(EXIT_CODES[result.verdict])


def render(result: Result, lang: str, words: Catalogue, out: Path | None) -> str:
    """The verdict in a few lines."""
    from numprobe.report.terminal import printable

    several = result.processes if result.processes > 1 else None
    lines = [words.say(lang, f"check.{result.reason}", steps=result.steps, losses=result.losses, several=several)]
    if result.first is not None:
        lines.append(f"  {words.say(lang, 'check.first')}  {_where(result.first, lang, words)}")
    if result.reason in ("random", "nothing"):
        lines.append(f"  {words.say(lang, f'check.hint.{result.reason}')}")
    if result.said:
        lines += [f"  {line}" for line in result.said.splitlines()]
    if out is not None:
        lines.append(f"  {words.say(lang, 'check.kept')}  {out}")
    return "\n".join(printable(line) for line in lines)


def _where(first: Difference, lang: str, words: Catalogue) -> str:
    more = len(first.parameters) - _NAMED
    return words.say(
        lang,
        f"check.at.{first.kind}",
        process=first.process,
        step=first.step,
        number=first.step + 1,
        parameters=words.say(lang, "list.comma").join(first.parameters[:_NAMED]),
        more=more if more > 0 else None,
    )


def _catalogue() -> Catalogue:
    from numprobe.collect import selfcheck
    from numprobe.report.messages import GENERIC, Catalogue

    return Catalogue((Path(selfcheck.__file__).parent / "messages", *GENERIC.folders))


def _folder(out: Path | None) -> nullcontext[Path] | _Temporary:
    if out is None:
        return _Temporary()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NumprobeError("E-OUT-001", "the output folder is not empty", where=str(out), do="choose another -o")
    return nullcontext(out)


class _Temporary:
    """A folder that is gone afterwards."""

    def __enter__(self) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="numprobe-check-", ignore_cleanup_errors=True)
        return Path(self._folder.name)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
