"""Finds where the numbers of a model went wrong, and why.

::

    import numprobe

    asked = numprobe.ask("loss is NaN, dump in dump/step0")
    print(asked.answer.to_markdown())
    print(numprobe.follow(asked.run, "which ranks are victims").answer.to_markdown())

The skills themselves: :mod:`numprobe.diagnose.nan_overflow`, :mod:`numprobe.diagnose.rl_consistency`, :mod:`numprobe.compare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numprobe._version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from numprobe.agent.ask import Asked


def ask(sentence: str, paths: Sequence[str] = (), *, lang: str | None = None, out: str | Path | None = None) -> Asked:
    """Choose the skill for a sentence in English or Chinese, run it, answer: as ``numprobe ask`` does, offline.

    ``paths`` are those that the sentence does not hold, ``lang`` (zh, en) the language of the answer where it is not that of
    the sentence, ``out`` the run's folder (default a new one below ``./numprobe_out``). What was not given is in ``missing``.

    Raises:
        NumprobeError: a path is not there, or what the skill raises.
    """
    from pathlib import Path

    from numprobe.agent.ask import Silent
    from numprobe.agent.ask import ask as answer
    from numprobe.agent.sentence import read_sentence

    given = [paths] if isinstance(paths, (str, Path)) else paths
    read = read_sentence(sentence, [str(p) for p in given])
    return answer(read, Silent(), lang=lang, out=Path(out) if out else None)


def follow(run: str | Path, question: str, *, lang: str | None = None, out: str | Path | None = None) -> Asked:
    """Answer a question on a run from what it wrote: as ``numprobe follow`` does, offline. ``out`` is the folder of a new run,
    where the question asks for one.

    Raises:
        NumprobeError: there is no finished run at ``run``.
    """
    from pathlib import Path

    from numprobe.agent.ask import Silent
    from numprobe.agent.follow.answering import follow as answer
    from numprobe.agent.sentence import read_sentence

    return answer(run, read_sentence(question), Silent(), lang=lang, out=Path(out) if out else None)


__all__ = ["__version__", "ask", "follow"]
