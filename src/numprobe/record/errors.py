"""The one error type that numprobe raises for what a user can put right."""

from __future__ import annotations

from collections.abc import Mapping


class NumprobeError(Exception):
    """Bad input or bad usage: what is wrong, where, and what to do.

    ``what``, ``found`` and ``do`` are English templates with the fields of ``str.format``; written as literals where the
    error is raised, they are what the translations are looked up by. The attributes of these names hold the filled text.

    Args:
        code: stable code, ``E-<AREA>-<three digits>`` (areas: FMT files, USE usage, OUT output folder, EXE workers).
        what: one sentence, no full stop, that says what is wrong.
        where: file, record or option, as the user wrote it; no template; empty if the sentence says it.
        found: what was there instead; may be empty.
        do: what the user can do now.
        values: what the fields stand for. Braces in them mean nothing. Without any value, the templates are text as it is.

    The command line prints it and exits with 2.
    """

    def __init__(
        self, code: str, what: str, *, where: str = "", found: str = "", do: str = "", **values: str | int
    ) -> None:
        self.code = code
        self.where = where
        self.templates = (what, found, do)
        self.values = values
        self.what, self.found, self.do = (t.format(**values) if values else t for t in self.templates)
        super().__init__(f"{code}  {self.what}")

    def lines(self) -> list[tuple[str, str]]:
        """The labelled lines below the first: ``[("where", ...), ("found", ...), ("do", ...)]``, empty ones left out."""
        return [(k, v) for k, v in (("where", self.where), ("found", self.found), ("do", self.do)) if v]

    def translated(self, texts: Mapping[str, str]) -> NumprobeError:
        """The same error in other words: ``texts`` has the template for an English one, which stays where it has none."""
        what, found, do = (texts.get(template, template) for template in self.templates)
        return rebuilt(self.code, what, self.where, found, do, self.values)

    def __reduce__(self) -> tuple[object, ...]:
        what, found, do = self.templates
        return rebuilt, (self.code, what, self.where, found, do, self.values)


def rebuilt(code: str, what: str, where: str, found: str, do: str, values: Mapping[str, str | int]) -> NumprobeError:
    """The error that another process raised, from its parts: templates and what fills them."""
    return NumprobeError(code, what, where=where, found=found, do=do, **values)
