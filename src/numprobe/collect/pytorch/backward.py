"""The backward record of one call: gradients of its outputs, and what it contributes to the gradients of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from numprobe.collect.pytorch.gradients import Crossing, Edges, InputGradients, Node, Places, shared, tensors_in
from numprobe.collect.pytorch.plain import PLAIN_TYPES, to
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
        for i, value in enumerate(args):
            if type(value) in PLAIN_TYPES:
                if value.requires_grad:
                    found.append((str(i), value))
            else:
                tensors_in(value, str(i), found)
        if kwargs:
            tensors_in(kwargs, "", found)
        self.paths: list[str] = []
        self.tensors: list[torch.Tensor] = []
        for path, tensor in found:
            if tensor.requires_grad:
                self.paths.append(path)
                self.tensors.append(tensor)
        self.edges = Edges(self.tensors)


class BackwardRecord:
    """Waits for the backward pass through one call.

    An API's record stands where the pass enters it, as the reference has it; a module's where the pass has left it and the
    gradients of its parameters are there (``whole``), or, if no gradient reaches its inputs, before the records inside.
    """

    __slots__ = (
        "_arriving",
        "_awaited",
        "_dtypes",
        "_entry",
        "_kept",
        "_name",
        "_node",
        "_outputs",
        "_parent",
        "_passed",
        "_paths",
        "_placed",
        "_places",
        "_recorder",
        "_scope",
        "_slots",
        "_wanted",
        "_ways",
    )

    _entry: Entry  # made when the pass gets here: until then, as little as possible is held

    def __init__(self, recorder: Recorder, scope: Scope, wanted: Wanted, name: str, parent: str | None) -> None:
        self._recorder, self._scope, self._wanted = recorder, scope, wanted
        self._name, self._parent = name, parent
        self._kept: bool | None = None
        self._outputs = 0  # tensors among the outputs that a gradient can flow into
        self._paths: tuple[str, ...] = ()  # of the inputs whose gradients are recorded
        self._slots: dict[int, int] | None = None  # their places in the record, by number of the input, if not the same
        self._ways: InputGradients | None = None
        self._dtypes: dict[int, torch.dtype] | None = None
        self._passed: set[int] | None = None
        self._placed = False
        self._awaited = 0

    def watch(self, given: Given, output: object, *, whole: bool) -> None:
        """Hook the graph between ``given`` and ``output``, of a module (``whole``) or an API, whose parameters are left out."""
        edges = given.edges
        if type(output) in PLAIN_TYPES:
            slots: list[Any] = [output] if output.requires_grad else []  # type: ignore[attr-defined]
        else:
            outputs: list[tuple[str, torch.Tensor]] = []
            tensors_in(output, "", outputs)
            slots = [t for _, t in outputs if t.requires_grad]
        places: dict[int, list[tuple[int, int]]] = {}  # by node: (number of the output, place among the node's)
        nodes: list[Node] = []
        for k, tensor in enumerate(slots):
            if edges.made(tensor):  # what is handed through has no node of its own
                node: Node = tensor.grad_fn
                if id(node) not in places:
                    nodes.append(node)
                places.setdefault(id(node), []).append((k, tensor.output_nr))
        if not nodes:
            return
        tensors = given.tensors
        numbers = [n for n, t in enumerate(tensors) if whole or not _is_parameter(t)]
        self._outputs, self._paths = len(slots), tuple(given.paths)
        if len(numbers) < len(tensors):
            self._paths = tuple(given.paths[n] for n in numbers)
            self._slots = {n: k for k, n in enumerate(numbers)}
        if edges.cast_once:
            self._dtypes = {n: tensors[n].dtype for n in numbers}
        crossings = edges.crossings(nodes) if self._wanted.input_gradients and numbers else []
        if self._slots is not None:
            crossings = _to_some(crossings, self._slots)
        if not whole and len(nodes) == len(crossings) == 1 and self._is_one_node(nodes[0], crossings[0]):
            self._node, self._places, self._arriving = id(nodes[0]), shared(places[id(nodes[0])]), crossings[0][1]
            nodes[0].register_hook(self._through)
            return
        self._awaited = len(nodes) + bool(crossings)
        for node in nodes:
            here = shared(places[id(node)])
            if whole and not crossings:
                node.register_prehook(partial(self._before, here))
            else:
                node.register_hook(partial(self._at, id(node), here, not whole))
        if crossings:
            self._ways = InputGradients(crossings, self._of_input, self._left_whole if whole else self._arrived)

    def _is_one_node(self, node: Node, crossing: Crossing) -> bool:
        """Is the call a single node, with a place of its own for every input?"""
        return crossing[0] is node and len({number for _, number in crossing[1]}) == len(crossing[1])

    def watch_node(self, output: object) -> None:
        """The reference's way: the last node's own gradients, whatever they are the gradients of (HOK-4)."""
        outputs: list[tuple[str, torch.Tensor]] = []
        tensors_in(output, "", outputs)
        node: Node = next((t.grad_fn for _, t in outputs), None)
        if node is None:
            return

        def fired(inputs: Gradients, outputs: Gradients) -> None:
            if self._begins() and self._first_at(0):
                with self._scope.quiet():
                    if self._wanted.output_gradients:
                        self._entry.body["input"] = self._recorder.values(self._entry, "input", outputs)
                    if self._wanted.input_gradients:
                        self._entry.body["output"] = self._recorder.values(self._entry, "output", inputs)
                    self._recorder.place(self._entry)

        node.register_hook(fired)

    # --- as the pass goes on -------------------------------------------------------------------------------------

    def _begins(self) -> bool:
        """Is the record wanted, and is there a step to put it into?"""
        if self._recorder.files is None:
            return False
        if self._kept is None:
            self._kept = self._wanted.keeps_backward(self._name)
            if self._recorder.stacks is not None:
                self._recorder.parent(self._name, backward_of(self._parent))
            if self._kept:
                self._entry = Entry(self._name, open=self._awaited > 0)
                self._begin_body(self._entry.body)
        return self._kept

    def _begin_body(self, body: dict[str, Any]) -> None:
        wanted = self._wanted
        if self._outputs and wanted.output_gradients:
            body["input"] = [None] * self._outputs
        if self._outputs and wanted.input_gradients:
            body["output"] = [None] * len(self._paths)
            if not wanted.node_gradients:
                body["grad_of"] = list(self._paths)

    def _first_at(self, output: int) -> bool:
        """Of several passes through a graph that is retained, the first is recorded."""
        if self._passed is None:
            self._passed = {output}
            return True
        first = output not in self._passed
        self._passed.add(output)
        return first

    def _before(self, places: Places, gradients: Gradients) -> None:
        """The pass enters a module that no gradient leaves."""
        if self._begins() and self._first_at(places[0][0]):
            with self._scope.quiet():
                self._of_outputs(places, gradients)
                self._arrived()
                self._place()

    def _at(self, node: int, places: Places, placed: bool, _: Gradients, gradients: Gradients) -> None:
        """The pass is at a node that made outputs of the call."""
        if self._begins() and self._first_at(places[0][0]):
            with self._scope.quiet():
                self._recorder.passes(node)
                self._of_outputs(places, gradients)
                self._arrived()
                if placed:
                    self._place()
                elif self._entry.open:
                    self._recorder.begun(id(self._entry), self._finish)

    def _through(self, inputs: Gradients, gradients: Gradients) -> None:
        """The pass is through a call that is one node: what flows in and what flows out, at once."""
        if self._begins() and self._first_at(self._places[0][0]):
            with self._scope.quiet():
                self._recorder.passes(self._node)
                self._of_outputs(self._places, gradients)
                for place, number in self._arriving:
                    if place < len(inputs):
                        self._of_input(number, inputs[place])
                self._recorder.complete(self._entry)
                self._place()

    def _place(self) -> None:
        """Put the entry into the file, with what it holds by now: an entry that is not open may be written at once."""
        if not self._placed:
            self._placed = True
            self._recorder.place(self._entry)
        if self._entry.open:
            self._recorder.begun(id(self._entry), self._finish)

    def _arrived(self) -> None:
        """One of the things that the entry waits for is there: the gradients of a node of its outputs, or all of its inputs."""
        self._awaited -= 1
        if self._awaited <= 0 and self._begins():
            self._recorder.complete(self._entry)
            self._recorder.ended(id(self._entry))

    def _finish(self) -> None:
        """The pass is over: what has arrived so far is all."""
        if self._ways is not None:
            self._ways.finish()
        self._recorder.close(self._entry)

    def _of_outputs(self, places: Places, gradients: Gradients) -> None:
        """Enter gradients of outputs: (number of the output, place among the node's)."""
        if not self._wanted.output_gradients:
            return
        for k, number in places:
            gradient = gradients[number] if number < len(gradients) else None
            if gradient is not None:
                self._entry.body["input"][k] = self._recorder.one(self._entry, f"input.{k}", gradient)

    def _of_input(self, number: int, gradient: torch.Tensor | None) -> None:
        k = number if self._slots is None else self._slots.get(number)
        if k is not None and gradient is not None and self._begins():
            with self._scope.quiet():
                dtype = self._dtypes.get(number) if self._dtypes is not None else None
                if dtype is not None and gradient.dtype is not dtype:  # on its way into a cast of autocast
                    gradient = to(gradient, dtype)
                self._entry.body["output"][k] = self._recorder.one(self._entry, f"output.{k}", gradient)

    def _left_whole(self) -> None:
        self._arrived()
        if self._begins():
            self._recorder.put_off(self._entry)


def _to_some(crossings: list[Crossing], wanted: Container[int]) -> list[Crossing]:
    """The ways to those of the tensors whose numbers are wanted."""
    kept = [(node, shared(place for place in places if place[1] in wanted)) for node, places in crossings]
    return [crossing for crossing in kept if crossing[1]]


def _is_parameter(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and isinstance(tensor, torch.nn.Parameter)
