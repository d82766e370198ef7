"""The bytes of a file by position, and the two ways in which they can be wrong."""

from __future__ import annotations

import os

WHOLE = 256 << 10  # files up to this size are read at once


class Damaged(Exception):
    """The file contradicts itself; the text says how."""


class Refused(Exception):
    """The file wants a function to be called that is no part of a tensor; the text names it."""


class Unsupported(Exception):
    """The file is whole, but its tensors are of a kind that has no plain form; the text names it."""


class Unfamiliar(Exception):
    """Something that this reader does not know and PyTorch may; the text names it."""


class Content:
    """An open file. ``data`` is all of it where it is small, else None and parts are read when asked for."""

    __slots__ = ("data", "fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.data = os.pread(fd, size, 0) if size <= WHOLE else None
        self.size = size if self.data is None else len(self.data)

    def read(self, begin: int, size: int) -> bytes:
        """``size`` bytes from ``begin``.

        Raises:
            Damaged: the file does not hold them.
        """
        if begin < 0 or size < 0 or begin + size > self.size:
            raise Damaged(f"bytes {begin} to {begin + size} are past its end at {self.size}")
        if self.data is not None:
            return self.data[begin : begin + size]
        part = os.pread(self.fd, size, begin)
        if len(part) != size:
            raise Damaged(f"bytes {begin} to {begin + size} could not be read")
        return part
