"""The gradients of one call, read off the autograd graph without adding anything to it.

A call's part of the graph lies between its outputs and the edges that lead to its inputs. A hook on the node before such an
edge sees what this call alone contributes to that input's gradient, however many operators the call consists of, and
whoever else uses the input. No node is inserted and no tensor is replaced, so the order of accumulation stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

MAX_NODES = (
    20_000  # of one call's graph: a larger one is not searched, and the gradients of its inputs are not recorded
)

Node = Any  # torch.autograd.graph.Node: what grad_fn gives
Places = tuple[tuple[int, int], ...]
Crossing = tuple[Node, Places]  # a node and (place in its gradients, number of the tensor) for each of them
OnGradient = Callable[[int, torch.Tensor | None], None]
next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class Edges:
    """Where the gradients of some tensors go, as it is now: an operator in place gives its input another node.

    Under autocast, leaves are cast once for all calls that use them, and what flows into the cast from this call is its own.
    """

    __slots__ = ("_again", "_nodes", "_of_leaves", "_of_nodes", "cast_once", "since")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.since = next_sequence_number()
        self._nodes: list[Node] = []  # kept, so that their addresses stay theirs
        self._of_nodes: dict[tuple[int, int], int] = {}
        self._of_leaves: dict[int, int] = {}
        self._again: dict[int, list[int]] = {}  # further places of a tensor that is given more than once
        for i, tensor in enumerate(tensors):
            node = tensor.grad_fn
            if node is not None:
                self._nodes.append(node)
                first = self._of_nodes.setdefault((id(node), tensor.output_nr), i)
            elif tensor.requires_grad:
                first = self._of_leaves.setdefault(id(tensor), i)
            else:
                continue
            if first != i:
                self._again.setdefault(first, []).append(i)
        self.cast_once = bool(self._of_leaves) and _autocasts()

    def made(self, tensor: torch.Tensor) -> bool:
        """Has this output a node of its own, or was an input handed through?"""
        node = tensor.grad_fn
        return node is not None and (id(node), tensor.output_nr) not in self._of_nodes

    def crossings(self, outputs: Sequence[Node]) -> list[Crossing]:
        """The last nodes of the call on every way to an input."""
        of_nodes, of_leaves, since = self._of_nodes, self._of_leaves, self.since
        waiting = list(outputs)
        seen = {id(node): node for node in waiting}
        found: list[tuple[Node, list[tuple[int, int]]]] = []
        while waiting:
            node = waiting.pop()
            here: list[tuple[int, int]] = []
            for place, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                at = of_nodes.get((id(following), number))
                if at is None:
                    if id(following) in seen:
                        continue
                    leaf = getattr(following, "variable", None)
                    if leaf is None and self.cast_once:
                        leaf = _cast_leaf(following)
                        leaf = leaf if leaf is not None and id(leaf) in of_leaves else None
                    if leaf is None:
                        if following._sequence_nr() >= since:
                            seen[id(following)] = following
                            waiting.append(following)
                        continue
                    at = of_leaves.get(id(leaf))
                    if at is None:
                        continue
                here.append((place, at))
            if here:
                found.append((node, here))
            if len(seen) > MAX_NODES:
                return []
        if self._again and len(seen) == len(found) == 1:
            self._tell_apart(found[0][1])
        return [(node, shared(here)) for node, here in found]

    def _tell_apart(self, places: list[tuple[int, int]]) -> None:
        """Of a call that is one node: a tensor that it is given several times has a gradient at each of its places."""
        for first, again in self._again.items():
            here = [k for k, (_, number) in enumerate(places) if number == first]
            if len(here) == 1 + len(again):
                for k, number in zip(here, (first, *again), strict=True):
                    places[k] = places[k][0], number


def shared(places: Iterable[tuple[int, int]]) -> Places:
    """One tuple for all that are equal. Hooks hold them, and for every object that is held the garbage collector comes sooner."""
    found = tuple(places)
    known = _shared.get(found)
    if known is None:
        if len(_shared) >= 4096:
            _shared.clear()
        known = _shared[found] = found
    return known


_shared: dict[Places, Places] = {}


class InputGradients:
    """Collects what reaches the inputs of one call; ``on_gradient(number, tensor)`` as soon as an input has all of it."""

    __slots__ = ("_left", "_on_done", "_on_gradient", "_parts", "_ways")

    def __init__(
        self,
        crossings: Sequence[Crossing],
        on_gradient: OnGradient,
        on_done: Callable[[], None],
    ) -> None:
        self._on_gradient, self._on_done = on_gradient, on_done
        self._ways: dict[int, int] = {}
        self._parts: dict[int, torch.Tensor] = {}
        self._left = len(crossings)
        for node, places in crossings:
            for _, number in places:
                self._ways[number] = self._ways.get(number, 0) + 1
            node.register_hook(partial(self._fired, places))

    def finish(self) -> None:
        """No more will come: what has arrived so far is all."""
        for number, part in list(self._parts.items()):
            self._on_gradient(number, part)
        self._parts.clear()
        if self._left > 0:
            self._left = -1
            self._on_done()

    def _fired(self, places: Places, inputs: tuple[torch.Tensor | None, ...], _: object) -> None:
        if self._left <= 0:
            return
        for place, number in places:
            self._arrived(number, inputs[place] if place < len(inputs) else None)
        self._left -= 1
        if self._left == 0:
            self._on_done()

    def _arrived(self, number: int, part: torch.Tensor | None) -> None:
        self._ways[number] -= 1
        before = self._parts.pop(number, None)
        if part is None:
            part = before
        elif before is not None:
            with torch.no_grad():
                part = torch.ops.aten.add.Tensor(before, part)
        if self._ways[number] == 0:
            self._on_gradient(number, part)
        elif part is not None:
            self._parts[number] = part


def _autocasts() -> bool:
    """Is autocast on, on any device, with its cache of casts?"""
    return _cache_enabled() and (_any_autocast() if _any_autocast is not None else torch.is_autocast_enabled())


_cache_enabled = torch.is_autocast_cache_enabled
_any_autocast: Callable[[], bool] | None = getattr(torch._C, "_is_any_autocast_enabled", None)


def _cast_leaf(node: Node) -> torch.Tensor | None:
    """The leaf of which this node is a cast."""
    if node.name() != "ToCopyBackward0":
        return None
    following = node.next_functions[0][0]
    leaf: torch.Tensor | None = getattr(following, "variable", None)
    return leaf


def tensors_in(value: object, path: str, found: list[tuple[str, torch.Tensor]], depth: int = 0) -> None:
    """Every tensor in nested arguments with its dotted path, in order."""
    if isinstance(value, torch.Tensor):
        found.append((path, value))
    elif value is None or type(value) in _PLAIN:
        return
    elif isinstance(value, (list, tuple)):
        if depth < 64:
            for i, part in enumerate(value):
                tensors_in(part, f"{path}.{i}" if path else str(i), found, depth + 1)
    elif isinstance(value, dict):
        if depth < 64:
            for key, part in value.items():
                tensors_in(part, f"{path}.{key}" if path else str(key), found, depth + 1)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type) and depth < 64:
        for name in value.__dataclass_fields__:
            tensors_in(getattr(value, name, None), f"{path}.{name}" if path else name, found, depth + 1)


_PLAIN = frozenset((bool, int, float, str, torch.dtype, torch.device, torch.Size))
