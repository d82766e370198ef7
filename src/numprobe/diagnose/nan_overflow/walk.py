"""The walk over one rank's dirty records, in order: which of them does nothing on this rank explain?

It works on flags (which slots of a record are non-finite, and how) and decodes a record only where its figures
decide: communication, allocations, and what might be an origin. After the first NaN only records with NaN-free inputs can
be origins, so the tens of thousands of records that merely hand NaN on cost nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.comm import REDUCING, CommCall
from numprobe.diagnose.nan_overflow.digest import Event, LookAlike, RankDigest
from numprobe.diagnose.nan_overflow.surroundings import LOOK_BACK, Surroundings
from numprobe.record.names import BACKWARD, DEBUG, FORWARD, PARAMETERS_GRAD, OpName, module_key, parse_name
from numprobe.record.nonfinite import DIRTY, INFINITE, Kinds
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, Record, Value

MAX_EVENTS = 32
_NAN, _INF, _DIRTY = int(Kinds.NAN), int(INFINITE), int(DIRTY)
_CLOSE = 24  # records between an allocation and its use: all-NaN tensors of one size cannot be told apart further off


@dataclass
class _Infinity:
    """An infinity that something other than a fill has made: where it went decides whether it matters."""

    event: Event
    signatures: set[tuple[int | None, float, float]]
    last: str = "produced"  # produced | carried | absorbed | live
    at: int = -1


@dataclass
class _Garbage:
    """Dirty memory that may never be read: an allocation, or a copy of what nothing recorded has made.

    ``gap`` is the event to report if a computation reads it after all, where there is no allocation to name.
    """

    index: int
    numel: int | None
    gap: Event | None = None


@dataclass
class Walk(Surroundings):
    """The walk itself; ``events`` and ``look`` are what it leaves."""

    digest: RankDigest
    infinities: list[_Infinity] = field(default_factory=list)
    garbage: list[_Garbage] = field(default_factory=list)
    garbage_used: set[int] = field(default_factory=set)
    fills: int = 0  # kinds of infinity that fills have put somewhere
    received: int = 0  # kinds that came in through communication
    nan_seen: bool = False
    unseen: dict[int, int] = field(default_factory=dict)  # numel of receives that were recorded before the data came
    events: list[Event] = field(default_factory=list)
    look: dict[tuple[str, str, int], LookAlike] = field(default_factory=dict)
    deferred: list[int] = field(default_factory=list)

    @cached_property
    def calls(self) -> dict[int, list[CommCall]]:
        """Transfers by op_index."""
        found: dict[int, list[CommCall]] = {}
        for call in self.digest.calls:
            found.setdefault(call.index, []).append(call)
        return found

    # --- helpers -------------------------------------------------------------------------------------------------

    def note(self, op: OpName, i: int, kinds: int, reason: str, lineage: str) -> None:
        what = f"{op.prefix}.{op.api}" if op.kind == "api" else op.api
        key = (what, reason, kinds & _DIRTY)
        if key in self.look:
            self.look[key].count += 1
        else:
            self.look[key] = LookAlike(what, reason, kinds & _DIRTY, lineage, 1, i, op.name)

    def add(self, event: Event) -> None:
        self.events.append(event)
        if event.kinds & _NAN:
            self.nan_seen = True

    def event(self, record: Record, kind: str, given: int, **more: object) -> Event:
        i = record.op_index
        kinds = int(record.kinds(OUTPUT)) & _DIRTY or given & _DIRTY
        phase, micro = self.placed(record.name)
        made = Event(i, record.name.name, kind, kinds, given, phase, micro, self.innermost(record.name))
        made.slots_key = _slots_key(record)
        for key, value in more.items():
            setattr(made, key, value)
        return made

    # --- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        index = self.dump.index
        explained = 0
        queue: deque[int] = deque(index.dirty())
        while queue:
            i = queue.popleft()
            given, out, parameter = int(index.input[i]), int(index.output[i]), int(index.parameter[i])
            if self.nan_seen and given & _NAN:
                explained += 1
                continue
            if len(self.events) >= MAX_EVENTS:
                self.digest.more_events += 1
                break
            if self.garbage:
                self.garbage = [g for g in self.garbage if i - g.index <= _CLOSE]
            self.step(i, parse_name(index.names[i]), given, out, parameter)
        for i in self.deferred:
            op = parse_name(index.names[i])
            if not self.dirty_inside(i, op):
                self.container(i, op)
        self.finish()

    def step(self, i: int, op: OpName, given: int, out: int, parameter: int) -> None:
        if i in self.calls:
            self.communicate(i)
        elif apis.is_communication(op):
            pass
        elif op.kind == PARAMETERS_GRAD:
            if not self.nan_seen:
                self.gradient(i, op, out)
        elif op.kind == DEBUG:
            if not self.nan_seen:
                after, name = self.last_clean(i)
                self.add(self.event(self.dump.record(i), "gap", out, after=after, after_name=name, kinds=out & _DIRTY))
        elif not out & _DIRTY:
            self.absorb(i, op, given)
        elif (given | parameter) & _NAN:
            if not self.nan_seen:
                self.unexplained(i, op, given, parameter)
        elif (given | parameter) & _INF:
            self.from_infinity(i, op, given, parameter, out)
        else:
            self.introduced(i, op, out)

    def communicate(self, i: int) -> None:
        """Take note of what comes in and goes out."""
        for call in self.calls[i]:
            if call.given & _INF and not call.given & _NAN:
                numel = call.given_signature.numel if call.given_signature else None
                for flow in self.infinities:
                    if (
                        flow.event.kind == "gap"
                        and not flow.event.kinds & int(Kinds.POS_INF)
                        and call.api not in REDUCING
                    ):
                        continue  # a mask, made by something unrecorded, that is sent along
                    if any(s[0] == numel or numel is None for s in flow.signatures):
                        flow.last, flow.at = "live", i
            own = call.api not in ("broadcast", "scatter") or call.peer in (-1, self.dump.place.rank)
            if call.given & _NAN and own and not self.nan_seen:
                self.sent_unexplained(i, call)
            elif self.sums_infinity(call):
                self.infinity_unexplained(i, call)
            if call.got & _DIRTY and not call.given & call.got & _NAN:
                self.received |= call.got & _DIRTY
            if call.got & _NAN:
                self.nan_seen = True
            if call.api == "recv" and call.got & int(Kinds.UNKNOWN) and call.got_signature:
                self.unseen[call.got_signature.numel] = i

    def sent_unexplained(self, i: int, call: CommCall) -> None:
        """NaN goes out that nothing recorded on this rank has made: a buffer or parameter, or an unrecorded operator."""
        record = self.dump.record(i)
        dirty = [v for v in _dirty_inputs(record) if call.given_signature and v.numel == call.given_signature.numel]
        if self.use_of_garbage(i, record.name, record, dirty, call.got):
            return
        flow = self.flow_before(i, dirty)
        if flow is not None:
            self.turned(flow, i)
        elif call.api == "broadcast":
            self.add(self.event(record, "parameter", call.given, lineage="structural"))
        else:
            after, name = self.last_clean(i)
            self.add(self.event(record, "gap", call.given, after=after, after_name=name, lineage="unknown"))

    def sums_infinity(self, call: CommCall) -> bool:
        """Does an infinity of this rank go into a sum? Gradients and losses do, masks do not."""
        return (
            call.api in REDUCING
            and call.reduce_op not in ("MAX", "MIN")  # a maximum may start from -inf
            and bool(call.given & _INF)
            and not call.given & _NAN
            and not self.nan_seen
            and not self.received & _INF
            and not any(f.last == "live" for f in self.infinities)
        )

    def infinity_unexplained(self, i: int, call: CommCall) -> None:
        """An infinity goes into a sum that nothing recorded on this rank has made: the gradient of a weight, mostly."""
        record = self.dump.record(i)
        dirty = [v for v in _dirty_inputs(record) if call.given_signature and v.numel == call.given_signature.numel]
        flow = self.flow_before(i, dirty)
        if flow is not None:
            flow.last, flow.at = "live", i
        elif not self.use_of_garbage(i, record.name, record, dirty, call.got):
            after, name = self.last_clean(i)
            made = self.event(record, "gap", call.given, after=after, after_name=name, lineage="unknown")
            if 0 <= self.digest.backward_from < i and len(self.chain(record.name.name)) == 1:
                made.phase = BACKWARD
            self.add(made)

    def gradient(self, i: int, op: OpName, out: int) -> None:
        """A dirty parameter gradient whose module got and gave finite gradients: the product for it is not recorded."""
        if any(f.last in ("produced", "carried") and f.event.phase == BACKWARD for f in self.infinities):
            return
        at = self.dump.find(f"{op.prefix}.{op.path}.{op.api}.{BACKWARD}.{op.call}")
        index = self.dump.index
        if at is not None and (int(index.input[at]) | int(index.output[at])) & _DIRTY:
            return
        name = self.names[at] if at is not None else ""
        made = self.event(self.dump.record(i), "gap", 0, after=at if at is not None else -1, after_name=name)
        made.kinds, made.phase, made.lineage = out & _DIRTY, BACKWARD, "structural"
        self.add(made)
        self.nan_seen = True  # an infinite gradient, too, goes into every update from here on

    def absorb(self, i: int, op: OpName, given: int) -> None:
        """Dirty input, clean output."""
        if not given & _DIRTY:
            return
        flows = [f for f in self.infinities if f.last in ("produced", "carried")]
        if not flows:
            return
        for v in _dirty_inputs(self.dump.record(i)):
            for flow in flows:
                if _signature(v) in flow.signatures:
                    flow.last, flow.at = "absorbed", i

    def introduced(self, i: int, op: OpName, out: int) -> None:
        """Clean inputs and parameters, dirty output."""
        if apis.is_allocation(op):
            record = self.dump.record(i)
            self.garbage.extend(_Garbage(i, v.numel) for v in record.of(OUTPUT) if v.kinds.dirty)
            self.note(op, i, out, "allocation", "structural")
            return
        if op.kind == "module" and self.has_children(op):
            if op.direction == BACKWARD:
                self.deferred.append(i)
            elif not self.dirty_inside(i, op):
                self.container(i, op)
            return
        if apis.is_fill(op) and not out & _NAN:
            self.fills |= out & _INF
            self.note(op, i, out, "fill", "name")
            return
        record = self.dump.record(i)
        if _only_placeholders(op, record):
            self.note(op, i, out, "placeholder_output", "name")
            return
        event = self.event(record, "introduced", 0)
        if out & _NAN:
            self.mark_twin(event, op)
            self.add(event)
        else:
            self.infinities.append(_Infinity(event, {_signature(v) for v in record.of(OUTPUT) if v.kinds.dirty}))

    def container(self, i: int, op: OpName) -> None:
        index = self.dump.index
        if self.nan_seen and int(index.output[i]) & _NAN and self.received & _NAN and op.direction == BACKWARD:
            return  # NaN was about on this rank already: an unrecorded path inside brings nothing new
        after, name = self.last_clean(i, op)
        self.add(self.event(self.dump.record(i), "container", 0, after=after, after_name=name, lineage="structural"))

    def from_infinity(self, i: int, op: OpName, given: int, parameter: int, out: int) -> None:
        """Infinite but NaN-free inputs, dirty output: handed on, or turned into NaN."""
        about = (self.fills | self.received) & _INF
        if not out & _NAN and not self.infinities and not given & _INF & ~about and not self.garbage:
            return  # a mask on its way
        record = self.dump.record(i)
        dirty = _dirty_inputs(record)
        if self.use_of_garbage(i, op, record, dirty, out):
            return
        flow = self.flow_of(i, dirty)
        if not out & _NAN:
            if flow is not None:
                flow.last, flow.at = "carried", i
                flow.signatures |= {_signature(v) for v in record.of(OUTPUT) if v.kinds.dirty}
            elif given & _INF & ~about:
                after, name = self.last_clean(i)
                kind = "parameter" if only_parameters(op, record, dirty) else "gap"
                made = self.event(record, kind, given, after=after, after_name=name)
                written = [v for v in record.of(OUTPUT) if v.kinds.dirty]
                if apis.is_copy(op):  # uninitialised memory is handed about by copies, and need not matter
                    self.garbage.extend(_Garbage(i, v.numel, made) for v in written)
                    self.note(op, i, out, "copied_unread", "structural")
                else:
                    signatures = {_signature(v) for v in (*dirty, *written)}
                    self.infinities.append(_Infinity(made, signatures, "carried", i))
            return
        if flow is not None:
            self.turned(flow, i)
        elif op.kind == "module" and self.has_children(op) and self.dirty_inside(i, op):
            self.nan_seen = True
        elif self.received & given & int(Kinds.POS_INF):
            self.nan_seen = True  # the infinity that came in has turned into NaN here
        else:
            kind = "parameter" if only_parameters(op, record, dirty) else "introduced"
            event = self.event(record, kind, given)
            self.mark_twin(event, op)
            self.add(event)

    def turned(self, flow: _Infinity, i: int) -> None:
        """The infinity has become NaN at record ``i``: it matters, and explains what follows."""
        flow.last, flow.at = "live", i
        flow.event.converted_at = i
        self.nan_seen = True

    def unexplained(self, i: int, op: OpName, given: int, parameter: int) -> None:
        """The first NaN that is handed on, and nothing recorded on this rank has made it."""
        record = self.dump.record(i)
        dirty = _dirty_inputs(record)
        out = int(record.kinds(OUTPUT))
        if self.use_of_garbage(i, op, record, dirty, out):
            return
        if only_parameters(op, record, dirty):
            self.add(self.event(record, "parameter", (given | parameter) & _DIRTY, lineage="structural"))
            return
        flow = self.flow_before(i, dirty)
        if flow is not None:  # an unrecorded operator has made NaN of an infinity that is recorded
            self.turned(flow, i)
            return
        if self.is_first_of_model(i, op) or _comes_from_outside(op, record, dirty):
            self.add(self.event(record, "input_data", given, lineage="structural"))
            return
        after, name = self.last_clean(i)
        gap = self.event(record, "gap", given, after=after, after_name=name, lineage="unknown")
        if apis.is_copy(op):  # uninitialised memory is handed about by copies, and need not matter
            self.garbage.extend(_Garbage(i, v.numel, gap) for v in record.of(OUTPUT) if v.kinds.dirty)
            self.note(op, i, out, "copied_unread", "structural")
        else:
            self.add(gap)

    def use_of_garbage(self, i: int, op: OpName, record: Record, dirty: list[Value], out: int) -> bool:
        """Does this record read memory that an allocation left unwritten? Copies hand it on, others use it."""
        if op.direction == BACKWARD:  # its inputs are gradients
            return False
        sources = [
            g
            for g in self.garbage
            for v in dirty
            if v.numel == g.numel and not g.index < self.unseen.get(v.numel or 0, -1) < i
        ]
        if not sources:
            return False
        source = sources[-1]
        if apis.is_copy(op) or (op.kind == "module" and self.has_children(op)):
            self.garbage.extend(_Garbage(source.index, v.numel, source.gap) for v in record.of(OUTPUT) if v.kinds.dirty)
            self.note(op, i, out, "allocation_copied", "matched")
            return True
        if not self.calls and self.dump.place.rank is not None:  # NaN may have come from elsewhere without a record
            return False
        self.garbage_used.add(source.index)
        if source.gap is not None:
            self.add(source.gap)
            return True
        given = int(record.kinds(INPUT))
        made = self.event(record, "uninitialised", given, after=source.index, after_name=self.names[source.index])
        made.lineage = "matched"
        self.add(made)
        return True

    def flow_of(self, i: int, dirty: list[Value]) -> _Infinity | None:
        """The infinity (latest first) that one of these inputs is, by its figures; else by number of elements."""
        for exact in (True, False):
            for flow in reversed(self.infinities):
                for v in dirty:
                    s = _signature(v)
                    same_size = not exact and flow.last != "absorbed" and any(s[0] == o[0] for o in flow.signatures)
                    if s in flow.signatures or same_size:
                        if not exact:
                            flow.event.lineage = "structural"
                        return flow
        for flow in reversed(self.infinities):  # a part of it, cut out by something that is not recorded
            near = i - max(flow.event.index, flow.at) <= _CLOSE // 2
            if (
                near
                and flow.last in ("produced", "carried")
                and any(int(v.kinds) & flow.event.kinds & _INF for v in dirty)
            ):
                flow.event.lineage = "structural"
                return flow
        return None

    def flow_before(self, i: int, dirty: list[Value]) -> _Infinity | None:
        """The latest infinity that nothing has absorbed and that may have become this NaN.

        By number of elements, or any gradient: those are summed up in buffers that no record shows.
        """
        for flow in reversed(self.infinities):
            if flow.last in ("produced", "carried", "live") and flow.event.phase == BACKWARD:
                return flow
            if flow.last in ("produced", "carried") and i - max(flow.event.index, flow.at) < LOOK_BACK:
                sizes = {s[0] for s in flow.signatures}
                if any(v.numel in sizes for v in dirty):
                    flow.event.lineage = "structural"
                    return flow
        return None

    def mark_twin(self, event: Event, op: OpName) -> None:
        """In a recompute: was the same module's first call clean?"""
        if event.phase != "recompute":
            return
        for j in self.dirty_outputs[self.dirty_outputs < event.index].tolist():
            other = parse_name(self.names[j])
            if other.direction != FORWARD or not int(self.dump.index.output[j]) & _NAN:
                continue
            if event.module and other.kind == "module" and module_key(other) == event.module:
                event.twin_clean = False
                return
            if not event.module and other.kind == "api" and (other.prefix, other.api) == (op.prefix, op.api):
                event.twin_clean = False
                return
        event.twin_clean = True

    def finish(self) -> None:
        for flow in self.infinities:
            event = flow.event
            op = parse_name(event.name)
            if flow.last == "produced" and not self.final(event, op):
                self.note(op, event.index, event.kinds, "unused", "unknown")
            elif flow.last == "absorbed":
                self.note(op, event.index, event.kinds, "absorbed", "matched")
            elif event.kind == "gap" and flow.last == "carried" and not event.kinds & int(Kinds.POS_INF):
                self.note(op, event.index, event.kinds, "mask_input", "structural")
            else:
                self.events.append(event)
        for key in [
            k
            for k, v in self.look.items()
            if v.reason in ("allocation", "copied_unread") and v.index in self.garbage_used
        ]:
            self.look[key].count -= 1
            if not self.look[key].count:
                del self.look[key]
        self.events.sort(key=lambda e: e.index)

    def final(self, event: Event, op: OpName) -> bool:
        """Nothing recorded reads it, and still it matters: a loss, a gradient, or the last record."""
        return apis.is_loss(op) or op.direction == BACKWARD or event.index == len(self.names) - 1


def _dirty_inputs(record: Record) -> list[Value]:
    return [v for v in record.of(INPUT, PARAMETER) if v.kinds.dirty]


def _comes_from_outside(op: OpName, record: Record, dirty: list[Value]) -> bool:
    """In a recorded graph (the output requires grad) data is what requires none: nothing of the model has made it."""
    if op.direction == BACKWARD or not dirty:
        return False
    graph = any(v.requires_grad for v in record.of(OUTPUT))
    return graph and all(v.requires_grad is False and v.role == INPUT for v in dirty)


def _signature(v: Value) -> tuple[int | None, float, float]:
    """Number of elements and extrema, NaN made comparable. A cast or a view keeps them."""

    def figure(x: float | int | bool | None) -> float:
        return 0.0 if x is None else 1e999 if isinstance(x, float) and math.isnan(x) else float(x)

    return v.numel, figure(v.max), figure(v.min)


def only_parameters(op: OpName, record: Record, dirty: list[Value]) -> bool:
    return bool(dirty) and all(v.role == PARAMETER or apis.is_parameter_argument(op, v.path) for v in dirty)


def _only_placeholders(op: OpName, record: Record) -> bool:
    places = apis.PLACEHOLDER_OUTPUTS.get(apis.base(op))
    if not places or op.direction != FORWARD:
        return False
    dirty = [v for v in record.of(OUTPUT) if v.kinds.dirty]
    return bool(dirty) and all(v.path.split(".")[1].isdecimal() and int(v.path.split(".")[1]) in places for v in dirty)


def _slots_key(record: Record) -> str:
    text = repr(
        [(v.path, v.dtype, v.shape, v.max, v.min, v.mean, v.norm) for v in record.of(INPUT, PARAMETER) if v.is_tensor]
    )
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
