"""What all commands share: options, errors, exit codes, where text goes."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer

from numprobe.record.errors import NumprobeError

if TYPE_CHECKING:
    from numprobe.report.terminal import Style

LANGUAGES = ("zh", "en")
INTERRUPTED = 130
NO_ROOM = {getattr(errno, name, 0) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO")}

Out = typer.Option(None, "-o", "--out", help="Output folder; default ./numprobe_out/<skill>-<UTC time>.", metavar="DIR")
Json = typer.Option(False, "--json", help="One JSON object on stdout, everything else on stderr.")
Step = typer.Option(None, "--step", help="Steps to read, as in 0,3,8-15.", metavar="RANGE")
Rank = typer.Option(None, "--rank", help="Ranks to read, as in 0,3,8-15.", metavar="RANGE")
Jobs = typer.Option(None, "--jobs", help="Worker processes; default one a core, up to 8.", min=1, metavar="N")
Lang = typer.Option(None, "--lang", help="zh or en; default from the locale.", metavar="LANG")
AnswerLang = typer.Option(None, "--lang", help="zh or en; default that of the question.", metavar="LANG")
Quiet = typer.Option(False, "--quiet", help="No progress, no colour.")
Debug = typer.Option(False, "--debug", help="Show a traceback where the tool itself fails.")


def _known_progress(value: str) -> str:
    one_of("--progress", value, ("auto", "json"))
    return value


Progress = typer.Option(
    "auto",
    "--progress",
    help="auto or json (stderr holds JSON lines only).",
    metavar="HOW",
    callback=_known_progress,
)
_answering: list[str] = []  # the language of a question
_received: list[int] = []  # signals other than Ctrl-C that ended the run


def end_on_signals() -> None:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: what was done is kept and marked, no process stays behind."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)


def ended() -> bool:
    """Is it a signal to end that was raised as KeyboardInterrupt, not Ctrl-C? What goes on after Ctrl-C ends then."""
    return bool(_received)


def _end(number: int, frame: object) -> None:
    _received.append(number)
    for descriptor in (1, 2):  # a terminal that was closed cannot be told anything
        try:
            os.write(descriptor, b"")
        except OSError:
            _to_nowhere(descriptor)
    raise KeyboardInterrupt


def guarded(app: Callable[..., Any]) -> int:
    """Run a command line; errors become one message and an exit code."""
    _answering.clear()
    _prepare_streams()
    code = _code_of(app)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone
        _to_nowhere(sys.stdout.fileno())
    except OSError as error:
        return _no_output(error)
    return code


def _code_of(app: Callable[..., Any]) -> int:
    try:
        code = app(prog_name="numprobe", standalone_mode=False)
        if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            return _interrupted()
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
        return _interrupted()
    except BrokenPipeError:  # the reader of our output has gone
        _to_nowhere(sys.stdout.fileno())
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            return _no_output(error)  # what is written to files has errors of its own
        tell_failure(error)
        return 4


def tell_failure(error: Exception) -> None:
    """An error that is numprobe's own: one line, with ``--debug`` the traceback."""
    if "--debug" in sys.argv:
        traceback.print_exception(error)
    else:
        _tell("error", f"numprobe failed: {type(error).__name__}: {error} (--debug shows where)")


def _prepare_streams() -> None:
    """Give closed streams the null device; let every text through: what a stream cannot encode is escaped."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _to_nowhere(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:  # it was closed, so that it is the lowest free one
        os.set_inheritable(null, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def _no_output(error: OSError) -> int:
    _to_nowhere(sys.stdout.fileno())
    show_error(
        NumprobeError(
            "E-OUT-002",
            "the output cannot be written: {reason}",
            where="stdout",
            do="free space, or send it elsewhere",
            reason=error.strerror or str(error),
        )
    )
    return 2


def _interrupted() -> int:
    from numprobe.report.messages import say

    kept = sys.argv[1:2] in (["nan"], ["inspect"], ["compare"], ["rl"]) and "--no-cache" not in sys.argv
    _tell("interrupted", say(_language_of_errors(), "interrupted.kept" if kept else "interrupted"))
    return 128 + _received[0] if _received else INTERRUPTED


def _tell(kind: str, text: str) -> None:
    """A line on stderr; with ``--progress json`` an object as all the others there."""
    if _written("--progress", ("json",)):
        from numprobe.report.progress import json_line

        print(json_line({"kind": kind, "what": text}, sys.stderr), file=sys.stderr)
    else:
        mark = "" if kind == "error" else f"{style(sys.stderr).symbol(kind)} "
        print(f"{mark}{text}", file=sys.stderr)


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
    """``--lang``, else NUMPROBE_LANG, else the settings, else from the locale.

    Raises:
        NumprobeError: as :func:`chosen_language`.
    """
    from numprobe.report.language import default_language

    return chosen_language(chosen) or default_language(os.environ, sys.stderr.encoding or "utf-8")


def chosen_language(chosen: str | None) -> str | None:
    """``--lang``, else NUMPROBE_LANG, else the settings; None where none of them says it: a question has one of its own.

    Raises:
        NumprobeError: E-USE-006 another language, E-SET-004 in NUMPROBE_LANG.
    """
    from numprobe.agent.config.paths import has_config

    if chosen is not None:
        if chosen not in LANGUAGES:
            raise NumprobeError("E-USE-006", "--lang {lang}: unknown language", do="write zh or en", lang=chosen)
        return chosen
    if os.environ.get("NUMPROBE_LANG") or has_config():
        from numprobe.agent.config.settings import configured_language

        return configured_language()
    return None


def errors_in(lang: str) -> None:
    """Tell errors in the language of the question that is answered, from now on."""
    _answering[:] = [lang]


def _language_of_errors() -> str:
    """The same, where nothing may fail any more."""
    from numprobe.report.language import default_language

    if _answering:
        return _answering[0]
    try:
        return language(_written("--lang", LANGUAGES))
    except NumprobeError:
        return default_language(os.environ, sys.stderr.encoding or "utf-8")


def style(stream: Any, *, quiet: bool = False) -> Style:
    from numprobe.report.terminal import style_of

    return style_of(stream, os.environ, quiet=quiet)


def show_error(error: NumprobeError, symbol: str = "error") -> None:
    from numprobe.report.errors import error_object, render_error

    lang = _language_of_errors()
    if _written("--progress", ("json",)):
        from numprobe.report.progress import json_line

        told = {**error_object(error, lang), **({"kind": symbol} if symbol != "error" else {})}
        print(json_line(told, sys.stderr), file=sys.stderr)
    else:
        print(render_error(error, lang, style(sys.stderr), symbol), file=sys.stderr)


def _written(option: str, allowed: Sequence[str]) -> str | None:
    """What the command line says for an option, also where it could not be parsed; None for anything else."""
    words = [w for a in sys.argv for w in (a.split("=", 1) if a.startswith(f"{option}=") else [a])]
    return next((a for o, a in pairwise(words) if o == option and a in allowed), None)


def ranges(text: str | None, option: str) -> frozenset[int] | None:
    from numprobe.record.ranges import parse_ranges

    return None if text is None else parse_ranges(text, option)


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """Fail on a value that an option does not know.

    Raises:
        NumprobeError: E-USE-007.
    """
    if value not in allowed:
        raise NumprobeError(
            "E-USE-007",
            "{option} {value}: unknown",
            do="write {allowed}",
            option=option,
            value=value,
            allowed=" or ".join(allowed),
        )
