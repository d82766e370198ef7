"""What all commands share: options, errors, exit codes, where text goes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer

from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.report.terminal import Style

LANGUAGES = ("zh", "en")

Out = typer.Option(None, "-o", "--out", help="Output folder; default ./numprobe_out/<skill>-<UTC time>.", metavar="DIR")
Json = typer.Option(False, "--json", help="One JSON object on stdout, everything else on stderr.")
Step = typer.Option(None, "--step", help="Steps to read, as in 0,3,8-15.", metavar="RANGE")
Rank = typer.Option(None, "--rank", help="Ranks to read, as in 0,3,8-15.", metavar="RANGE")
Jobs = typer.Option(None, "--jobs", help="Worker processes; default one a core, up to 8.", min=1, metavar="N")
Lang = typer.Option(None, "--lang", help="zh or en; default from the locale.", metavar="LANG")
Quiet = typer.Option(False, "--quiet", help="No progress, no colour.")
Debug = typer.Option(False, "--debug", help="Show a traceback where the tool itself fails.")


def guarded(app: Callable[..., Any]) -> int:
    """Run a command line; errors become one message and an exit code."""
    try:
        code = app(prog_name="numprobe", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return bad_usage(error)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer's way to end then says 1: a problem in the data
            return 0
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except NumprobeError as error:
        show_error(error)
        return 4 if error.code.startswith("E-EXE") else 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        else:
            print(f"numprobe failed: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 4


def bad_usage(error: Any) -> int:
    """An unknown option, a missing argument, a value of the wrong kind; without any argument, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "numprobe"
    what = " ".join(error.format_message().split()).rstrip(".")
    show_error(
        NumprobeError(
            "E-USE-001",
            "{what_typer_says}",
            do="{command} -h lists what it takes",
            what_typer_says=what,
            command=command,
        )
    )
    return 2


def language(chosen: str | None) -> str:
    """``--lang``, else from the locale.

    Raises:
        NumprobeError: E-USE-006 another language.
    """
    from numprobe.report.language import default_language

    if chosen is not None:
        if chosen not in LANGUAGES:
            raise NumprobeError("E-USE-006", "--lang {lang}: unknown language", do="write zh or en", lang=chosen)
        return chosen
    return default_language(os.environ, sys.stderr.encoding or "utf-8")


def style(stream: Any, *, quiet: bool = False) -> Style:
    from numprobe.report.terminal import style_of

    return style_of(stream, os.environ, quiet=quiet)


def show_error(error: NumprobeError) -> None:
    from numprobe.report.errors import render_error

    words = [w for a in sys.argv for w in (a.split("=", 1) if a.startswith("--lang=") else [a])]
    lang = next((a for o, a in pairwise(words) if o == "--lang" and a in LANGUAGES), None)
    print(render_error(error, language(lang), style(sys.stderr)), file=sys.stderr)


def ranges(text: str | None, option: str) -> frozenset[int] | None:
    from numprobe.record.ranges import parse_ranges

    return None if text is None else parse_ranges(text, option)
