"""The backward record of one call: gradients of its outputs, and what it contributes to the gradients of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from numprobe.collect.pytorch.gradients import Edges, InputGradients, Node, tensors_in
from numprobe.collect.pytorch.plain import to
from numprobe.collect.pytorch.recorder import Entry, Recorder
from numprobe.collect.pytorch.scope import Scope, backward_of

Gradients = tuple["torch.Tensor | None", ...]


@dataclass(frozen=True)
class Wanted:
    """What of every call is recorded.

    Attributes:
        input, output: what a call is given and what it returns.
        backward: its backward pass is followed, be it only for the tree of calls.
        output_gradients, input_gradients: what flows into its backward pass (``input`` of that record) and out (``output``).
        keeps_backward: whether the backward record of this name is kept, given that the call's own is.
        node_gradients: those of the last autograd node, as the reference has them (HOK-4), instead of the call's.
    """

    input: bool
    output: bool
    backward: bool
    output_gradients: bool
    input_gradients: bool
    keeps_backward: Callable[[str], bool]
    node_gradients: bool

    @property
    def forward(self) -> bool:
        return self.input or self.output


class Given:
    """The tensors that a call was given and that a gradient can reach, with their places, taken before the call runs."""

    __slots__ = ("edges", "paths", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found: list[tuple[str, torch.Tensor]] = []
        tensors_in(args, "", found)
        tensors_in(kwargs, "", found)
        self.paths = [path for path, tensor in found if tensor.requires_grad]
        self.tensors = [tensor for _, tensor in found if tensor.requires_grad]
        self.edges = Edges(self.tensors)


class BackwardRecord:
    """Waits for the backward pass through one call.

    An API's record stands where the pass enters it, as the reference has it; a module's where the pass has left it and the
    gradients of its parameters are there (``whole``), or, if no gradient reaches its inputs, before the records inside.
    """

    def __init__(self, recorder: Recorder, scope: Scope, wanted: Wanted, name: str, parent: str | None) -> None:
        self._recorder, self._scope, self._wanted = recorder, scope, wanted
        self._entry = Entry(name, open=True)
        self._kept: bool | None = None
        self._ways: InputGradients | None = None
        self._slots: dict[int, int] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        self._passed: set[int] = set()
        self._parent = backward_of(parent)

    def watch(self, given: Given, output: object, *, whole: bool, parameters: bool) -> None:
        """Hook the graph between ``given`` and ``output``; without ``parameters`` those among the inputs are left out."""
        outputs: list[tuple[str, torch.Tensor]] = []
        tensors_in(output, "", outputs)
        slots = [t for _, t in outputs if t.requires_grad]
        made = [
            (k, t) for k, t in enumerate(slots) if given.edges.made(t)
        ]  # what is handed through has none of its own
        if not made:
            return
        numbers = [n for n, t in enumerate(given.tensors) if parameters or not _is_parameter(t)]
        self._slots = {n: k for k, n in enumerate(numbers)}
        self._dtypes = {n: given.tensors[n].dtype for n in numbers} if given.edges.cast_once else {}
        body = self._entry.body
        if self._wanted.output_gradients:
            body["input"] = [None] * len(slots)
        if self._wanted.input_gradients:
            body["output"] = [None] * len(numbers)
            if not self._wanted.node_gradients:
                body["grad_of"] = [given.paths[n] for n in numbers]
        nodes: list[Node] = list({id(t.grad_fn): t.grad_fn for _, t in made}.values())
        crossings = given.edges.crossings(nodes) if self._wanted.input_gradients and numbers else []
        if crossings:
            done = self._left_whole if whole else self._left
        else:
            self._entry.open = False
        for node in nodes:
            places = [(k, t.output_nr) for k, t in made if t.grad_fn is node]
            if whole and not crossings:
                node.register_prehook(self._before(places))
            else:
                node.register_hook(self._at(id(node), places, placed=not whole))
        if crossings:
            self._ways = InputGradients(crossings, self._of_input, done)

    def watch_node(self, output: object) -> None:
        """The reference's way: the last node's own gradients, whatever they are the gradients of (HOK-4)."""
        outputs: list[tuple[str, torch.Tensor]] = []
        tensors_in(output, "", outputs)
        node: Node = next((t.grad_fn for _, t in outputs), None)
        if node is None:
            return
        self._entry.open = False

        def fired(inputs: Gradients, outputs: Gradients) -> None:
            if self._begins() and self._first_at(0):
                with self._scope.quiet():
                    self._recorder.place(self._entry)
                    if self._wanted.output_gradients:
                        self._entry.body["input"] = self._recorder.values(self._entry, "input", outputs)
                    if self._wanted.input_gradients:
                        self._entry.body["output"] = self._recorder.values(self._entry, "output", inputs)

        node.register_hook(fired)

    # --- as the pass goes on -------------------------------------------------------------------------------------

    def _begins(self) -> bool:
        """Is the record wanted, and is there a step to put it into?"""
        if self._recorder.files is None:
            return False
        if self._kept is None:
            self._kept = self._wanted.keeps_backward(self._entry.name)
            if self._recorder.stacks is not None:
                self._recorder.parent(self._entry.name, self._parent)
        return self._kept

    def _first_at(self, output: int) -> bool:
        """Of several passes through a graph that is retained, the first is recorded."""
        first = output not in self._passed
        self._passed.add(output)
        return first

    def _before(self, places: list[tuple[int, int]]) -> Callable[[Gradients], None]:
        def fired(gradients: Gradients) -> None:
            if self._begins() and self._first_at(places[0][0]):
                with self._scope.quiet():
                    self._recorder.place(self._entry)
                    self._of_outputs(places, gradients)

        return fired

    def _at(self, node: int, places: list[tuple[int, int]], *, placed: bool) -> Callable[[Gradients, Gradients], None]:
        def fired(_: Gradients, gradients: Gradients) -> None:
            if self._begins() and self._first_at(places[0][0]):
                with self._scope.quiet():
                    self._recorder.passes(node)
                    if placed:
                        self._recorder.place(self._entry)
                    if self._ways is not None and not self._ways.complete:
                        self._recorder.begun(id(self._entry), self._ways.finish)
                    self._of_outputs(places, gradients)

        return fired

    def _of_outputs(self, places: list[tuple[int, int]], gradients: Gradients) -> None:
        """Enter gradients of outputs: (number of the output, place among the node's)."""
        if not self._wanted.output_gradients:
            return
        for k, number in places:
            gradient = gradients[number] if number < len(gradients) else None
            if gradient is not None:
                self._entry.body["input"][k] = self._recorder.one(self._entry, f"input.{k}", gradient)

    def _of_input(self, number: int, gradient: torch.Tensor | None) -> None:
        k = self._slots.get(number)
        if k is not None and gradient is not None and self._begins():
            with self._scope.quiet():
                dtype = self._dtypes.get(number, gradient.dtype)
                if gradient.dtype is not dtype:  # on its way into a cast of autocast
                    gradient = to(gradient, dtype)
                self._entry.body["output"][k] = self._recorder.one(self._entry, f"output.{k}", gradient)

    def _left(self) -> None:
        self._recorder.ended(id(self._entry))
        self._entry.open = False

    def _left_whole(self) -> None:
        self._left()
        if self._begins():
            self._recorder.put_off(self._entry)


def _is_parameter(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and isinstance(tensor, torch.nn.Parameter)
