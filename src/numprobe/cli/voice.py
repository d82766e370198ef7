"""Showing what the agent does: stages and what was understood on stderr, answers and a model's words on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from numprobe.cli import common
from numprobe.record.errors import NumprobeError
from numprobe.report.run_folder import OUT

if TYPE_CHECKING:
    from numprobe.agent.ask import Asked
    from numprobe.agent.llm.brain import Brain, Listening
    from numprobe.agent.skills.skill import Pipeline
    from numprobe.cli.spoken import Spoken
    from numprobe.execution.stages import Listener


@dataclass(frozen=True)
class Terminal:
    """Shows what was understood and the stages on stderr."""

    progress: str
    quiet: bool

    def chosen(self, line: str) -> None:
        from numprobe.report.terminal import printable, wrap

        if self.quiet or self.progress == "json":
            return
        width = common.style(sys.stderr).width
        for part in line.split("\n"):
            print("\n".join(wrap(printable(part), width, "", "  ")), file=sys.stderr)
        print(file=sys.stderr, flush=True)

    @contextmanager
    def stages(self, pipeline: Pipeline, lang: str) -> Iterator[Listener]:
        from numprobe.report.progress import progress_display

        style = common.style(sys.stderr, quiet=self.quiet)
        display = progress_display(
            self.progress, sys.stderr, pipeline.stages, pipeline.catalogue, lang, style, quiet=self.quiet
        )
        try:
            yield display
        finally:
            display.close()
            if style.live:
                print(file=sys.stderr)  # the answer stands apart


def brain_of(
    llm: str | None,
    terminal: Terminal,
    lang: str,
    roots: list[Path],
    *,
    show_sent: bool = False,
    folder: Path = OUT,
    servers: bool = False,
) -> Brain | None:
    """The model that ``--llm`` or the settings name, None where none is wanted; with ``servers`` it gets their allowed tools.

    One of the settings that cannot be had costs nothing but its words: a warning.

    Raises:
        NumprobeError: E-SET-..., E-LLM-001: the one that ``--llm`` names cannot be had.
    """
    from numprobe.agent.config.settings import load_settings

    settings = load_settings({"default_llm": llm})
    found = settings.llm(llm or "")
    if found is None:
        return None
    from numprobe.agent.llm.brain import Brain
    from numprobe.agent.tools import Toolbox

    try:
        mark = "⚠" if common.style(sys.stdout).unicode else "(?)"
        toolbox = Toolbox(terminal, folder, lang, [folder, *roots])
        return Brain(*found, toolbox, _sent if show_sent else None, mark, settings.config.mcp if servers else {})
    except NumprobeError as error:
        if llm not in (None, "auto"):
            raise
        common.show_error(error, symbol="warning")
        return None


def _sent(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Voice:
    """Shows answers in one language, and what a language model says to them where there is one."""

    brain: Brain | None
    lang: str
    as_json: bool
    terminal: Terminal
    hints: bool = True  # how to ask on: a conversation needs none

    def show(self, asked: Asked, question: str, paths: Sequence[str] = ()) -> Asked:
        """Print it; ``paths`` are those of the question. What is returned has the model's words, and a run that it made."""
        from numprobe.agent.ask import worded

        brain = self.brain
        if brain is None:
            self._print(asked)
            return asked
        settled = asked.run is not None or asked.answer.known
        if settled and not self.as_json:
            self._print(asked)
        with self._listening(brain) as on:
            asked = worded(asked, question, brain, on, paths)
        if asked.warning is not None:
            common.show_error(asked.warning, symbol="warning")
        if self.as_json or not settled:
            self._print(asked)
        if asked.said is not None and not self.as_json:
            self._footnote(asked, brain)
        return asked

    @contextmanager
    def _listening(self, brain: Brain) -> Iterator[Listening | None]:
        """A terminal sees the model speak; what is not supported is named below then, and marked in the text elsewhere."""
        from numprobe.agent.llm.brain import Listening
        from numprobe.agent.messages import say
        from numprobe.report.progress import json_line
        from numprobe.report.terminal import printable

        if self.as_json:
            yield None
            return
        spoken: Spoken | None = None

        def text(piece: str) -> None:
            nonlocal spoken
            if spoken is None:
                from numprobe.cli.spoken import Spoken

                self._head(brain)
                spoken = Spoken(common.style(sys.stdout))
            spoken.say(piece)

        def tool(name: str, arguments: str) -> None:
            if spoken is not None:
                spoken.stop()
            if self.terminal.progress == "json":
                line = json_line({"kind": "tool", "tool": name, "arguments": arguments}, sys.stderr)
            else:
                line = printable(f"{say(self.lang, 'llm.uses', tool=name)} {arguments}")
            print(line, file=sys.stderr, flush=True)

        try:
            yield Listening(text if common.style(sys.stdout).live else lambda piece: None, tool)
        finally:
            if spoken is not None:
                spoken.stop()

    def _head(self, brain: Brain) -> None:
        from numprobe.agent.messages import say

        print(f"\n{common.style(sys.stdout).paint(say(self.lang, 'llm.says', alias=brain.alias), 'strong')}")

    def _footnote(self, asked: Asked, brain: Brain) -> None:
        """The model's words, what in them is not supported, tokens and cost."""
        from numprobe.agent.messages import say
        from numprobe.report.terminal import printable, wrap

        said = asked.said
        assert said is not None
        style = common.style(sys.stdout)
        if not style.live:
            self._head(brain)
            self._words(said.text)
        if said.cut:
            print(f"\n{style.symbol('warning')} {say(self.lang, 'llm.cut', reason=printable(said.cut))}")
        if said.unsupported:
            shown = [printable(what) for what in said.unsupported[:8]]
            text = say(self.lang, "llm.unsupported", mark=brain.mark, what=shown)
            print("\n" + "\n".join(wrap(text, style.width, f"{style.symbol('warning')} ", "  ")))
        if not said.input_tokens and not said.output_tokens:
            return  # a server that does not count: no figure is better than a wrong one
        cost = f"{said.cost:.4f}" if said.cost is not None else None
        used = say(self.lang, "llm.used", sent=said.input_tokens, received=said.output_tokens, cost=cost)
        print(f"  {used}", file=sys.stderr)

    def _words(self, text: str) -> None:
        """A model's words, all at once: drawn on a terminal, Markdown as it came elsewhere."""
        from numprobe.report.terminal import printable

        style = common.style(sys.stdout)
        if style.width is None:
            print("\n".join(map(printable, text.splitlines())))
            return
        from numprobe.cli.spoken import console_of, drawn

        console_of(style).print(drawn(text))

    def _print(self, asked: Asked) -> None:
        from numprobe.agent.messages import say
        from numprobe.report.json_text import json_text
        from numprobe.report.language import is_utf8
        from numprobe.report.running import print_conclusion
        from numprobe.report.terminal import printable

        if self.as_json:
            said = asked.said
            content = {
                "skill": asked.skill,
                "answer": asked.answer.to_markdown(),
                "result": asked.result,
                "missing": asked.missing,
                "citations": [{"mark": c.mark, "where": c.where, "figures": c.figures} for c in asked.answer.cites],
                "run": asked.run.as_posix() if asked.run else None,
                "words": said.text if said else None,
                "unsupported": said.unsupported if said else [],
            }
            print_conclusion(json_text(content, ascii_only=not is_utf8(sys.stdout.encoding)))
            return
        text = asked.answer.to_terminal(common.style(sys.stdout))
        if self.hints and asked.run is not None and asked.result is not None:
            from numprobe.agent.follow.reply import example
            from numprobe.agent.runs import load_run

            folder = printable(asked.run.as_posix())
            question = example(load_run(asked.run), self.lang)
            text += f'\n\n{say(self.lang, "ask.on")}\n  numprobe follow {folder} "{question}"'
            text += f"\n{say(self.lang, 'ask.report')}  {folder}/report.html"
        print_conclusion(text)
