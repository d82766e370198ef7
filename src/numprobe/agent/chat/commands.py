"""The slash commands of a conversation. Each answers; none of them starts anything outside of numprobe."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from numprobe.agent.answer import Answer, Lines, Table
from numprobe.agent.ask import Asked
from numprobe.agent.chat.conversation import Conversation
from numprobe.agent.chat.sessions import Store, Turn, as_markdown
from numprobe.agent.follow.names import nearest
from numprobe.agent.messages import CATALOGUE, say
from numprobe.agent.runs import load_run
from numprobe.agent.sentence import there
from numprobe.record.errors import NumprobeError

NAMES = (
    "help",
    "skills",
    "model",
    "runs",
    "run",
    "open",
    "exclude",
    "mapping",
    "lang",
    "save",
    "sessions",
    "resume",
    "clear",
    "exit",
)


ENDS = ("exit", "quit", "退出", ":q")  # words that mean /exit


def is_command(line: str) -> bool:
    """``/help`` and ``/run 2`` are, ``/data/step0`` and ``/data/step0 has a NaN`` are not."""
    word = line.split(maxsplit=1)[0]
    return line.startswith("/") and "/" not in word[1:] and (word[1:] in NAMES or not there(word))


@dataclass
class Shell:
    """A conversation with its session. ``choose_model`` switches the model by alias and says which one is on; ``store`` None:
    nothing is kept. ``ended`` is set by ``/exit``, ``lost`` where the last turn could not be kept."""

    conversation: Conversation
    lang: str
    store: Store | None
    choose_model: Callable[[str], str]
    session: str = ""
    turns: list[Turn] | None = None
    ended: bool = False
    lost: bool = False

    def command(self, line: str) -> Answer | Asked:
        """Run ``/name arguments``.

        Raises:
            NumprobeError: E-AGT-010 no such command, or what the command raises.
        """
        try:
            name, *arguments = shlex.split(line[1:]) or ["help"]
        except ValueError:
            name, *arguments = line[1:].split() or ["help"]
        if name not in NAMES:
            close = nearest([name], NAMES)
            raise NumprobeError(
                "E-AGT-010",
                "no command /{name}",
                do="did you mean /{close}? /help lists them" if close else "/help lists them",
                name=name,
                close=close[0] if close else "",
            )
        found: Answer | Asked = getattr(self, f"_{name}")(arguments)
        return found

    def record(self, question: str, asked: Asked) -> None:
        """Keep a turn. One that cannot be kept is told once; the next ones are tried again.

        Raises:
            NumprobeError: E-SES-001, for the first of several.
        """
        run = str(asked.run.resolve()) if asked.run else ""
        turn = Turn(question, asked.answer.to_markdown(), asked.said.text if asked.said else "", asked.skill, run)
        self.turns = [*(self.turns or []), turn]
        if self.store is None:
            return
        now = self.conversation.run
        try:
            if not self.session:
                self.session = self.store.begin(str(Path.cwd()))
            self.store.add(self.session, turn, run=str(now.resolve()) if now else "", pending=self.conversation.pending)
            self.lost = False
        except NumprobeError:
            told, self.lost = self.lost, True
            if not told:
                raise

    def _says(self, key: str, **values: object) -> Answer:
        answer = Answer()
        answer.say(CATALOGUE.pieces(self.lang, key, values))
        return answer

    def _help(self, arguments: list[str]) -> Answer:
        answer = self._says("chat.help")
        rows = [[f"/{name}", say(self.lang, f"chat.help.{name}")] for name in NAMES]
        answer.blocks.append(Table([say(self.lang, "head.command"), say(self.lang, "head.what")], rows))
        return answer

    def _skills(self, arguments: list[str]) -> Answer:
        from numprobe.agent.skills.registry import all_skills

        rows = [
            [found.name, found.origin, " ".join(found.about(self.lang).split())]
            for found in all_skills()
            if not found.skipped
        ]
        answer = Answer()
        heads = [say(self.lang, f"head.{name}") for name in ("skill", "from", "what")]
        answer.blocks.append(Table(heads, [[n, o, d[:100] + ("..." if len(d) > 100 else "")] for n, o, d in rows]))
        return answer

    def _model(self, arguments: list[str]) -> Answer:
        now = self.choose_model(arguments[0] if arguments else "")
        return self._says("chat.model" if now else "chat.model.none", alias=now)

    def _runs(self, arguments: list[str]) -> Answer:
        runs = self.conversation.runs
        if not runs:
            return self._says("chat.runs.none")
        rows = []
        for n, folder in enumerate(runs, 1):
            try:
                verdict = str(load_run(folder).result.verdict)
            except NumprobeError as error:
                verdict = error.code
            rows.append([str(n), "*" if folder == self.conversation.run else "", folder.as_posix(), verdict])
        answer = Answer()
        answer.blocks.append(Table(["", "", say(self.lang, "head.run"), say(self.lang, "head.verdict")], rows, (0,)))
        return answer

    def _run(self, arguments: list[str]) -> Answer:
        """Choose the run that questions are about: its number in ``/runs``, or its folder."""
        runs = self.conversation.runs
        if not arguments:
            raise NumprobeError(
                "E-AGT-010", "/run takes the number or the folder of a run", do="/runs lists them; /run 1"
            )
        wanted = arguments[0]
        numbers = {str(n): one for n, one in enumerate(runs, 1)}
        folder = numbers.get(wanted) or Path(wanted)
        run = load_run(folder)
        self.conversation.take_up(run.folder)
        return self._says("chat.run", folder=run.folder.as_posix(), skill=run.skill, verdict=str(run.result.verdict))

    def _open(self, arguments: list[str]) -> Answer:
        """Where the report is; a browser is the user's own."""
        run = self._some_run()
        answer = Answer()
        report = (run / "report.html").resolve()
        answer.blocks.append(Lines([report.as_posix(), report.as_uri()], say(self.lang, "ask.report")))
        return answer

    def _exclude(self, arguments: list[str]) -> Asked:
        if not arguments:
            raise NumprobeError(
                "E-AGT-010", "/exclude takes the name of a record", do="/exclude NPU.npu_grouped_matmul.3"
            )
        return self.conversation.correct(self.lang, exclude=tuple(arguments))

    def _mapping(self, arguments: list[str]) -> Asked:
        if len(arguments) != 1:
            raise NumprobeError(
                "E-AGT-010",
                "/mapping takes a file",
                do="numprobe map TRAIN ROLLOUT -o FILE makes one; correct it, then /mapping FILE",
            )
        return self.conversation.correct(self.lang, mapping=arguments[0])

    def _lang(self, arguments: list[str]) -> Answer:
        chosen = arguments[0] if arguments else ""
        if chosen not in ("zh", "en", "auto"):
            raise NumprobeError("E-AGT-010", "/lang takes zh, en or auto", do="/lang zh")
        self.conversation.lang = None if chosen == "auto" else chosen
        self.lang = self.lang if chosen == "auto" else chosen
        return self._says("chat.lang")

    def _save(self, arguments: list[str]) -> Answer:
        """The session as Markdown; no file that is there is overwritten."""
        name = arguments[0] if arguments else f"numprobe-{self.session or 'session'}.md"
        try:
            file = Path(name.replace("\0", "")).expanduser()
        except RuntimeError:  # a user that there is not
            file = Path(name)
        if there(str(file)):
            raise NumprobeError("E-OUT-001", "the output file exists", where=name, do="choose another name")
        part = file.with_name(f".{file.name}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = as_markdown(self.session, self.turns or [])
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
            part.rename(file)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise NumprobeError(
                "E-OUT-002",
                "the output cannot be written: {reason}",
                where=name,
                do="free space, or choose another name",
                reason=error.strerror or str(error),
            ) from None
        return self._says("chat.saved", file=file.as_posix())

    def _sessions(self, arguments: list[str]) -> Answer:
        listed = self.store.listed() if self.store else []
        if not listed:
            return self._says("chat.sessions.none")
        answer = Answer()
        heads = [say(self.lang, f"head.{name}") for name in ("session", "begun", "turns", "first")]
        rows = [[one.id, one.begun, str(one.turns), " ".join(one.first.split())[:60]] for one in listed]
        answer.blocks.append(Table(heads, rows, (2,)))
        return answer

    def _resume(self, arguments: list[str]) -> Answer:
        if self.store is None:
            return self._says("chat.sessions.none")
        return self.resume(arguments[0] if arguments else "last")

    def resume(self, session: str) -> Answer:
        """Take up a session that was kept; what was asked last is shown.

        Raises:
            NumprobeError: E-SES-001, E-SES-002.
        """
        assert self.store is not None
        self.session, turns, run, pending = self.store.resume(session)
        self.turns = turns
        self.conversation.pending = pending
        self.conversation.runs = list(dict.fromkeys(Path(turn.run) for turn in turns if turn.run))
        self.conversation.run = Path(run) if run and (Path(run) / "run.json").exists() else None
        last = turns[-1].question if turns else ""
        return self._says(
            "chat.resumed",
            session=self.session,
            turns=len(turns),
            last=last,
            run=run if self.conversation.run else None,
        )

    def _clear(self, arguments: list[str]) -> Answer:
        """A new session that knows of no run."""
        self.conversation.run, self.conversation.runs, self.conversation.pending = None, [], ""
        self.session, self.turns = "", None
        return self._says("chat.cleared")

    def _exit(self, arguments: list[str]) -> Answer:
        self.ended = True
        return Answer()

    def _some_run(self) -> Path:
        if self.conversation.run is None:
            raise NumprobeError("E-AGT-009", "there is no run yet", do="ask a question with a path first")
        return self.conversation.run
