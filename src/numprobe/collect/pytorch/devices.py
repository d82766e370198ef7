"""What differs between kinds of devices: streams, graph capture, the widest number format.

Whatever the collector decides by ``device.type`` is decided here. The host (``tensor.is_cpu``) has none of these and is asked for
beforehand. Vendors' modules (``torch.cuda``, ``torch.npu``, ``torch.xpu``) are found by the name of the device type, as torch
itself finds them; what a module lacks, or cannot tell, counts as absent on its device.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_WITH_FLOAT64 = frozenset(("cpu", "cuda", "xpu"))  # NPU and Apple's GPU lack float64 or are slow at it


def wide_float(device: torch.device) -> torch.dtype:
    """The format in which integers are summed."""
    return torch.float64 if device.type in _WITH_FLOAT64 else torch.float32


def current_stream(device: torch.device) -> Hashable:
    """The stream that kernels go to now; None on a device without any. Costs a fraction of a launch."""
    if device.type == "cuda":
        return torch._C._cuda_getCurrentStream(device.index)
    stream: Hashable = _ask(device, "current_stream", device)
    return stream


def on_stream(device: torch.device, stream: Any) -> AbstractContextManager[Any]:
    """A block whose kernels, copies and waits go to a stream that :func:`current_stream` gave."""
    if stream is None:
        return nullcontext()
    if device.type == "cuda":
        number, index, kind = stream
        stream = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)  # type: ignore[no-untyped-call]
    block: AbstractContextManager[Any] = _module(device).stream(stream)
    return block


def is_capturing(device: torch.device) -> bool:
    """Are kernels only written down now, for a graph that runs later? Then there are no values, and a copy would break it."""
    return bool(_ask(device, "is_current_stream_capturing"))


def _ask(device: torch.device, question: str, *about: Any) -> Any:
    """What the device's module answers; None where it knows no answer, and from then on without asking again."""
    answer = getattr(_module(device), question, None)
    if answer is None or (device.type, question) in _unanswered:
        return None
    try:
        return answer(*about)
    except Exception:  # of a module that we have not seen
        _unanswered.add((device.type, question))
        return None


_unanswered: set[tuple[str, str]] = set()


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
