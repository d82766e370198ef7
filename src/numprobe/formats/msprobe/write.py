"""Writing dump.json, construct.json and stack.json so that they are whole after every flush.

A file is one JSON object whose members are appended, one a line: the closing braces are overwritten by the next members.
A process that is killed loses what came after its last flush, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from numprobe.record.nonfinite import Number

_NAN, _INF, _NEG = msgspec.Raw(b"NaN"), msgspec.Raw(b"Infinity"), msgspec.Raw(b"-Infinity")


class AppendedObject:
    """A JSON file with a growing object in it. ``head`` ends with the object's brace, ``foot`` begins with it."""

    def __init__(self, path: Path, head: bytes = b"{", foot: bytes = b"}") -> None:
        self.path = path
        self.members = 0
        self._head, self._foot = head, b"\n" + foot + b"\n"
        self._end = 0  # where the next member goes
        self._begun = False

    def append(self, members: Iterable[bytes]) -> int:
        """Add members (``"key": value`` without a comma); the number of bytes written.

        Raises:
            OSError: the file cannot be written; it holds what it held before.
        """
        lines = list(members)
        if not lines and self._begun:
            return 0
        text = b",\n".join(lines)
        if text:
            text = (b",\n" if self.members else b"\n") + text
        head = b"" if self._begun else self._head
        try:
            self._write_at_end(head + text + self._foot)
        except OSError:
            with suppress(OSError):  # what broke off in the middle is taken away
                self._write_at_end(head + self._foot)
            raise
        self._end += len(head)
        self._begun = True
        self._end += len(text)
        self.members += len(lines)
        return len(text)

    def _write_at_end(self, text: bytes) -> None:
        with self.path.open("r+b" if self._begun else "wb") as file:
            file.seek(self._end)
            file.write(text)
            file.truncate()


def dump_head(task: str, level: str, tensor_folder: str | None, extra: dict[str, object]) -> bytes:
    """Everything of dump.json before its first record; ``extra`` are keys that msProbe does not know."""
    header = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": tensor_folder, **extra}
    return msgspec.json.format(msgspec.json.encode(header), indent=1)[:-2] + b',\n "data": {'


DUMP_FOOT = b" }\n}"


def member(name: str, value: object) -> bytes:
    """``"name": value``. Floats that are not finite have to be wrapped by :func:`figure` before."""
    return msgspec.json.encode(name) + b": " + msgspec.json.encode(value)


def figure(value: Number) -> Number | msgspec.Raw:
    """A number as dump.json spells it: bare ``NaN`` and ``Infinity``, which JSON has no word for."""
    if type(value) is float and (value != value or value - value != 0):
        return _NAN if value != value else _INF if value > 0 else _NEG
    return value
