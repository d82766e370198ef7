"""Digests: CRC-32 and XOR as msProbe has them, the 64-bit hash against its formula in plain integers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from numprobe.collect.pytorch import digests  # noqa: E402
from numprobe.collect.pytorch.digests import combined_crc32, crc32, crc32_beside, crc32_later, hash64, xor64  # noqa: E402

SAMPLES = Path(__file__).parents[1] / "data" / "interop" / "pytorch"
MASK = (1 << 64) - 1


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def words(data: bytes) -> list[int]:
    padded = data + bytes(-len(data) % 8)
    return [int.from_bytes(padded[i : i + 8], "little") for i in range(0, len(padded), 8)]


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash64_by_hand(data: bytes) -> str:
    total = mix(len(data))
    for i, word in enumerate(words(data) or [0]):
        total += mix((word + (i + 1) * 0x9E3779B97F4A7C15) & MASK)
    return f"{total & MASK:016x}"


def xor64_by_hand(data: bytes) -> str:
    result = 0
    for word in words(data):
        result ^= word
    return f"0x{result:016x}"


DTYPES = [
    torch.uint8,
    torch.int16,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
]


@given(st.binary(max_size=200), st.sampled_from(DTYPES), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data: bytes, dtype: torch.dtype, skip: int) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    data = data[: len(data) // size * size]
    if dtype is torch.bool:
        data = bytes(b & 1 for b in data)
    tensor = torch.tensor(list(data), dtype=torch.uint8).view(dtype)[skip:]  # also at odd addresses
    content = data[skip * size :]
    assert crc32(tensor) == f"{zlib.crc32(content):08x}"
    assert xor64(tensor) == xor64_by_hand(content)
    assert hash64(tensor) == hash64_by_hand(content)


def test_order_of_indices_counts_not_that_of_memory() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    for digest in (crc32, xor64, hash64):
        assert digest(tensor.t()) == digest(tensor.t().contiguous())
        assert digest(tensor[:, 1:]) == digest(tensor[:, 1:].contiguous())
    assert crc32(tensor.t()) != crc32(tensor)
    assert crc32(torch.tensor(1.5)) == crc32(torch.tensor([1.5]))


def test_a_single_element_may_have_any_stride() -> None:
    tensor = torch.arange(6.0)[1::3][:1]
    assert tensor.stride() == (3,)
    for digest in (crc32, xor64, hash64):
        assert digest(tensor) == digest(torch.tensor([1.0]))


def test_long_tensors_go_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(3 * 4096 + 1, generator=torch.Generator().manual_seed(0))
    whole = hash64(tensor)
    monkeypatch.setattr(digests, "_HOST_WORDS", 1000)
    assert hash64(tensor) == whole == hash64_by_hand(raw(tensor))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_hash_sees_exchanged_and_paired_changes(data: st.DataObject) -> None:
    tensor = torch.randn(64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))).double()
    i, j = data.draw(st.lists(st.integers(0, 63), min_size=2, max_size=2, unique=True))
    swapped = tensor.clone()
    swapped[[i, j]] = swapped[[j, i]]
    flipped = tensor.clone()
    flipped[[i, j]] *= -1
    bit = data.draw(st.integers(0, 62))
    moved = tensor.clone().view(torch.int64)
    moved[i] ^= 1 << bit
    moved[j] ^= 1 << bit
    assert xor64(swapped) == xor64(flipped) == xor64(moved) == xor64(tensor)  # the weakness of XOR
    assert len({hash64(tensor), hash64(swapped), hash64(flipped), hash64(moved), hash64(tensor.flip(0))}) == 5


def test_the_hash_sees_the_length_and_zeros() -> None:
    assert len({hash64(torch.zeros(n)) for n in range(200)}) == 200


def test_hash_has_no_collisions_among_single_bits() -> None:
    base = torch.zeros(16, dtype=torch.int64)
    seen = {hash64(base)}
    for place in range(16):
        for bit in range(64):
            one = base.clone()
            one[place] = (1 << bit) - (1 << 64 if bit == 63 else 0)
            seen.add(hash64(one))
    assert len(seen) == 16 * 64 + 1


class Elsewhere(torch.Tensor):
    """A CPU tensor that says it lies on a device."""

    is_cpu = False  # type: ignore[assignment]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "data_of", lambda t: t.data.as_subclass(Elsewhere))
    monkeypatch.setattr(digests, "to", lambda t, place: t.as_subclass(torch.Tensor).clone())


def test_folding_gives_the_xor_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a device, run on the CPU: halves are folded until one word is left."""
    for count in (1, 2, 3, 10, 17):
        tensor = torch.randint(-(2**62), 2**62, (count,))
        monkeypatch.setattr(digests, "bytes_of", lambda t: t.view(torch.uint8).as_subclass(Elsewhere))
        folded = digests.xor64_word(tensor)
        monkeypatch.undo()
        assert digests.spell_xor64(int(folded)) == xor64(tensor)


def test_the_crc_of_a_host_tensor_is_there_at_once() -> None:
    tensor = torch.randn(1 << 20)
    assert crc32_later(tensor) == crc32(tensor)


@pytest.mark.usefixtures("elsewhere")
def test_a_crc_that_comes_later_is_of_now() -> None:
    tensors = [torch.randn((1 << 18) + 1) for _ in range(24)]
    wanted = [f"{zlib.crc32(t.numpy().tobytes()):08x}" for t in tensors]
    later = []
    for tensor in tensors:
        later.append(crc32_later(tensor))
        tensor.zero_()
    assert [found() if callable(found) else found for found in later] == wanted
    assert digests._pool._held == 0


@pytest.mark.usefixtures("elsewhere")
def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "HELD_BYTES", 1 << 18)
    tensor = torch.randn(1 << 19)
    assert crc32_later(tensor) == crc32(tensor)  # a string: computed at once


@pytest.mark.usefixtures("elsewhere")
def test_one_processor_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(digests, "_pool", digests._Pool())
    found = crc32_later(torch.ones(1 << 20))
    assert callable(found)
    assert found() == crc32(torch.ones(1 << 20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """In a process of its own with one thread of torch: a forked OpenMP would hang."""
    program = """
import os, torch
torch.set_num_threads(1)
from numprobe.collect.pytorch import digests
def one_by_a_thread():
    digests._pool.reserve(1)
    return digests._pool.submit(memoryview(b"1")).result(10)
expected = one_by_a_thread()
child = os.fork()
if child == 0:
    os._exit(0 if one_by_a_thread() == expected else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_crc_of_msprobe_of_the_same_values() -> None:
    """Sample c's first operator, made again from its seeds: torch's initialisation and generator give the same bits."""
    [dump] = (SAMPLES / "c_statistics_L1_md5" / "dump").glob("step*/*/dump.json")
    record = json.loads(dump.read_text())["data"]["Functional.embedding.0.forward"]
    torch.manual_seed(1234)
    weight = torch.nn.Embedding(64, 32).weight
    ids = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(7))[:, :-1]
    output = torch.nn.functional.embedding(ids, weight)
    assert crc32(ids) == record["input_args"][0]["md5"] == "c63cfc29"
    assert crc32(weight) == record["input_args"][1]["md5"] == "b181ea9c"
    assert crc32(output) == record["output"][0]["md5"] == "2d13d3da"


def test_bfloat16_counts_as_its_bits() -> None:
    tensor = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    assert crc32(tensor) == f"{zlib.crc32(np.array([0x3F80, 0xC000], dtype='<u2').tobytes()):08x}"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_two_pieces(first: bytes, second: bytes):
    found = combined_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert found == zlib.crc32(first + second)


@pytest.mark.parametrize("count", [0, 1, 10, (1 << 20) - 1, 1 << 20, 5_000_001])
@pytest.mark.parametrize("threads_are_busy", [False, True])
def test_the_crc_of_a_large_tensor_by_threads(monkeypatch: pytest.MonkeyPatch, count: int, threads_are_busy: bool):
    """Threads and the caller share the parts: all of them, some or none are left to the caller."""
    tensor = (torch.arange(count, dtype=torch.int64) * 77).to(torch.uint8)
    wanted = f"{zlib.crc32(tensor.numpy().tobytes()):08x}"
    released = threading.Event()
    if threads_are_busy:
        monkeypatch.setattr(digests, "_pool", digests._Pool())
        for _ in range(os.cpu_count() or 1):
            digests._pool.run(lambda _: released.wait(60), memoryview(b""))
    try:
        assert crc32_beside(tensor)() == wanted
        sides = tensor[: count // 2 * 2].view(2, -1)
        assert crc32_beside(sides.t())() == f"{zlib.crc32(sides.numpy().T.tobytes()):08x}"
    finally:
        released.set()
