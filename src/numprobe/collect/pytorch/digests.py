"""Digests of the bytes of tensors: the reference's CRC-32 and XOR, and a 64-bit hash that minds the order.

All take strided tensors (:func:`~numprobe.collect.pytorch.plain.plain_of`). bfloat16 and other dtypes that numpy lacks count as
their bit patterns; the order of elements is that of indices, not of memory.
"""

from __future__ import annotations

import functools
import os
import threading
import zlib
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from numprobe.collect.pytorch.devices import current_stream
from numprobe.collect.pytorch.plain import (
    BASE,
    VARIABLE,
    array_of,
    as_strided,
    bytes_at,
    contiguous,
    data_of,
    data_ptr,
    element_size,
    is_contiguous,
    memory_of,
    numel,
    to,
    view,
)

HELD_BYTES = 32 << 20  # copies that may wait for a thread; beyond, the caller computes
_AT_ONCE = 1 << 20  # bytes whose CRC costs less than handing it to a thread
_PART_BYTES = 4 << 20  # that a thread takes of a tensor of the host
_Result = TypeVar("_Result")

_arange = torch.arange
_MASK = (1 << 64) - 1
# SplitMix64 (Steele, Lea, Flood 2014): the increment and the multipliers of its finaliser.
_GAMMA, _MULTIPLY_1, _MULTIPLY_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_HOST_WORDS, _DEVICE_WORDS = 1 << 16, 1 << 20  # words at a time: 512 kB for a cache, 8 MB for a few long kernels


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes in order of indices as a flat uint8 tensor; shares memory where the tensor is contiguous."""
    plain = contiguous(data_of(tensor))
    # not view(-1): a single element may have any stride, with which it cannot be viewed as bytes
    return view(as_strided(plain, (numel(plain),), (1,)), torch.uint8)


def crc32(tensor: Tensor) -> str:
    """CRC-32 of the bytes as 8 hex digits (STA-5). Tensors of a device are copied to the host: this waits for it.

    Raises TypeError for conjugate and negative views, whose memory holds other values.
    """
    plain = tensor if is_contiguous(tensor) else contiguous(data_of(tensor))
    size = numel(plain) * element_size(plain)
    if not plain.is_cpu or size == 0 or plain.is_neg() or plain.is_conj():
        return f"{zlib.crc32(_buffer(data_of(plain))):08x}"
    return f"{zlib.crc32(bytes_at(data_ptr(plain), size)):08x}"


def crc32_later(tensor: Tensor) -> str | Callable[[], str]:
    """:func:`crc32` of the values of now; of larger tensors of a device what waits for it, since a thread computes it.

    Host tensors are done at once: to copy one for a thread and to wake that takes longer than its CRC (:func:`crc32_beside`).
    """
    plain = contiguous(data_of(tensor))
    size = numel(plain) * element_size(plain)
    if plain.is_cpu or size <= _AT_ONCE or not _pool.reserve(size):
        return f"{zlib.crc32(_buffer(plain)):08x}"
    return _pool.submit(_buffer(plain)).result


def crc32_beside(tensor: Tensor) -> Callable[[], str]:
    """:func:`crc32` by threads while the caller does something else with the tensor; what is returned helps and waits for them.

    Nothing is copied: until it was called, the tensor must not change.
    """
    plain = tensor if is_contiguous(tensor) else contiguous(data_of(tensor))
    size = numel(plain) * element_size(plain)
    if size < _AT_ONCE or not plain.is_cpu or plain.is_neg() or plain.is_conj():
        found = crc32(plain)
        return lambda: found
    data = memoryview(bytes_at(data_ptr(plain), size))
    parts = [data[begin : begin + _PART_BYTES] for begin in range(0, size, _PART_BYTES)]
    begun = [_pool.run(zlib.crc32, part) for part in parts]

    def finish(keep: Tensor = plain) -> str:
        mine = {i: zlib.crc32(parts[i]) for i in reversed(range(len(parts))) if begun[i].cancel()}
        total = 0
        for i, part in enumerate(parts):
            total = combined_crc32(total, mine[i] if i in mine else begun[i].result(), len(part))
        return f"{total:08x}"

    return finish


def combined_crc32(first: int, second: int, length: int) -> int:
    """The CRC-32 of two pieces of data one after the other, of which the second has ``length`` bytes.

    A CRC is a remainder modulo the polynomial P: that of the first piece times ``x**(8 * length)``, plus that of the second.
    """
    return _product(_power_of_x(length), first) ^ second


_POLYNOMIAL = 0xEDB88320  # P without x**32; as in zlib's CRCs, the highest bit is the coefficient of 1


def _product(a: int, b: int) -> int:
    """The product of two polynomials modulo P."""
    result = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            result ^= b
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return result


@functools.lru_cache(maxsize=256)
def _power_of_x(length: int) -> int:
    """``x**(8 * length)`` modulo P, by squaring."""
    result, square = 1 << 31, 1 << 23  # 1, x**8
    while length:
        if length & 1:
            result = _product(result, square)
        square = _product(square, square)
        length >>= 1
    return result


def _buffer(tensor: Tensor) -> memoryview:
    return memory_of(tensor if tensor.is_cpu else to(tensor, "cpu"))


class _Pool:
    """Threads that compute CRCs, half as many as processors; a forked child starts its own."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._held = 0

    def reserve(self, size: int) -> bool:
        """False when too much waits already."""
        with self._lock:
            if self._held + size > HELD_BYTES:
                return False
            self._held += size
            return True

    def submit(self, data: memoryview) -> Future[str]:
        """The text of a CRC, for which :meth:`reserve` has made room."""
        return self.run(self._crc32, data)

    def run(self, work: Callable[[memoryview], _Result], data: memoryview) -> Future[_Result]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), "numprobe-crc")
            return self._executor.submit(work, data)

    def _crc32(self, data: memoryview) -> str:
        try:
            return f"{zlib.crc32(data):08x}"
        finally:
            with self._lock:
                self._held -= len(data)


_pool = _Pool()


def _renew_pool() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_pool)


def xor64(tensor: Tensor) -> str:
    """XOR of the little-endian 64-bit words, zero padded, as ``0x`` and 16 hex digits (STA-6)."""
    return spell_xor64(int(BASE.item(xor64_word(tensor))))


def spell_xor64(word: int) -> str:
    return f"0x{word & _MASK:016x}"


def xor64_word(tensor: Tensor) -> Tensor:
    """:func:`xor64` as a 0-d int64 tensor on the tensor's device, which is not waited for."""
    words = words_of(bytes_of(tensor))
    if words.is_cpu:
        return torch.from_numpy(np.bitwise_xor.reduce(array_of(words), keepdims=True))[0]
    while (count := numel(words)) > 1:  # torch has no XOR reduction: fold the halves
        half = count // 2
        folded = VARIABLE.bitwise_xor(words[:half], words[half : 2 * half])
        if count % 2:
            folded[0] ^= words[-1]
        words = folded
    return words[0]


def words_of(data: Tensor) -> Tensor:
    """Bytes as int64 words, the last one filled with zeros; one zero word where there are no bytes."""
    rest = -numel(data) % 8 if numel(data) else 8
    if rest:
        data = VARIABLE.cat([data, BASE.new_zeros(data, (rest,))])
    elif BASE.storage_offset(data) % 8:  # an int64 view must be aligned
        data = VARIABLE.clone(data)
    return view(data, torch.int64)


def hash64(tensor: Tensor) -> str:
    """An order-sensitive 64-bit digest of the bytes, as 16 hex digits, computed on the tensor's device.

    The sum, modulo 2**64, of ``mix(word[i] + (i + 1) * GAMMA)`` over the little-endian 64-bit words (zero padded) plus
    ``mix(number of bytes)``, where mix is SplitMix64's finaliser::

        z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31

    Each word passes a bijection of its own position, so exchanged or pairwise changed words give another sum, by chance of
    2**-64; sums can be taken in any order, so kernels need not agree on one. Not for adversaries.
    """
    return spell_hash64(int(BASE.item(hash64_word(tensor))))


def spell_hash64(word: int) -> str:
    return f"{word & _MASK:016x}"


def hash64_word(tensor: Tensor) -> Tensor:
    """:func:`hash64` as a 0-d int64 tensor on the tensor's device, which is not waited for."""
    data = bytes_of(tensor)
    words = words_of(data)
    step = _HOST_WORDS if words.is_cpu else _DEVICE_WORDS
    count = numel(words)
    positions = _positions(words.device, step)
    total = None
    for begin in range(0, count, step):
        part = words[begin : begin + step]
        mixed = VARIABLE.add(part, positions[: numel(part)])
        if begin:
            BASE.add_(mixed, _signed(begin * _GAMMA))
        mixed = VARIABLE.sum(_mix(mixed))
        total = mixed if total is None else VARIABLE.add(total, mixed)
    assert total is not None
    return VARIABLE.add(total, _signed(_mixed_int(numel(data))))


_position_tables: dict[Hashable, Tensor] = {}  # by device, stream (another would not wait for it) and length


def _positions(device: torch.device, count: int) -> Tensor:
    """``(i + 1) * GAMMA`` for the words of one part."""
    key = (device, None if device.type == "cpu" else current_stream(device), count)
    table = _position_tables.get(key)
    if table is None:
        table = VARIABLE.mul(_arange(1, count + 1, dtype=torch.int64, device=device), _signed(_GAMMA))
        _position_tables[key] = table
    return table


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place; torch's shift of int64 keeps the sign, which the mask takes away."""
    for shift, factor in ((30, _MULTIPLY_1), (27, _MULTIPLY_2), (31, None)):
        high = BASE.bitwise_and_(VARIABLE.bitwise_right_shift(z, shift), _MASK >> shift)
        BASE.bitwise_xor_(z, high)
        if factor is not None:
            BASE.mul_(z, _signed(factor))
    return z


def _mixed_int(z: int) -> int:
    z = (z ^ z >> 30) * _MULTIPLY_1 & _MASK
    z = (z ^ z >> 27) * _MULTIPLY_2 & _MASK
    return z ^ z >> 31


def _signed(word: int) -> int:
    """The 64 low bits of a number as int64 has them."""
    word &= _MASK
    return word - (1 << 64) if word >> 63 else word
