"""Zip archives as PyTorch writes them: where the bytes of each record lie.

Records are stored, not compressed, so they can be read in place. The format is PKWARE's APPNOTE 6.3.10: local headers (4.3.7),
central directory (4.3.12), its end (4.3.16) and the same with 64 bits (4.3.14, 4.3.15, 4.5.3).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from numprobe.formats.tensors.content import Content, Damaged

MAX_RECORDS = 200_000
MAX_DIRECTORY = 64 << 20
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_TAIL = 4096  # the end and, of a single tensor, the whole directory
_MAX_COMMENT = 0xFFFF


class Record(NamedTuple):
    """A file of the archive: where its local header lies, how many bytes it has, and what forbids to read it in place."""

    header: int
    size: int
    packed: bool
    name: bytes


def read_directory(content: Content) -> dict[str, Record]:
    """Every record by its name.

    Raises:
        Damaged: no archive, cut short, or a directory that contradicts itself.
    """
    begin, size, count = _find_directory(content)
    if count > MAX_RECORDS or size > MAX_DIRECTORY:
        raise Damaged(f"its directory has {count} records in {size} bytes")
    directory = content.read(begin, size)
    records: dict[str, Record] = {}
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > size:
            raise Damaged("its directory is cut short")
        entry = _ENTRY.unpack_from(directory, at)
        sign, _, _, flags, method, _, _, _, packed_size, full_size, name_size, extra_size, comment_size, *_, header = (
            entry
        )
        name_end = at + _ENTRY.size + name_size
        name = directory[at + _ENTRY.size : name_end]
        if packed_size == 0xFFFFFFFF or full_size == 0xFFFFFFFF or header == 0xFFFFFFFF:
            extra = directory[name_end : name_end + extra_size]
            full_size, packed_size, header = _wide(extra, full_size, packed_size, header)
        at = name_end + extra_size + comment_size
        if sign != b"PK\x01\x02" or at > size:
            raise Damaged("its directory is broken")
        if header + _LOCAL.size + name_size + packed_size > begin:
            raise Damaged(f"record {_shown(name)} says it has {packed_size} bytes at {header}: more than there are")
        text = name.decode("utf-8", "surrogateescape")
        if text in records:
            raise Damaged(f"two records are called {_shown(name)}")
        records[text] = Record(header, full_size, method != 0 or flags & 1 != 0 or packed_size != full_size, name)
    return records


def begin_of(record: Record, content: Content) -> int:
    """Where the bytes of a record begin.

    Raises:
        Damaged: it is compressed or encrypted, or its own header contradicts the directory.
    """
    if record.packed:
        raise Damaged(f"record {_shown(record.name)} is compressed; PyTorch stores it as it is")
    header = content.read(record.header, _LOCAL.size)
    fields = _LOCAL.unpack(header)
    name_size, extra_size = fields[-2:]
    begin: int = record.header + _LOCAL.size + name_size + extra_size
    if fields[0] != b"PK\x03\x04" or name_size != len(record.name):
        raise Damaged(f"record {_shown(record.name)} is not where the directory says")
    if content.read(record.header + _LOCAL.size, name_size) != record.name or begin + record.size > content.size:
        raise Damaged(f"record {_shown(record.name)} is not where the directory says")
    return begin


def _find_directory(content: Content) -> tuple[int, int, int]:
    """Begin, size in bytes and number of records of the central directory."""
    tail_begin = max(0, content.size - _TAIL)
    tail = content.read(tail_begin, content.size - tail_begin)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 and tail_begin:
        tail_begin = max(0, content.size - _MAX_COMMENT - _END.size)
        tail = content.read(tail_begin, content.size - tail_begin)
        at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise Damaged("the end of the archive is missing: the file is cut short")
    _, disk, first_disk, here, count, size, begin, _ = _END.unpack_from(tail, at)
    end = tail_begin + at
    locator = at - _LOCATOR.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
        _, disk, end64, _ = _LOCATOR.unpack_from(tail, locator)
        sign, _, _, _, _, first_disk, here, count, size, begin = _END64.unpack(content.read(end64, _END64.size))
        if sign != b"PK\x06\x06":
            raise Damaged("the end of its directory is broken")
        end = end64
    if disk or first_disk or here != count or begin + size != end:
        raise Damaged("its directory is not where its end says")
    return begin, size, count


def _wide(extra: bytes, full_size: int, packed_size: int, header: int) -> tuple[int, int, int]:
    """Sizes and place with 64 bits, which stand in the extra field for those that are all ones."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if at + 4 + size > len(extra):
            break
        if kind == 1:
            values = iter(struct.unpack_from(f"<{size // 8}Q", extra, at + 4))
            try:
                return (
                    next(values) if full_size == 0xFFFFFFFF else full_size,
                    next(values) if packed_size == 0xFFFFFFFF else packed_size,
                    next(values) if header == 0xFFFFFFFF else header,
                )
            except StopIteration:
                break
        at += 4 + size
    raise Damaged("its directory is broken")


def _shown(name: bytes) -> str:
    return name[:80].decode("utf-8", "backslashreplace")
