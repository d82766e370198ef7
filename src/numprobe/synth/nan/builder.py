"""Builds programs. The builder plays the role of PyTorch and of the collector together: it keeps call counters and module
scopes, runs autograd on a tape, and prepares every record as a text with holes for the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from zlib import crc32

from numprobe.synth.nan import gradients, rules
from numprobe.synth.nan.frames import Frames
from numprobe.synth.nan.operators import OPERATORS, Operator
from numprobe.synth.nan.program import WAIT, Comm, Instr, Label, Leaf, Program, free_registers
from numprobe.synth.nan.records import Collector, Item, Row, Text, Var, construct_text, row
from numprobe.synth.nan.rules import Options, Rule
from numprobe.synth.nan.tensor import mix


def key_of(name: str) -> int:
    """A fixed integer for a name."""
    return crc32(name.encode())


@dataclass(slots=True)
class _Call:
    """An operator on the tape. ``name`` is that of its forward record, empty where there can be none."""

    name: str
    role: str
    layer: int
    operator: Operator
    options: Options
    ins: list[Var]
    out: Var


@dataclass(slots=True)
class Scope:
    """A module call. Its body sees ``inner``, identity views of the inputs as the collector's hooks make them, and sets
    ``outputs``."""

    key: str
    kind: str
    name: str
    inputs: list[Var]
    inner: list[Var]
    params: dict[str, Var]
    outputs: list[Var] = field(default_factory=list)
    backward: str = ""
    upstream: list[Var] = field(default_factory=list)


@dataclass(slots=True)
class _Function:
    """An autograd function of the model's own."""

    source: Var
    out: Var
    through: Callable[[Var], Var]


@dataclass(frozen=True)
class _Entered:
    scope: Scope


@dataclass(frozen=True)
class _Left:
    scope: Scope


Tape: TypeAlias = "list[_Call | _Function | _Entered | _Left]"


class Builder:
    """One program in the making. ``phase``, ``micro_batch`` and ``layer`` are set by the model as it goes."""

    def __init__(self, collector: Collector, frames: Frames, *, micro_steps: bool, salt: int) -> None:
        self.collector = collector
        self.frames = frames
        self.micro_steps = micro_steps
        self.salt = salt  # what numbers depend on besides their inputs
        self.phase, self.micro_batch, self.layer = "forward", 0, -1
        self.tape: Tape = []
        self.grads: dict[Var, Var] = {}
        self.weights: set[Var] = set()
        self.weight_grads: dict[Var, Var] = {}
        self.outer: str | None = None  # parent of calls outside modules: optimizer, or a backward module
        self.registers = 0
        self._instrs: list[Instr] = []
        self._leaves: list[Leaf] = []
        self._rows: list[str] = []
        self._counts: dict[str, int] = {}
        self._parents: dict[str, tuple[str | None, int]] = {}
        self._scopes: list[Scope] = []
        self._backward_scopes: list[Scope] = []
        self._handles: dict[Var, int] = {}

    # -- registers and instructions

    def var(self, *, grad: bool = False) -> Var:
        self.registers += 1
        return Var(self.registers - 1, grad)

    def leaf(self, make: Callable[[Any], Any], *, grad: bool = False) -> Var:
        """A value that the rank brings along: a weight, a batch, the text of a process group."""
        v = self.var(grad=grad)
        self._leaves.append(Leaf(v.reg, make))
        return v

    def text(self, make: Callable[[Any], str]) -> Text:
        return Text(self.leaf(make).reg)

    def _emit(
        self,
        rule: Rule | None,
        ins: Sequence[Var],
        out: Var | None,
        role: str,
        options: Options,
        comm: Comm | None = None,
    ) -> Instr:
        label = Label(self.phase, self.micro_batch, self.layer, role) if role else None
        instr = Instr(rule, options, tuple(v.reg for v in ins), out.reg if out else -1, label, None, comm)
        self._instrs.append(instr)
        return instr

    def compute(self, role: str, rule: Rule, ins: Sequence[Var], **options: Any) -> Var:
        """An operation that is never recorded and that autograd does not follow: copy_, index arithmetic, input data."""
        out = self.var()
        self._emit(rule, ins, out, role, {"op": mix(self.salt, key_of(role)), **options})
        return out

    # -- records

    def count(self, name: str) -> int:
        """The call number that the next call of this name gets, which this is."""
        n = self._counts.get(name, 0)
        self._counts[name] = n + 1
        return n

    def next_count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def _row(self, name: str, parts: dict[str, Any], ins: Sequence[Var], outs: Sequence[Var]) -> Row:
        self._rows.append(name)
        return row(name, parts, ins, outs, len(self._rows) - 1)

    def _parent(self) -> str | None:
        if self._scopes:
            return self._scopes[-1].name
        return self._backward_scopes[-1].backward if self._backward_scopes else self.outer

    def forward_row(
        self, name: str, role: str, parts: dict[str, Any], ins: Sequence[Var], outs: Sequence[Var]
    ) -> Row | None:
        """The record of an API call, if it leaves one, and its entries in construct.json and stack.json."""
        kept = self.collector.keeps(name, role)
        if kept or self.collector.level == "mix":  # what the risk filter drops is in construct.json all the same
            self._parents[name] = (self._parent(), self.micro_batch)
        if not kept:
            return None
        self.frames.note(name, role, [s.kind for s in self._scopes], self.phase)
        return self._row(name, parts, ins, outs)

    def call(
        self,
        role: str,
        ins: Sequence[Var],
        *,
        operator: str = "",
        args: Sequence[Item] | None = None,
        kwargs: dict[str, Item] | None = None,
        outs: Callable[[Var], list[Item]] | None = None,
        **options: Any,
    ) -> Var:
        """Call the operator of this role (or the one named). The record shows ``args``, ``kwargs`` and ``outs`` of the
        result, by default the inputs and the result."""
        op = OPERATORS[operator or role]
        out = self.var(grad=any(ins[g.of].grad for g in op.grads))
        options = {"op": mix(self.salt, key_of(role)), **op.options, **options}
        name = f"{op.api}.{self.count(op.api)}.forward" if op.api else ""
        instr_row = None
        if name:
            shown = list(ins) if args is None else list(args)
            parts = {"input_args": shown, "input_kwargs": kwargs or {}, "output": outs(out) if outs else [out]}
            instr_row = self.forward_row(name, role, parts, ins, [out])
        self._emit(op.rule, ins, out, role, options).row = instr_row
        if out.grad:
            self.tape.append(_Call(name, role, self.layer, op, options, list(ins), out))
        return out

    # -- communication

    def communicate(
        self, role: str, comm: Comm, name: str, parts: dict[str, Any], ins: list[Var], outs: list[Var]
    ) -> None:
        """A communication call with its record. A collective has one input and one output."""
        instr_row = self.forward_row(name, role, parts, ins, outs)
        single = not comm.transfers
        self._emit(None, ins if single else [], outs[0] if single else None, role, {}, comm).row = instr_row

    def new_handle(self, out: Var) -> int:
        """A handle for an asynchronous communication that will deliver ``out``."""
        self._handles[out] = len(self._handles)
        return self._handles[out]

    def wait(self, out: Var) -> None:
        """Wait for an asynchronous communication: only now its result may be read."""
        self._emit(None, [], None, "", {}, Comm(WAIT, "", handle=self._handles[out]))

    # -- modules

    @contextmanager
    def module(
        self, path: str, kind: str, inputs: Sequence[Var], params: dict[str, Var] | None = None
    ) -> Iterator[Scope]:
        """A module call: ``with`` its body. Its record follows those of its children."""
        key = f"Module.{path}.{kind}"
        name = f"{key}.forward.{self.count(key + '.forward')}"
        scope = Scope(key, kind, name, list(inputs), [Var(v.reg, v.grad) for v in inputs], params or {})
        recorded = self.collector.level != "L1"
        if recorded:
            self._parents[name] = (self._parent(), self.micro_batch)
            self.frames.note(name, "", [*(s.kind for s in self._scopes), kind], self.phase)
        self._scopes.append(scope)
        self.tape.append(_Entered(scope))
        yield scope
        self._scopes.pop()
        self.tape.append(_Left(scope))
        if self.collector.keeps(name, kind):
            shown = {
                "input_args": list(inputs),
                "input_kwargs": {},
                "output": scope.outputs,
                "parameters": scope.params,
            }
            ins = [*inputs, *scope.params.values()]
            self._emit(None, [*ins, *scope.outputs], None, "", {}).row = self._row(name, shown, ins, scope.outputs)

    # -- autograd

    def function(self, source: Var, out: Var, through: Callable[[Var], Var]) -> Var:
        """An autograd function of the model's own: the gradient of ``source`` is ``through`` of that of ``out``."""
        out.grad = source.grad
        if out.grad:
            self.tape.append(_Function(source, out, through))
        return out

    def _accumulate(self, store: dict[Var, Var], v: Var, g: Var) -> None:
        store[v] = self.compute("accumulate", rules.added, [store[v], g]) if v in store else g

    def backward(self, tape: Tape, names: Tape | None = None) -> None:
        """Go through ``tape`` backwards. ``names``: the tape of the first forward, where ``tape`` is its recomputation:
        the recording hooks sit on the first one's nodes, the saved tensors are the recomputed ones."""
        for item, first in zip(reversed(tape), reversed(names or tape), strict=True):
            if isinstance(item, _Call):
                assert isinstance(first, _Call)
                self._call_backward(item, first.name)
            elif isinstance(item, _Function):
                g = self.grads.pop(item.out, None)
                if g is not None:
                    self._accumulate(self.grads, item.source, item.through(g))
            elif isinstance(item, _Left):
                self._enter_backward(item.scope)
            else:
                self._leave_backward(item.scope)

    def _enter_backward(self, scope: Scope) -> None:
        scope.upstream = [self.grads[v] for v in scope.outputs if v in self.grads]
        if not scope.upstream:
            return
        scope.backward = f"{scope.key}.backward.{self.count(scope.key + '.backward')}"
        if self.collector.level != "L1":
            parent = self._backward_scopes[-1].backward if self._backward_scopes else None
            self._parents[scope.backward] = (parent, self.micro_batch)
        self._backward_scopes.append(scope)
        if not any(v.grad for v in scope.inputs):
            self._module_row(scope, [])  # nothing to wait for: the hook fires before the inner gradients

    def _module_row(self, scope: Scope, outs: list[Var]) -> None:
        if self.collector.keeps(scope.backward, scope.kind):
            shown = {"input": scope.upstream, "output": outs}
            instr = self._emit(None, [*scope.upstream, *outs], None, "", {})
            instr.row = self._row(scope.backward, shown, scope.upstream, outs)

    def _leave_backward(self, scope: Scope) -> None:
        passed = []
        for inner, outer in zip(scope.inner, scope.inputs, strict=True):
            g = self.grads.pop(inner, None)
            if g is not None:
                passed.append((outer, g))
        if scope.backward:
            self._parameters_row(scope)
            if any(v.grad for v in scope.inputs):
                self._module_row(scope, [g for _, g in passed])
            self._backward_scopes.pop()
        for outer, g in passed:
            self._accumulate(self.grads, outer, g)

    def _parameters_row(self, scope: Scope) -> None:
        """The running sums of the parameters' gradients."""
        grads = {k: [self.weight_grads[v]] for k, v in scope.params.items() if v in self.weight_grads}
        if not grads:
            return
        name = f"{scope.key}.parameters_grad.{self.count(scope.key + '.parameters_grad')}"
        if self.collector.keeps(name, scope.kind):
            used = [v[0] for v in grads.values()]
            self._emit(None, used, None, "", {}).row = self._row(name, grads, [], used)

    def _call_backward(self, call: _Call, forward_name: str) -> None:
        upstream = self.grads.pop(call.out, None)
        if upstream is None:
            return
        kept, self.layer = self.layer, call.layer
        produced: dict[int, Var] = {}
        for g in call.operator.grads:
            if not call.ins[g.of].grad:
                continue
            out = produced[g.of] = self.var()
            saved = [call.out if i < 0 else call.ins[i] for i in g.using]
            role = call.role if g.of == 0 else f"{call.role}.{g.of}"
            options = {**call.options, **g.options, "op": mix(self.salt, key_of(call.role), g.of)}
            self._emit(g.rule, [upstream, call.ins[g.of], *saved], out, role, options)
        self._backward_row(call, forward_name, upstream, produced)
        for of, out in produced.items():
            target = call.ins[of]
            self._accumulate(self.weight_grads if target in self.weights else self.grads, target, out)
        self.layer = kept

    def _backward_row(self, call: _Call, forward_name: str, upstream: Var, produced: dict[int, Var]) -> None:
        shows = call.operator.shows
        if not forward_name or shows == () or not produced:
            return
        name = forward_name.removesuffix("forward") + "backward"
        kept = self.collector.keeps(name, call.role)
        if self.collector.level == "mix":
            parent = self._backward_scopes[-1].backward if self._backward_scopes else None
            self._parents[name] = (parent, self.micro_batch)
        if not kept:
            return
        shown: list[Var] = []
        for what in shows or tuple(produced):
            if what == "view":
                shown.append(self.compute("view", rules.flattened, [upstream]))
            elif what == "nll":
                shown.append(self.compute("nll", gradients.of_log_probability, [upstream, call.ins[0]]))
            elif isinstance(what, int) and what in produced:
                shown.append(produced[what])
        self._instrs[-1].row = self._row(name, {"input": [upstream], "output": shown}, [upstream], shown)

    # -- the finished program

    def build(self) -> Program:
        """Close the program."""
        free_registers(self._instrs)
        level = self.collector.level
        if "optimizer" in {parent for parent, _ in self._parents.values()}:
            self._parents["optimizer"] = (None, self.micro_batch)
        head = (
            f'{{\n "task": "statistics",\n "level": "{level}",\n "framework": "pytorch",\n "dump_data_dir": null,\n'
            ' "data": {\n'
        )
        return Program(
            instrs=self._instrs,
            leaves=self._leaves,
            registers=self.registers,
            rows=self._rows,
            construct=construct_text(
                {} if level == "L1" else self._parents, self.micro_batch if self.micro_steps else None
            ),
            stack=self.frames.text(),
            head=head,
        )
