"""The program of a rank: what its training step executes, and the text of the record that each call leaves.

A program is built once for all ranks that run the same code (a pipeline stage with the same noise). The builder plays the
role of PyTorch and of the collector together: it keeps call counters and module scopes, runs autograd on a tape, and
prepares every record as a text with holes for the tensors, so that running it for a rank only fills holes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from numprobe.synth import rules
from numprobe.synth.frames import Frames
from numprobe.synth.rules import Options, Rule

LOW_RISK = frozenset(
    [
        "arange",
        "bfloat16",
        "bool",
        "cat",
        "chunk",
        "clamp",
        "clone",
        "detach",
        "double",
        "empty",
        "empty_like",
        "expand",
        "flatten",
        "float",
        "full",
        "full_like",
        "half",
        "int",
        "new_empty",
        "ones",
        "permute",
        "reshape",
        "split",
        "squeeze",
        "stack",
        "to",
        "transpose",
        "tril",
        "triu",
        "type_as",
        "unsqueeze",
        "view",
        "zeros",
        "zeros_like",
    ]
)
CORE_RISK = frozenset(
    ["embedding", "layer_norm", "matmul", "bmm", "mm", "addmm", "scaled_dot_product_attention", "_fused_adamw_"]
)


class Label(NamedTuple):
    """Where in the step an operator stands: phase (forward, recompute, backward, optimizer), micro-batch, layer, role."""

    phase: str
    micro_batch: int
    layer: int
    role: str


class Var:
    """A value of the program: the register it lives in, and whether autograd follows it."""

    __slots__ = ("grad", "reg")

    def __init__(self, reg: int, grad: bool) -> None:
        self.reg = reg
        self.grad = grad


@dataclass(frozen=True)
class Plain:
    """A tensor recorded with requires_grad false although the model differentiates it: collectives work on detached data."""

    var: Var


@dataclass(frozen=True)
class Text:
    """A register that holds ready json text: a process group, a placeholder buffer, split sizes."""

    reg: int


Item: TypeAlias = "Var | Plain | Text | str | list[Any] | dict[str, Any]"


@dataclass(frozen=True)
class Row:
    """A record: its text with ``%s`` for each slot, the slots (register, kind, extra indent), and what goes in and out."""

    name: str
    skeleton: str
    slots: tuple[tuple[int, int, int], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    index: int


@dataclass(frozen=True)
class Comm:
    """A communication: ``api``, the name of the ``group``, and for point-to-point the ``transfers`` (op, peer, register).

    ``handle`` marks an asynchronous one, completed by the ``wait`` with the same handle.
    """

    api: str
    group: str
    transfers: tuple[tuple[str, str, int], ...] = ()
    handle: int = -1
    options: Options = field(default_factory=dict)


WAIT = "wait"
RAW, GRAD, PLAIN = 0, 1, 2


@dataclass(slots=True)
class Instr:
    rule: Rule | None
    options: Options
    args: tuple[int, ...]
    out: int
    label: Label | None
    row: Row | None
    comm: Comm | None = None
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """A register that a rank starts with. ``make(rank)`` is called by the machine with its view of the rank."""

    reg: int
    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Program:
    """Everything that ranks running the same code share."""

    instrs: list[Instr]
    leaves: list[Leaf]
    registers: int
    rows: list[str]
    construct: str
    stack: str
    head: str


@dataclass(frozen=True)
class Grad:
    """How the gradient of input ``of`` arises: multiplied with the saved inputs ``using`` (-1: the output)."""

    of: int
    using: tuple[int, ...] = ()
    options: Options = field(default_factory=dict)
    rule: Rule = rules.gradient


@dataclass(slots=True)
class _Call:
    name: str
    role: str
    layer: int
    ins: list[Var]
    out: Var
    grads: tuple[Grad, ...]
    shows: tuple[int | str, ...]


@dataclass(slots=True)
class _Scope:
    """A module call: on the stack of scopes while it runs, on the tape as its end and its start."""

    key: str
    frame: str
    inputs: list[Var]
    inner: list[Var]
    outputs: list[Var]
    params: dict[str, Var]
    name: str
    backward: str = ""
    gradient_in: list[Var | None] = field(default_factory=list)


@dataclass(slots=True)
class Tape:
    """What a forward has done, in order; autograd goes through it backwards."""

    items: list[tuple[str, Any]] = field(default_factory=list)


def scalar(kind: str, value: object) -> str:
    """The record of a number, bool or string four levels deep: ``scalar("float", 1e-5)``."""
    return f'{{\n     "type": "{kind}",\n     "value": {json.dumps(value)}\n    }}'


def key_of(name: str) -> int:
    """A fixed integer for a name."""
    return crc32(name.encode())


class Builder:
    """Builds one program. See the module's docstring; ``model`` writes the training step with it."""

    def __init__(
        self,
        frames: Frames,
        *,
        level: str,
        risk: str,
        only: tuple[str, ...] = (),
        unrecorded: Callable[[Label, str], bool] = lambda label, name: False,
        micro_steps: bool = False,
    ) -> None:
        self.frames = frames
        self.level = level
        self.risk = risk
        self.only = only
        self.unrecorded = unrecorded
        self.micro_steps = micro_steps
        self.instrs: list[Instr] = []
        self.leaves: list[Leaf] = []
        self.rows: list[str] = []
        self.registers = 0
        self.phase, self.micro_batch, self.layer = "forward", 0, -1
        self.tape = Tape()
        self.scopes: list[_Scope] = []
        self.counts: dict[str, int] = {}
        self.grads: dict[Var, Var] = {}
        self.weight_grads: dict[Var, Var] = {}
        self.construct: dict[str, tuple[str | None, int]] = {}
        self.outer: str | None = None  # parent of scopes without one: optimizer, clip_grad or a backward module
        self.weights: set[Var] = set()
        self.pending: dict[Var, int] = {}
        self.backward_scopes: list[_Scope] = []
        self._handles = 0

    # -- registers

    def var(self, *, grad: bool = False) -> Var:
        self.registers += 1
        return Var(self.registers - 1, grad)

    def leaf(self, make: Callable[[Any], Any], *, grad: bool = False) -> Var:
        """A value that the rank brings along: a weight, a batch, the text of a process group."""
        v = self.var(grad=grad)
        self.leaves.append(Leaf(v.reg, make))
        return v

    def text(self, make: Callable[[Any], str]) -> Text:
        return Text(self.leaf(make).reg)

    # -- records

    def count(self, name: str) -> int:
        n = self.counts.get(name, 0)
        self.counts[name] = n + 1
        return n

    def label(self, role: str) -> Label:
        return Label(self.phase, self.micro_batch, self.layer, role)

    def wanted(self, prefix: str, api: str, name: str, role: str) -> bool:
        if self.unrecorded(self.label(role), name):
            return False
        if self.only:
            return any(part in name for part in self.only)
        if prefix == "Module":
            return self.level != "L1"
        if self.level == "L0":
            return False
        if self.risk == "CORE":
            return api in CORE_RISK or prefix in ("Distributed", "NPU", "MindSpeed")
        return self.risk == "ALL" or api not in LOW_RISK

    def _item(self, item: Item, depth: int, slots: list[tuple[int, int, int]]) -> str:
        if isinstance(item, str):
            return item.replace("\n", "\n" + " " * (depth - 4))
        if isinstance(item, list):
            pad = "\n" + " " * (depth + 1)
            inner = ("," + pad).join(self._item(part, depth + 1, slots) for part in item)
            return f"[{pad}{inner}\n{' ' * depth}]" if item else "[]"
        if isinstance(item, dict):
            pad = "\n" + " " * (depth + 1)
            fields = ("," + pad).join(f'"{k}": {self._item(v, depth + 1, slots)}' for k, v in item.items())
            return f"{{{pad}{fields}\n{' ' * depth}}}"
        if isinstance(item, Text):
            slots.append((item.reg, RAW, depth - 4))
        elif isinstance(item, Plain):
            slots.append((item.var.reg, PLAIN, depth - 4))
        else:
            slots.append((item.reg, GRAD if item.grad else PLAIN, depth - 4))
        return "%s"

    def row(self, name: str, parts: dict[str, Any], inputs: Sequence[Var], outputs: Sequence[Var]) -> Row:
        """A record whose ``parts`` are its members: lists of items, or objects of name -> item."""
        slots: list[tuple[int, int, int]] = []
        members = []
        for key, value in parts.items():
            if isinstance(value, dict):
                inner = ",\n    ".join(f'"{k}": {self._item(v, 4, slots)}' for k, v in value.items())
                members.append(f'   "{key}": ' + (f"{{\n    {inner}\n   }}" if value else "{}"))
            else:
                inner = ",\n    ".join(self._item(v, 4, slots) for v in value)
                members.append(f'   "{key}": ' + (f"[\n    {inner}\n   ]" if value else "[]"))
        self.rows.append(name)
        skeleton = f'  "{name}": {{\n' + ",\n".join(members) + "\n  }"
        return Row(
            name,
            skeleton,
            tuple(slots),
            tuple(v.reg for v in inputs),
            tuple(v.reg for v in outputs),
            len(self.rows) - 1,
        )

    def emit(
        self,
        rule: Rule | None,
        ins: Sequence[Var],
        *,
        options: Options | None = None,
        label: Label | None = None,
        row: Row | None = None,
        comm: Comm | None = None,
        out: Var | None = None,
    ) -> Instr:
        args = tuple(v.reg for v in ins)
        instr = Instr(rule, options or {}, args, out.reg if out else -1, label, row, comm)
        self.instrs.append(instr)
        return instr

    def compute(self, role: str, rule: Rule, ins: Sequence[Var], grad: bool = False, **options: Any) -> Var:
        """An operation that is never recorded (a copy_, a view, index arithmetic) and that autograd does not follow."""
        out = self.var(grad=grad)
        options.setdefault("op", key_of(role))
        self.emit(rule, ins, options=options, label=self.label(role), out=out)
        return out

    def _parent(self) -> str | None:
        if self.scopes:
            return self.scopes[-1].name
        return self.backward_scopes[-1].backward if self.backward_scopes else self.outer

    def note(self, name: str, role: str) -> None:
        """Put a forward record into construct.json and stack.json."""
        self.construct[name] = (self._parent(), self.micro_batch)
        self.frames.note(name, role, [s.frame for s in self.scopes], self.phase)

    def api(
        self,
        role: str,
        prefix: str,
        api: str,
        rule: Rule,
        ins: Sequence[Var],
        *,
        args: Sequence[Item] | None = None,
        kwargs: dict[str, Item] | None = None,
        outs: Callable[[Var], list[Item]] | None = None,
        grads: tuple[Grad, ...] = (),
        shows: tuple[int | str, ...] | None = None,
        grad: bool | None = None,
        **options: Any,
    ) -> Var:
        """Call a wrapped API. ``args``, ``kwargs`` and ``outs`` are what the record shows, by default ins and the result.

        ``shows`` lists what the backward record has as outputs: indices of inputs, ``view`` for the incoming gradient as the last
        autograd node of a 3-D linear hands it on, ``nll`` for that of the log-softmax inside a cross entropy.
        """
        follows = any(g for g in grads if ins[g.of].grad) if grad is None else grad
        out = self.var(grad=bool(follows))
        options.setdefault("op", key_of(role))
        name = f"{prefix}.{api}.{self.count(prefix + '.' + api)}.forward"
        row = None
        if self.wanted(prefix, api, name, role):
            parts = {
                "input_args": list(ins) if args is None else list(args),
                "input_kwargs": kwargs or {},
                "output": [out] if outs is None else outs(out),
            }
            row = self.row(name, parts, ins, [out])
            self.note(name, role)
        elif self.level == "mix":
            self.construct[name] = (self._parent(), self.micro_batch)
        self.emit(rule, ins, options=options, label=self.label(role), row=row, out=out)
        if out.grad:
            call = _Call(name, role, self.layer, list(ins), out, grads, shows or tuple(g.of for g in grads))
            self.tape.items.append(("call", call))
        return out

    def hidden(self, role: str, rule: Rule, ins: Sequence[Var], grads: tuple[Grad, ...] = (), **options: Any) -> Var:
        """An unwrapped operation that autograd follows: no record in either direction."""
        out = self.var(grad=any(ins[g.of].grad for g in grads))
        options.setdefault("op", key_of(role))
        self.emit(rule, ins, options=options, label=self.label(role), out=out)
        if out.grad:
            self.tape.items.append(("call", _Call("", role, self.layer, list(ins), out, grads, ())))
        return out

    def collective(
        self,
        role: str,
        api: str,
        group: str,
        ins: Sequence[Var],
        *,
        args: Sequence[Item],
        kwargs: dict[str, Item] | None = None,
        shown_outs: Callable[[Var], list[Item]],
        grad: bool = False,
        is_async: bool = False,
        **options: Any,
    ) -> Var:
        """A collective. The record's output repeats the arguments after the call. Asynchronous ones need :meth:`wait`."""
        out = self.var(grad=grad)
        name = f"Distributed.{api}.{self.count('Distributed.' + api)}.forward"
        row = None
        if self.wanted("Distributed", api, name, role):
            parts = {"input_args": list(args), "input_kwargs": kwargs or {}, "output": shown_outs(out)}
            row = self.row(name, parts, ins, [out])
            self.note(name, role)
        elif self.level == "mix":
            self.construct[name] = (self._parent(), self.micro_batch)
        handle = -1
        if is_async:
            handle = self._handles
            self._handles += 1
        comm = Comm(api, group, handle=handle, options=options)
        self.emit(None, ins, label=self.label(role), row=row, comm=comm, out=out)
        if is_async:
            self.pending[out] = handle
        return out

    def wait(self, out: Var) -> None:
        """Wait for an asynchronous collective: only now its result may be read."""
        handle = self.pending.pop(out)
        self.emit(None, [], comm=Comm(WAIT, "", handle=handle))

    def function(self, source: Var, out: Var, through: Callable[[Var], Var]) -> Var:
        """An autograd function of the model's own: the gradient of ``source`` is ``through`` of that of ``out``."""
        out.grad = source.grad
        self.tape.items.append(("function", (source, out, through)))
        return out

    # -- modules

    @contextmanager
    def module(
        self,
        path: str,
        kind: str,
        inputs: Sequence[Var],
        params: dict[str, Var] | None = None,
        shown: Sequence[Item] | None = None,
    ) -> Iterator[_Scope]:
        """A module call. Its inputs pass through identity views (``scope.inner``), as the collector's hooks make them."""
        key = f"Module.{path}.{kind}"
        name = f"{key}.forward.{self.count(key + '.forward')}"
        inner = [Var(v.reg, v.grad) for v in inputs]
        scope = _Scope(key, f"{kind}", list(inputs), inner, [], params or {}, name)
        self.construct[name] = (self._parent(), self.micro_batch)
        self.frames.note(name, "", [s.frame for s in self.scopes] + [kind], self.phase)
        self.scopes.append(scope)
        self.tape.items.append(("enter", scope))
        yield scope
        self.scopes.pop()
        self.tape.items.append(("exit", scope))
        if self.wanted("Module", "", name, path.rsplit(".", 1)[-1]):
            parts = {
                "input_args": list(shown if shown is not None else inputs),
                "input_kwargs": {},
                "output": list(scope.outputs),
                "parameters": dict(scope.params),
            }
            row = self.row(name, parts, [*inputs, *scope.params.values()], scope.outputs)
            self.emit(None, [*inputs, *scope.params.values(), *scope.outputs], row=row)
        elif self.level == "L1":
            del self.construct[name]

    # -- autograd

    def accumulate(self, v: Var, g: Var, into: dict[Var, Var] | None = None) -> None:
        store = self.grads if into is None else into
        if v in store:
            store[v] = self.compute("accumulate", rules.added, [store[v], g])
        else:
            store[v] = g

    def backward(self, tape: Tape, names: Tape | None = None) -> None:
        """Go through ``tape`` backwards. ``names``: the tape of the first forward, where ``tape`` is its recomputation:
        the hooks that record sit on the first one's nodes, the saved tensors are the recomputed ones."""
        twins = {id(a[1]): b[1] for a, b in zip(tape.items, names.items, strict=True)} if names else {}
        first = names is not None
        for what, item in reversed(tape.items):
            if what == "call":
                self._call_backward(item, twins[id(item)].name if first else item.name)
            elif what == "exit":
                self._enter_backward(item)
            elif what == "function":
                source, out, through = item
                g = self.grads.pop(out, None)
                if g is not None and source.grad:
                    self.accumulate(source, through(g))
            else:
                self._leave_backward(item)

    def _enter_backward(self, scope: _Scope) -> None:
        scope.gradient_in = [self.grads.get(v) for v in scope.outputs]
        if not any(scope.gradient_in):
            scope.backward = ""
            return
        scope.backward = f"{scope.key}.backward.{self.count(scope.key + '.backward')}"
        self.construct[scope.backward] = (self._backward_parent(), self.micro_batch)
        self.backward_scopes.append(scope)
        if not any(v.grad for v in scope.inputs):
            self._module_backward_row(scope, [])

    def _backward_parent(self) -> str | None:
        return self.backward_scopes[-1].backward if self.backward_scopes else None

    def _module_backward_row(self, scope: _Scope, outputs: list[Var]) -> None:
        name = scope.backward
        if self.wanted("Module", "", name, scope.key.rsplit(".", 2)[-2]):
            ins = [g for g in scope.gradient_in if g]
            row = self.row(name, {"input": ins, "output": outputs}, ins, outputs)
            self.emit(None, [*ins, *outputs], row=row)
        elif self.level == "L1":
            del self.construct[name]

    def _leave_backward(self, scope: _Scope) -> None:
        found = [(outer, self.grads.pop(inner, None)) for inner, outer in zip(scope.inner, scope.inputs, strict=True)]
        passed = [(outer, g) for outer, g in found if g is not None]
        with_grads = {k: [self.weight_grads[v]] for k, v in scope.params.items() if v in self.weight_grads}
        if with_grads and scope.backward:
            name = f"{scope.key}.parameters_grad.{self.count(scope.key + '.parameters_grad')}"
            if self.wanted("Module", "", name, "parameters_grad"):
                used = [v[0] for v in with_grads.values()]
                self.emit(None, used, row=self.row(name, with_grads, [], used))
        if scope.backward:
            if any(v.grad for v in scope.inputs):
                self._module_backward_row(scope, [g for _, g in passed])
            self.backward_scopes.pop()
        for outer, g in passed:
            self.accumulate(outer, g)

    def _call_backward(self, call: _Call, forward_name: str) -> None:
        upstream = self.grads.pop(call.out, None)
        if upstream is None:
            return
        produced: dict[int, Var] = {}
        kept = self.layer
        self.layer = call.layer
        emitted: list[Instr] = []
        for g in call.grads:
            target = call.ins[g.of]
            if not target.grad:
                continue
            role = call.role if g.of == 0 else f"{call.role}.{g.of}"
            saved = [call.out if i < 0 else call.ins[i] for i in g.using]
            out = self.var()
            options = {"op": key_of(f"{call.role}.{g.of}.backward"), "gain": 1.0, **g.options}
            emitted.append(
                self.emit(g.rule, [upstream, target, *saved], options=options, label=self.label(role), out=out)
            )
            produced[g.of] = out
        self._record_backward(call, forward_name, upstream, produced, emitted)
        for of, out in produced.items():
            target = call.ins[of]
            if target in self.weights:
                self.accumulate(target, out, self.weight_grads)
            else:
                self.accumulate(target, out)
        self.layer = kept

    def _record_backward(
        self, call: _Call, forward_name: str, upstream: Var, produced: dict[int, Var], emitted: list[Instr]
    ) -> None:
        if not forward_name or not emitted:
            return
        prefix, api, _ = forward_name.split(".", 2)
        name = forward_name.removesuffix("forward") + "backward"
        if self.level == "mix":
            self.construct[name] = (self._backward_parent(), self.micro_batch)
        if not self.wanted(prefix, api, name, call.role):
            return
        shown: list[Var] = []
        for s in call.shows:
            if s == "view":
                shown.append(self.compute("view", rules.flattened, [upstream]))
                emitted.append(self.instrs[-1])
            elif s == "nll":
                shown.append(self.compute("nll", rules.spread_over, [upstream, call.ins[0]]))
                emitted.append(self.instrs[-1])
            elif isinstance(s, int) and s in produced:
                shown.append(produced[s])
        emitted[-1].row = self.row(name, {"input": [upstream], "output": shown}, [upstream], shown)

    # -- the finished program

    def build(self) -> Program:
        """Close the program: registers are freed after their last use, side files become text."""
        last: dict[int, int] = {}
        pending: dict[int, int] = {}
        for at, instr in enumerate(self.instrs):
            used = list(instr.args)
            if instr.row:
                used += [s[0] for s in instr.row.slots]
                used += [*instr.row.inputs, *instr.row.outputs]
            if instr.comm:
                used += [t[2] for t in instr.comm.transfers]
                if instr.comm.api == WAIT:
                    start = self.instrs[pending[instr.comm.handle]]
                    if start.row:
                        used += [s[0] for s in start.row.slots]
                    used += [start.out, *start.args]
                elif instr.comm.handle >= 0:
                    pending[instr.comm.handle] = at
            if instr.out >= 0:
                used.append(instr.out)
            for reg in used:
                last[reg] = at
        free: dict[int, list[int]] = {}
        for reg, at in last.items():
            free.setdefault(at, []).append(reg)
        for at, regs in free.items():
            self.instrs[at].free = tuple(r for r in regs if r >= 0)
        head = f'{{\n "task": "statistics",\n "level": "{self.level}",\n "framework": "pytorch",\n "dump_data_dir": null,\n "data": {{\n'
        return Program(
            self.instrs, self.leaves, self.registers, self.rows, self._construct_text(), self.frames.text(), head
        )

    def _construct_text(self) -> str:
        if self.level == "L1" or not self.construct:
            return "{}"
        lines = []
        for name, (parent, micro_step) in self.construct.items():
            value = "null" if parent is None else f'"{parent}"'
            if self.micro_steps:
                value = f"[\n  {value},\n  {micro_step}\n ]"
            lines.append(f' "{name}": {value}')
        if self.micro_steps:
            lines.append(f' "megatron_micro_step_number": {self.micro_batch}')
        return "{\n" + ",\n".join(lines) + "\n}"
