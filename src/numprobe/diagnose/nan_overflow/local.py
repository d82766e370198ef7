"""Stage 2, one rank: walk its dirty records in order and keep those that nothing on this rank explains.

The walk works on flags (which slots of a record are non-finite, and how) and decodes a record only where its figures
decide: communication, allocations, and what might be an origin. After the first NaN only records with NaN-free inputs can
be origins, so the tens of thousands of records that merely hand NaN on cost nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.comm import REDUCING, CommCall, comm_calls
from numprobe.diagnose.nan_overflow.digest import Event, LookAlike, RankDigest
from numprobe.formats.dump import RankDump
from numprobe.record.names import BACKWARD, DEBUG, FORWARD, PARAMETERS_GRAD, OpName, module_key, parse_name
from numprobe.record.nonfinite import DIRTY, INFINITE, Kinds
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, Record, Value

MAX_EVENTS = 32
_NAN, _INF, _DIRTY = int(Kinds.NAN), int(INFINITE), int(DIRTY)
_LOOK_BACK = 256
_EDGE = 1 << 14
_CLOSE = 24  # records between an allocation and its use: all-NaN tensors of one size cannot be told apart further off
_COMMUNICATION = ("Distributed.", "MintDistributed.")
_ELEMENTWISE_SOURCE = ("optimizer", "clip_grad")


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
class _Walk:
    dump: RankDump
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

    @property
    def names(self) -> list[str]:
        return self.dump.index.names

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

    def chain(self, name: str) -> list[str]:
        return self.dump.tree.chain(name)

    def innermost(self, op: OpName) -> str:
        """``path.Class`` of the module that the record is, or is called by."""
        for name in self.chain(op.name):
            at = parse_name(name)
            if at.is_module:
                return f"{at.path}.{at.api}"
        return ""

    def placed(self, op: OpName) -> tuple[str, int | None]:
        """Phase and micro-batch, as far as the module tree tells."""
        chain = self.chain(op.name)
        phase = BACKWARD if op.direction == BACKWARD else FORWARD
        below_backward = any(parse_name(n).direction == BACKWARD for n in chain[1:])
        if phase == FORWARD and (below_backward or (len(chain) == 1 and self.recomputes(op.name))):
            phase = "recompute"
        if chain[-1] in _ELEMENTWISE_SOURCE:
            phase = "optimizer"
        tree = self.dump.tree
        for name in chain:
            if name in tree.micro_step:
                return phase, tree.micro_step[name]
        modules = [at for n in chain if (at := parse_name(n)).kind == "module"]
        if not modules or phase not in (FORWARD, BACKWARD):
            return phase, None
        root = modules[-1]
        calls = self.module_calls
        usual = Counter(calls.values()).most_common(1)[0][0]
        a_micro_batch = max(1, round(calls[module_key(root)] / usual))  # a module that is used twice counts twice
        return phase, root.call // a_micro_batch

    def recomputes(self, name: str) -> bool:
        """Does activation checkpointing make this forward call again during backward, by its stack?"""
        frames = self.dump.stacks.get(name, ())
        return any("checkpoint" in f and ("recompute" in f or "in backward" in f) for f in frames)

    @cached_property
    def module_calls(self) -> Counter[str]:
        """Forward calls by module."""
        ops = (parse_name(n) for n in self.names if n.startswith(("Module.", "Cell.")) and f".{FORWARD}." in n)
        return Counter(module_key(op) for op in ops) or Counter({"": 1})

    @cached_property
    def parents(self) -> set[str]:
        """Module records that have recorded children."""
        recorded = set(self.names)
        inside = {p for n, p in self.dump.tree.parents.items() if p and n in recorded}
        if not self.dump.tree.present or not inside:
            for name in self.names:
                op = parse_name(name) if name.startswith(("Module.", "Cell.")) else None
                if op and op.kind == "module":
                    parts = op.path.split(".")
                    inside.update(f"{op.direction}:{'.'.join(parts[:k])}" for k in range(1, len(parts)))
        return inside

    def has_children(self, op: OpName) -> bool:
        return op.name in self.parents or f"{op.direction}:{op.path}" in self.parents

    def inside(self, op: OpName, other: OpName, i: int, j: int) -> bool:
        """Is record ``other`` (at j) within the module call ``op`` (at i)?"""
        if self.dump.tree.present and other.name in self.dump.tree.parents:
            return op.name in self.chain(other.name)[1:]
        if other.is_module:
            return other.direction == op.direction and other.path.startswith(op.path + ".")
        return other.direction == op.direction and abs(i - j) < _LOOK_BACK  # no tree: an API close by

    def dirty_inside(self, i: int, op: OpName) -> bool:
        """Has a record within the module call at ``i`` a dirty output?"""
        index = self.dump.index
        dirty = self.dirty_outputs
        at = int(np.searchsorted(dirty, i))
        around = dirty[max(0, at - _LOOK_BACK) : at][::-1].tolist()
        if op.direction == BACKWARD:  # rows of one backward module call are in no fixed order
            around += dirty[at + 1 : at + 1 + _LOOK_BACK].tolist()
        for j in around:
            other = parse_name(index.names[j])
            if j != i and other.kind != PARAMETERS_GRAD and self.inside(op, other, i, j):
                return True
        return False

    @cached_property
    def dirty_outputs(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.flatnonzero(self.dump.index.output & _DIRTY)

    def last_clean(self, i: int, within: OpName | None = None) -> tuple[int, str]:
        """The last record before ``i`` with a clean output (inside the module call ``within``, if given)."""
        index = self.dump.index
        for j in range(i - 1, max(-1, i - 1 - 4 * _LOOK_BACK), -1):
            if index.output[j] & _DIRTY:
                continue
            op = parse_name(index.names[j])
            if op.kind == PARAMETERS_GRAD or apis.is_allocation(op):
                continue
            if within is None or self.inside(within, op, i, j):
                return j, op.name
        return -1, ""

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
                kind = "parameter" if _only_parameters(op, record, dirty) else "gap"
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
            kind = "parameter" if _only_parameters(op, record, dirty) else "introduced"
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
        if _only_parameters(op, record, dirty):
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
            if flow.last in ("produced", "carried") and i - max(flow.event.index, flow.at) < _LOOK_BACK:
                sizes = {s[0] for s in flow.signatures}
                if any(v.numel in sizes for v in dirty):
                    flow.event.lineage = "structural"
                    return flow
        return None

    def is_first_of_model(self, i: int, op: OpName) -> bool:
        """No recorded operator of this micro-batch can have made its input: the model's call begins here."""
        if op.direction == BACKWARD:
            return False
        root = parse_name(self.chain(op.name)[-1])
        for j in range(i - 1, max(-1, i - 1 - _LOOK_BACK), -1):
            other = parse_name(self.names[j])
            if apis.is_allocation(other) or apis.is_copy(other) or apis.is_fill(other):
                continue
            top = parse_name(self.chain(other.name)[-1])
            if apis.is_communication(other) or root.kind != "module":
                return False
            if other.direction == BACKWARD:
                return True
            return top.kind == "api" or (top.kind == "module" and top.call != root.call)
        return True

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


def digest_rank(dump: RankDump) -> RankDigest:
    """Read one rank: its communication calls, its unexplained events, its look-alikes."""
    place, index = dump.place, dump.index
    damage = index.damage
    digest = RankDigest(
        place.key,
        place.rank,
        status=index.status,
        reason=damage.reason if damage else "",
        reason_at=damage.offset if damage else -1,
        last_record=index.names[-1] if index.names else "",
        records=len(index),
        size=index.size,
        has_extrema=index.has_extrema,
        framework=index.info.framework,
        level=index.info.level,
        task=index.info.task,
        repeated=len(index.repeated),
        edges=edges_of(place.dump),
    )
    dirty = np.flatnonzero(index.output & _DIRTY)
    digest.dirty_records = int(np.count_nonzero((index.input | index.output | index.parameter) & _DIRTY))
    digest.first_dirty = int(dirty[0]) if len(dirty) else -1
    digest.backward_from = _first_backward(index.names)
    digest.program, digest.begins, digest.ends = _stage(index.names, digest)
    with dump.kept_open():
        positions = [i for i, n in enumerate(index.names) if n[0:1] in "DM" and n.startswith(_COMMUNICATION)]
        digest.calls = list(comm_calls((parse_name(index.names[i]), i, raw) for i, _, raw in dump.raw(positions)))
        if len(dirty) or index.parameter.any():
            walk = _Walk(dump, digest)
            walk.run()
            digest.events = walk.events
            digest.look_alikes = list(walk.look.values())
            if walk.events:
                _context(dump, digest)
    return digest


def _first_backward(names: list[str]) -> int:
    return next(
        (i for i, n in enumerate(names) if ".backward" in n and (n.endswith(".backward") or ".backward." in n)), -1
    )


def edges_of(file: Path) -> str:
    """blake2b of a file's first and last 16 kB: tells a changed input at little cost."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        digest.update(content.read(_EDGE))
        size = content.seek(0, os.SEEK_END)
        if size > _EDGE:
            content.seek(max(_EDGE, size - _EDGE))
            digest.update(content.read())
    return digest.hexdigest()


def _context(dump: RankDump, digest: RankDigest) -> None:
    """Figures that decide between a fault and a step that is meant to overflow, or one that began dirty."""
    index = dump.index
    names = index.names
    if digest.events and digest.events[0].kind == "parameter":
        digest.parameters, digest.dirty_parameters = _sampled_parameters(dump)
    digest.optimizer_records = sum(1 for p in dump.tree.parents.values() if p == "optimizer") or sum(
        1 for n in names[digest.backward_from :] if any(f".{word}" in n for word in apis.OPTIMIZER_STEPS)
    )
    nan_outputs = (parse_name(names[i]) for i in np.flatnonzero(index.output & _NAN).tolist()[:_LOOK_BACK])
    digest.backward_only = all(e.phase != FORWARD for e in digest.events) and not any(
        op.direction == FORWARD and not apis.is_communication(op) and apis.is_kernel(op) for op in nan_outputs
    )
    for i, name in enumerate(names):
        op = parse_name(name)
        if op.kind == "api" and not (
            apis.is_communication(op) or apis.is_allocation(op) or apis.is_copy(op) or apis.is_fill(op)
        ):
            digest.first_computing = i
            break


def _stage(names: list[str], digest: RankDigest) -> tuple[str, bool, bool]:
    """What tells one pipeline stage from another: the first and the last forward module, or API where there are none."""
    last = digest.backward_from if digest.backward_from >= 0 else len(names)
    loss = any(apis.is_loss(parse_name(n)) for n in names[max(0, last - 16) : last])
    modules = [n for n in names[:last] if n.startswith(("Module.", "Cell."))]
    if modules:
        begin, *tail = (module_key(parse_name(n)).lower() for n in (modules[0], *modules[-8:]))
        head = any(word in path for path in tail for word in ("head", "output_layer", "loss"))
        return f"{begin} {tail[-1]}", "embed" in begin, head or loss
    operators = [op for n in names[:16] if (op := parse_name(n)).kind == "api" and apis.is_kernel(op)]
    begins = any("embedding" in op.api for op in operators)
    return f"{begins} {loss}", begins, loss


def _sampled_parameters(dump: RankDump) -> tuple[int, int]:
    """Of up to 64 forward records that read parameters, how many there are and how many read a non-finite one."""
    names = dump.index.names
    reads = [
        i
        for i, n in enumerate(names)
        if n.endswith(".forward") and apis.base(parse_name(n)).lower() in apis.PARAMETER_ARGUMENTS
    ] or [i for i, n in enumerate(names) if n.startswith(("Module.", "Cell.")) and f".{FORWARD}." in n]
    seen = dirty = 0
    for record in dump.records(reads[:: max(1, len(reads) // 64)]):
        values = [v for v in record.of(INPUT, PARAMETER) if v.is_tensor and _only_parameters(record.name, record, [v])]
        seen += bool(values)
        dirty += any(v.kinds.dirty for v in values)
    return seen, dirty


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


def _only_parameters(op: OpName, record: Record, dirty: list[Value]) -> bool:
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
