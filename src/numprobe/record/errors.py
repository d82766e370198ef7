"""The one error type that numprobe raises for what a user can put right."""

from __future__ import annotations


class NumprobeError(Exception):
    """Bad input or bad usage: what is wrong, where, and what to do.

    Args:
        code: stable code, ``E-<AREA>-<three digits>`` (areas: FMT files, USE usage, OUT output folder, EXE workers).
        what: one sentence, no full stop, that says what is wrong.
        where: file, record or option, as the user wrote it; empty if the sentence says it.
        found: what was there instead; may be empty.
        do: what the user can do now.

    The command line prints it and exits with 2.
    """

    def __init__(self, code: str, what: str, *, where: str = "", found: str = "", do: str = "") -> None:
        super().__init__(f"{code}  {what}")
        self.code = code
        self.what = what
        self.where = where
        self.found = found
        self.do = do

    def lines(self) -> list[tuple[str, str]]:
        """The labelled lines below the first: ``[("where", ...), ("found", ...), ("do", ...)]``, empty ones left out."""
        return [(k, v) for k, v in (("where", self.where), ("found", self.found), ("do", self.do)) if v]

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.what, self.where, self.found, self.do)


def _rebuild(code: str, what: str, where: str, found: str, do: str) -> NumprobeError:
    return NumprobeError(code, what, where=where, found=found, do=do)
