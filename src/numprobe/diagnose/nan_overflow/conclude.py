"""Stage 5: turn origins into a conclusion: records, bound, chain, code line, peers, evidence, confidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from numprobe.diagnose.nan_overflow import apis
from numprobe.diagnose.nan_overflow.classify import Finding, classify
from numprobe.diagnose.nan_overflow.comm import REDUCING
from numprobe.diagnose.nan_overflow.complete import NAMED
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.join import ASSUMED, VERIFIED, Joined
from numprobe.diagnose.nan_overflow.order import NEVER, Order
from numprobe.diagnose.nan_overflow.result import (
    Candidate,
    ChainLink,
    Citation,
    Evidence,
    Frame,
    Params,
    Slot,
    Term,
    Values,
)
from numprobe.diagnose.nan_overflow.sources import Origin, Verdicts, starts_of
from numprobe.formats.dump import RankDump
from numprobe.record.dtypes import FLOATS, float_format
from numprobe.record.names import BACKWARD, FORWARD, parse_name
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.record.trace import INPUT, OUTPUT, PARAMETER, Record, Value
from numprobe.report import numbers

MAX_PEERS = 32
_FRAME = re.compile(r"File (?P<file>.+?), line (?P<line>\d+), in (?P<function>[^,]+),?\s*(?P<code>.*)", re.S)
_PLUMBING = re.compile(
    r"(^|/)(site-packages|dist-packages)/(torch|torch_npu|mindspore|msprobe|numprobe)/|(^|/)(torch|torch_npu|msprobe|mindspore)/"
    r"|/lib/python3[^/]*/(?!site-packages|dist-packages)|multiprocessing|importlib|<frozen"
)
LIMITS = (0.05, 0.97)


@dataclass
class View:
    """What the last stage sees: one step's digests, joins and order, and lazy access to every rank's records."""

    step: int | None
    digests: Sequence[RankDigest]
    dumps: dict[str, RankDump]  # by rank key, readable ranks only
    joined: Joined
    order: Order
    verdicts: Verdicts
    relative: dict[str, str]  # rank key -> path of dump.json relative to the dump folder
    left_out: tuple[int, ...] = ()  # ranks that are there and were not to be read
    _before: dict[int, set[int]] = field(default_factory=dict)  # by origin
    clean_peers: dict[tuple[str, int], list[tuple[RankDigest, Record]]] = field(default_factory=dict)

    def cite(self, digest: RankDigest, index: int, name: str, slot: str = "") -> Citation:
        dump = self.dumps.get(digest.key)
        offset, length = -1, 0
        if dump is not None and 0 <= index < len(dump.index):
            offset = int(dump.index.start[index])
            length = int(dump.index.end[index]) - offset
        file = self.relative.get(digest.key, "")
        return Citation(digest.key, digest.rank, self.step, index, name, slot, file, offset, length)

    @property
    def recorded(self) -> bool:
        """Does the dump hold communication records at all?"""
        return any(d.calls for d in self.digests)

    def unread(self) -> list[RankDigest]:
        return [d for d in self.digests if d.status != "ok"]

    def could_precede(self, rank: int | None, origin: Origin) -> bool:
        """Could what was not read of this rank have happened before the origin and reached it?

        Where no communication is recorded, any rank may have sent what a record got; an operator with clean inputs got nothing.
        """
        if rank is None:
            return False
        if not self.recorded:
            got = origin.weak or origin.kind in ("input_data", "outside") or parse_name(origin.event.name).is_module
            return got and origin.digest.rank is not None
        if id(origin) not in self._before:
            self._before[id(origin)] = self.order.unread_before(starts_of(origin))
        before = self._before[id(origin)]
        return rank in before or (rank in self.left_out and not before.isdisjoint(self.left_out))

    @property
    def never_dumped(self) -> bool:
        """Have most ranks no folder? Then only some were chosen to be recorded."""
        return 2 * sum(d.reason == NAMED for d in self.digests) > len(self.digests)

    def unseen(self) -> list[int]:
        """Ranks that were not read, or not in full, or not to be read."""
        return sorted({*self.left_out, *(d.rank for d in self.unread() if d.rank is not None)})

    def unseen_could_be(self, origin: Origin) -> list[int]:
        """Ranks that may be the source in place of ``origin``, where no communication is recorded that would tell."""
        return [] if self.recorded else [r for r in self.unseen() if self.could_precede(r, origin)]

    def to_read(self, ranks: Sequence[int]) -> Params:
        """What to do to see these ranks too."""
        return Params(
            "check.whole_step" if set(ranks) <= set(self.left_out) else "check.read_rank", {"ranks": list(ranks)}
        )


def slot_of(value: Value) -> Slot:
    """A leaf as the report shows it."""
    scalar = "" if value.scalar is None else str(value.scalar)
    ranks = value.attributes.get("group_ranks")
    if isinstance(ranks, list):
        scalar = f"ranks {', '.join(map(str, ranks))}"
    return Slot(
        value.path,
        value.role,
        value.value_type,
        value.dtype,
        value.shape,
        value.max,
        value.min,
        value.mean,
        value.norm,
        value.kinds.words() if value.is_tensor else "",
        scalar,
    )


def frame_of(frames: Sequence[str]) -> Frame | None:
    """The innermost frame of the user's code: framework, dump tool and standard library are passed over."""
    for text in frames:
        found = _FRAME.match(text.strip())
        if found is None or _PLUMBING.search(found["file"]):
            continue
        file = "/".join(found["file"].replace("\\", "/").split("/")[-2:])
        return Frame(file, int(found["line"]), found["function"].strip(), found["code"].strip())
    return None


def candidate(view: View, origin: Origin, *, deep: bool) -> tuple[Candidate, Finding]:
    """An origin with everything that can be shown of it. ``deep``: look at peers too."""
    digest, event = origin.digest, origin.event
    dump = view.dumps[digest.key]
    record = dump.record(event.index)
    op = record.name
    forward = _forward_of(dump, record)
    finding = classify(origin.kind, event, record, forward, numbers.stat)
    clazz = finding.clazz
    if origin.kind == "communication":
        clazz, finding = _communication(view, origin, record, finding)
    elif origin.kind == "outside":
        clazz = "source_outside_view"
    stack = dump.stacks.get(op.name) or (dump.stacks.get(forward.name.name) if forward else None) or []
    layer = op.layer
    if layer is None and event.module:
        layer = parse_name(f"Module.{event.module}.forward.0").layer
    made = Candidate(
        origin.ranks,
        digest.key,
        digest.rank,
        view.step,
        op.name,
        event.index,
        origin.kind,
        clazz,
        direction=op.direction or FORWARD,
        phase=event.phase,
        micro_batch=event.micro_batch,
        layer=layer,
        module=event.module,
        kinds=Kinds(event.kinds & int(DIRTY)).words(),
        gap_after=(event.after_name or None) if origin.kind in ("gap", "container") else None,
        gap_after_index=event.after if origin.kind in ("gap", "container") else -1,
        slots=[slot_of(v) for v in record.values if v.value_type != "null"],
        chain=_chain(dump, op.name),
        frame=frame_of(stack),
        stack=list(stack),
        bound=finding.bound,
        citation=view.cite(digest, event.index, op.name),
        explains=origin.explains,
        suspects=origin.suspects,
    )
    if deep and origin.kind == "introduced":
        made.peers_clean = len(_peers(view, origin, record))
    return made, finding


def _forward_of(dump: RankDump, record: Record) -> Record | None:
    """The forward call of a backward record: same name, same call."""
    op = record.name
    if op.direction != BACKWARD:
        return None
    if op.kind == "api":
        name = op.name.removesuffix(BACKWARD) + FORWARD
    else:
        head, _, tail = op.name.rpartition(f".{BACKWARD}.")
        name = f"{head}.{FORWARD}.{tail}"
    at = dump.find(name)
    return dump.record(at) if at is not None else None


def _chain(dump: RankDump, name: str) -> list[ChainLink]:
    index = dump.index
    links = []
    for link in dump.tree.chain(name):
        at = dump.find(link)
        if at is None:
            links.append(ChainLink(link))
        else:
            links.append(
                ChainLink(
                    link,
                    bool((int(index.input[at]) | int(index.parameter[at])) & int(DIRTY)),
                    bool(int(index.output[at]) & int(DIRTY)),
                    at,
                )
            )
    return links


def _communication(view: View, origin: Origin, record: Record, finding: Finding) -> tuple[str, Finding]:
    """All members gave finite data: did the sum leave the range, or is the communication at fault?"""
    instance = origin.instance
    assert instance is not None
    out = next((v for v in record.of(OUTPUT) if v.is_tensor), None)
    form = float_format(out.dtype) if out is not None else None
    sizes = [max(abs(s.max or 0.0), abs(s.min or 0.0)) for c in instance.calls.values() if (s := c.given_signature)]
    members = Params(
        "evidence.communication_inputs",
        {"members": len(instance.calls), "op": record.name.name, "instance": instance.id},
    )
    if form is not None and instance.api in REDUCING and sizes and sum(sizes) > form.max:
        estimate = Params("evidence.estimate", {"estimate": sum(sizes), "dtype": form.name, "dtype_max": form.max})
        return "range_overflow", Finding("range_overflow", (members, estimate), None, True)
    proved = instance.join in (VERIFIED, "consistent")
    return "communication_fault", Finding("communication_fault", (members,), None, proved)


def _peers(view: View, origin: Origin, record: Record) -> list[tuple[RankDigest, Record]]:
    """Ranks on which the same record is clean with equal shapes, and those records (nearest ranks first)."""
    key = (origin.digest.key, origin.event.index)
    if key not in view.clean_peers:
        view.clean_peers[key] = _find_peers(view, origin, record)
    return view.clean_peers[key]


def _find_peers(view: View, origin: Origin, record: Record) -> list[tuple[RankDigest, Record]]:
    own = set(origin.ranks)
    home = origin.digest.rank
    others = [d for d in view.digests if d.key in view.dumps and d.rank not in own and d.key != origin.digest.key]
    others.sort(key=lambda d: (abs((d.rank or 0) - (home or 0)), d.rank or 0))
    shapes = [(v.path, v.shape, v.dtype) for v in record.of(INPUT, PARAMETER, OUTPUT) if v.is_tensor]
    found: list[tuple[RankDigest, Record]] = []
    for digest in others[:MAX_PEERS]:
        dump = view.dumps[digest.key].fresh()
        at = dump.find(record.name.name)
        if at is None or (int(dump.index.input[at]) | int(dump.index.output[at])) & int(DIRTY):
            continue
        peer = dump.record(at)
        if [(v.path, v.shape, v.dtype) for v in peer.of(INPUT, PARAMETER, OUTPUT) if v.is_tensor] == shapes:
            found.append((digest, peer))
    return found


def evidence_for(view: View, origin: Origin, made: Candidate, finding: Finding, minimal: int) -> list[Evidence]:
    """The numbered claims behind the first candidate."""
    digest, event = origin.digest, origin.event
    here = made.citation
    assert here is not None
    claims: list[tuple[Params, list[Citation], bool]] = []
    record = view.dumps[digest.key].record(event.index)
    dirty = next((v for v in record.of(OUTPUT) if v.kinds.dirty), None)
    if origin.kind == "introduced":
        slot = dirty.path if dirty else "output"
        values: Values = {"op": made.op_name, "slot": slot, "kinds": made.kinds}
        infinite = dirty_slot(made)
        first = (
            Params("evidence.first_nan", {**values, "source": infinite, "given": state_of(made, infinite)})
            if infinite
            else Params("evidence.first_dirty", values)
        )
        claims.append((first, [_at(here, slot)], True))
    elif origin.kind == "outside":
        slot = dirty.path if dirty else "output"
        seen: Values = {"op": made.op_name, "slot": slot, "kinds": made.kinds, "ranks": made.ranks}
        entered, call = here, origin.through
        if call is not None:
            seen["receive"] = call.name
            entered = view.cite(digest, call.index, call.name)
        key = "evidence.outside_behind" if call else "evidence.outside"
        claims.append((Params(key, seen), [_at(here, slot)], True))
        if origin.suspects:
            suspects: Values = {"ranks": origin.suspects, "op": entered.op_name}
            claims.append((Params("evidence.suspects", suspects), [entered], True))
    for message in finding.messages:
        claims.append((message, [here], True))
    if origin.kind == "introduced":
        claims += _peer_claims(view, origin, record)
    if len(made.ranks) > 1:
        claims.append((Params("evidence.replicated", {"ranks": made.ranks}), [here], True))
    claims += _spread_claims(view, origin, made)
    if view.verdicts.hidden:
        ranks = sorted(view.verdicts.hidden)
        name = view.verdicts.hidden[ranks[0]].name
        claims.append((Params("evidence.hidden_communication", {"ranks": ranks, "op": name}), [], True))
    for other in view.verdicts.sources[1:minimal]:
        claims.append(
            (
                Params("evidence.concurrent", {"op": other.event.name, "ranks": other.ranks}),
                [view.cite(other.digest, other.event.index, other.event.name)],
                False,
            )
        )
    return [Evidence(f"E{i}", message, cites, proves) for i, (message, cites, proves) in enumerate(claims, 1)]


def _peer_claims(view: View, origin: Origin, record: Record) -> list[tuple[Params, list[Citation], bool]]:
    peers = _peers(view, origin, record)
    if not peers:
        return []
    first_digest, first = peers[0]
    sizes = [
        max(abs(float(v.max)), abs(float(v.min)))
        for _, p in peers
        for v in p.of(OUTPUT)
        if v.max is not None and v.min is not None
    ]
    values: Values = {"peers": len(peers)}
    if sizes:
        values["max_abs"] = max(sizes)
    cite = view.cite(first_digest, first.op_index, first.name.name)
    claims = [(Params("evidence.peers_clean", values), [cite], True)]
    here = view.cite(origin.digest, origin.event.index, origin.event.name)
    for v in record.of(INPUT):  # an integer input (token counts, indices) that no peer has like this
        if not v.is_tensor or float_format(v.dtype) or v.min is None or len(peers) < 3:
            continue
        lows = [w.min for _, p in peers for w in p.of(INPUT) if w.path == v.path and w.min is not None]
        if lows and (v.min < min(lows) or v.min > max(lows)):
            seen: Values = {
                "slot": v.path,
                "stat": "Min",
                "value": v.min,
                "rank": origin.digest.rank if origin.digest.rank is not None else 0,
                "peers": len(lows),
                "low": min(lows),
                "high": max(lows),
            }
            claims.append((Params("evidence.peer_observation", seen), [here, cite], False))
    return claims


def _spread_claims(view: View, origin: Origin, made: Candidate) -> list[tuple[Params, list[Citation], bool]]:
    claims: list[tuple[Params, list[Citation], bool]] = []
    if origin.digest.rank is None or not view.verdicts.received:
        return claims
    reached, lost = explained(view, origin)
    first = None
    for call, instance in view.joined.by_rank.get(origin.digest.rank, ()):
        if call.index >= origin.event.index and call.given & int(DIRTY):
            first = (call, instance)
            break
    if first is not None:
        call, instance = first
        earlier = [
            i
            for c, i in view.joined.by_rank[origin.digest.rank]
            if c.index < origin.event.index and i.group == instance.group
        ]
        values: Values = {"ranks": made.ranks}
        verified = sum(i.join == VERIFIED for i in earlier)
        if verified and verified == len(earlier):
            values["verified"] = verified
        cite = view.cite(origin.digest, call.index, call.name)
        if origin.kind != "outside":  # that one did receive it, from whom nobody has read
            claims.append((Params("evidence.only_home_grown", values), [cite], True))
        claims.append(
            (
                Params("evidence.first_passed_on", {"ranks": made.ranks, "op": call.name, "instance": instance.id}),
                [cite],
                True,
            )
        )
    if reached and not lost:
        claims.append((Params("evidence.all_explained", {"count": len(reached)}), [], True))
    elif lost:
        claims.append((Params("evidence.not_explained", {"ranks": lost}), [], False))
    return claims


def explained(view: View, origin: Origin) -> tuple[list[int], list[int]]:
    """Dirty readable ranks besides all sources: those whose first dirt is reachable from an origin, and the others."""
    sources = view.verdicts.sources[: view.verdicts.minimal]
    own = {r for o in sources for r in o.ranks}
    reached: list[int] = []
    lost: list[int] = []
    for rank, got in sorted(view.verdicts.received.items()):
        if rank in own:
            continue
        hit = any(o.reach.get(rank, NEVER) <= got.call.index for o in sources)
        (reached if hit else lost).append(rank)
    for rank in sorted(view.verdicts.hidden):
        if rank not in own and rank not in reached and rank not in lost:
            reached.append(rank)
    return reached, lost


def confidence_terms(view: View, origin: Origin, made: Candidate, finding: Finding, minimal: int) -> list[Term]:
    """The terms of the confidence (NAN-30), every one of them, in order; the last one clamps the sum to its limits."""
    weak = origin.weak
    terms = [Term(0.4, Params("term.base_gap" if weak else "term.base"))]
    if minimal == 1:
        terms.append(Term(0.2, Params("term.unique_source")))
    else:
        terms.append(Term(-0.05, Params("term.concurrent", {"count": minimal - 1})))
    reached, lost = explained(view, origin)
    if reached and not lost:
        terms.append(Term(0.15, Params("term.all_explained", {"count": len(reached)})))
    if made.bound is not None and made.bound.contradicts_output:
        terms.append(Term(0.15, Params("term.bound", {"bound": made.bound.value or 0.0, "kinds": made.kinds})))
    elif finding.proved:
        terms.append(Term(0.15, Params("term.class_proof", {"class": made.clazz})))
    if made.peers_clean:
        terms.append(Term(0.1, Params("term.peers_clean", {"peers": made.peers_clean})))
    before = [r for r in view.unseen() if view.could_precede(r, origin)]
    after = [r for r in view.unseen() if r not in before]
    if before:
        terms.append(Term(-0.2, Params("term.rank_unread", {"ranks": before})))
    if after and not view.never_dumped:
        terms.append(Term(max(-0.02 * len(after), -0.05), Params("term.unread_irrelevant", {"ranks": after})))
    unknown = next((s.slot for s in made.slots if s.role == INPUT and s.state == "unknown"), None)
    if unknown is not None and origin.kind == "introduced":
        terms.append(Term(-0.15, Params("term.unrecorded_argument", {"slot": unknown})))
    op = parse_name(made.op_name)
    if apis.is_fill(op) or apis.is_copy(op) or apis.is_allocation(op):
        terms.append(Term(-0.2, Params("term.grey_zone")))
    if weak:
        terms.append(Term(-0.15, Params("term.gap")))
    if origin.event.lineage == "unknown" or (weak and not view.digests[0].calls and len(view.digests) > 1):
        terms.append(Term(-0.1, Params("term.lineage_unknown")))
    assumed = {g.instance.id for g in view.verdicts.received.values() if g.instance.join == ASSUMED and g.givers}
    if assumed and origin.explains:
        terms.append(Term(-0.05, Params("term.join_assumed", {"count": len(assumed)})))
    total = sum(t.value for t in terms)
    low, high = LIMITS
    if not low <= total <= high:
        terms.append(Term(round((low if total < low else high) - total, 10), Params("term.clamp")))
    return terms


def total(terms: Sequence[Term]) -> float:
    return round(sum(t.value for t in terms), 4)


def dirty_slot(made: Candidate) -> str:
    """The first non-finite input or parameter of a candidate; "" if there is none."""
    states = ((s.slot, s.state) for s in made.slots if s.role in (INPUT, PARAMETER))
    return next((slot for slot, state in states if state not in ("finite", "", "unknown")), "")


def state_of(made: Candidate, slot: str) -> str:
    """``inf``, ``finite``, ... of one of its slots."""
    return next((s.state for s in made.slots if s.slot == slot), "")


def next_checks(view: View, made: Candidate, finding: Finding) -> list[Params]:
    """Targeted checks for the class (NAN-31)."""
    op = made.op_name
    slot = next((str(m.values["slot"]) for m in finding.messages if "slot" in m.values), "")
    dirty = dirty_slot(made)
    forward = next((str(m.values["forward_op"]) for m in finding.messages if "forward_op" in m.values), op)
    dtype = next((s.dtype.rsplit(".", 1)[-1] for s in made.slots if s.role == OUTPUT and s.dtype), "")
    clazz = made.clazz
    checks: list[Params] = []
    if clazz == "kernel_fault":
        checks.append(Params("check.rerun_op", {"op": op}))
        counts = next((s.slot for s in made.slots if "group_list" in s.slot and s.dtype and s.min == 0), "")
        if counts:
            checks.append(Params("check.empty_expert", {"slot": counts}))
        checks.append(Params("check.kernel_memory"))
    elif clazz == "range_overflow":
        form = float_format(dtype)
        narrow = form is not None and form.max < FLOATS["bf16"].max
        checks.append(Params("check.range" if narrow else "check.size", {"op": op, "dtype": dtype}))
        checks.append(Params("check.rerun_op", {"op": op}))
    elif clazz == "domain_error":
        checks.append(Params("check.domain", {"slot": slot or "input", "op": op}))
    elif clazz == "zero_times_inf":
        checks.append(Params("check.zero_times_inf", {"forward_op": forward}))
    elif clazz == "fully_masked_row":
        checks.append(Params("check.masked_row"))
    elif clazz == "bad_parameter":
        checks.append(Params("check.parameter", {"slot": dirty or "weight"}))
    elif clazz == "bad_input_data":
        checks.append(Params("check.input_data", {"slot": dirty} if dirty else {}))
    elif clazz == "empty_batch":
        checks.append(Params("check.empty_batch"))
    elif clazz == "uninitialised_memory_used":
        allocation = next((str(m.values["allocation"]) for m in finding.messages if "allocation" in m.values), op)
        checks.append(Params("check.uninitialised", {"allocation": allocation}))
    elif clazz == "recompute_differs":
        checks.append(Params("check.recompute", {"op": op}))
    elif clazz == "gradient_overflow":
        checks.append(Params("check.gradient", {"op": op}))
    elif clazz == "communication_fault":
        checks.append(Params("check.communication", {"op": op}))
    elif clazz == "source_outside_view" and made.suspects:
        checks.append(view.to_read(made.suspects))
    if made.kind in ("gap", "container"):
        if made.gap_after:
            checks.append(Params("check.record_gap", {"after": made.gap_after, "op": op}))
        else:
            checks.append(Params("check.record_operators", {"op": op}))
    return checks


def _at(cite: Citation, slot: str) -> Citation:
    return Citation(
        cite.rank_key, cite.rank, cite.step, cite.op_index, cite.op_name, slot, cite.file, cite.offset, cite.length
    )
