"""What a run of the NaN skill leaves in its folder."""

from __future__ import annotations

from numprobe.diagnose.nan_overflow.join import Instance
from numprobe.diagnose.nan_overflow.page.html import render_html
from numprobe.diagnose.nan_overflow.page.markdown import render_markdown
from numprobe.diagnose.nan_overflow.result import Candidate, NanResult
from numprobe.diagnose.nan_overflow.skill import Analysis
from numprobe.record.nonfinite import DIRTY, Kinds
from numprobe.report.run_folder import RunFolder, plain

_DIRTY = int(DIRTY)
RANK_HEAD = ("rank_key", "rank", "role", "status", "records", "first_dirty", "index", "via", "from_ranks")


def write_artifacts(run: RunFolder, analysis: Analysis, lang: str, *, compat: bool = False) -> None:
    """Stage artifacts, reports and, with ``compat``, the file names that msProbe's skill writes."""
    result = analysis.result
    run.write_json("1_steps.json", result.steps)
    view = analysis.view
    if view is not None:
        run.write_csv(
            "2_events.csv",
            ("rank_key", "rank", "index", "name", "kind", "makes", "after", "phase", "micro_batch"),
            [
                (d.key, d.rank, e.index, e.name, e.kind, Kinds(e.kinds).words(), e.after_name, e.phase, e.micro_batch)
                for d in view.digests
                for e in d.events
            ],
        )
        run.write_csv(
            "3_instances.csv",
            ("instance", "api", "join", "members", "dirty_before", "dirty_after", "absent"),
            [_instance_row(i) for i in view.joined.instances if _is_dirty(i)],
        )
    run.write_json("4_sources.json", {"sources": result.sources, "alternatives": result.alternatives})
    run.write_csv(
        "5_ranks.csv",
        RANK_HEAD,
        [
            (
                r.rank_key,
                r.rank,
                r.role,
                r.status,
                r.records,
                r.first_dirty,
                r.first_dirty_index,
                r.via,
                _list(r.from_ranks),
            )
            for r in result.ranks
        ],
    )
    run.write_json("result.json", result)
    if compat:
        _write_compat(run, analysis)
    run.write_text("report.md", render_markdown(result, lang))
    run.write_text("report.html", render_html(result, lang, artifacts=tuple(run.artifacts)))


def _is_dirty(instance: Instance) -> bool:
    return any((c.given | c.got) & _DIRTY for c in instance.calls.values())


def _instance_row(instance: Instance) -> tuple[object, ...]:
    before = sorted(r for r, c in instance.calls.items() if c.given & _DIRTY)
    after = sorted(r for r, c in instance.calls.items() if c.got & _DIRTY)
    members = _list(list(instance.members))
    return instance.id, instance.api, instance.join, members, _list(before), _list(after), _list(instance.absent)


def _list(ranks: list[int]) -> str:
    return " ".join(map(str, ranks))


def _write_compat(run: RunFolder, analysis: Analysis) -> None:
    """``cross_rank_analysis.json``, ``first_contamination.json``, ``root_cause.json``, ``rank_status.csv``."""
    result, view = analysis.result, analysis.view
    table: dict[str, dict[str, object]] = {}
    first: Instance | None = None
    if view is not None:
        received = {r: got.instance for r, got in view.verdicts.received.items()}
        dirty = [i for i in view.joined.instances if _is_dirty(i)]
        dirty.sort(key=lambda i: (min(c.index for c in i.calls.values()), i.id))
        for order, instance in enumerate(dirty):
            name = min((c.index, c.name) for c in instance.calls.values())[1]
            sources = [r for r, c in instance.calls.items() if c.given & _DIRTY]
            relays = [
                r for r in sources if r in received and received[r] is not instance and r not in result.source_ranks
            ]
            after = [r for r, c in instance.calls.items() if c.got & _DIRTY and r not in sources]
            clean = [r for r, c in instance.calls.items() if not (c.got | c.given) & _DIRTY]
            if name in table:  # the same name in another group
                name = f"{name}@{instance.id}"
            table[name] = {
                "source_ranks": sorted(r for r in sources if r not in relays),
                "relay_ranks": sorted(relays),
                "propagated_ranks": sorted(after),
                "normal_ranks": sorted(clean),
                "total_ranks": len(instance.calls),
                "group": instance.id.split("@")[1].split("#")[0],
                "ordinal": instance.ordinal,
                "order": order,
            }
            if first is None and after:
                first = instance
    run.write_json("cross_rank_analysis.json", table)
    contamination: dict[str, object] | None = None
    if first is not None:
        contamination = {
            "instance": first.id,
            "clean_before": sorted(r for r, c in first.calls.items() if not c.given & _DIRTY),
            "dirty_before": first.dirty_givers(),
        }
        run.write_json("first_contamination.json", contamination)
    run.write_json("root_cause.json", root_cause(result, contamination))
    run.write_csv(
        "rank_status.csv",
        ("rank", "role", "first_dirty_op", "index", "via_instance"),
        [
            (r.rank if r.rank is not None else r.rank_key, r.role, r.first_dirty, r.first_dirty_index, r.via)
            for r in result.ranks
        ],
    )


def root_cause(result: NanResult, contamination: dict[str, object] | None) -> dict[str, object]:
    """The result in the keys of msProbe's skill (NAN-29a)."""
    first = result.first
    return {
        "verdict": result.verdict,
        "rank": result.rank,
        "class": result.clazz,
        "confidence": result.confidence,
        "first_anomaly": _anomaly(first) if first else None,
        "first_contamination": contamination,
        "excluded": [{"op_name": e.example.op_name, "reason": e.reason, "count": e.count} for e in result.excluded],
        "alternatives": [_anomaly(c) for c in result.alternatives],
        "partial_ranks": result.partial_ranks,
        "missing_ranks": result.missing_ranks,
    }


def _anomaly(c: Candidate) -> dict[str, object]:
    def figures(role: set[str]) -> list[dict[str, object]]:
        return [
            {"slot": s.slot, "shape": s.shape, "dtype": s.dtype, "Max": plain(s.max), "Min": plain(s.min)}
            for s in c.slots
            if s.role in role and (s.dtype or s.max is not None)
        ]

    bound = c.bound
    return {
        "op_name": c.op_name,
        "exec_order": c.op_index,
        "micro_batch": c.micro_batch,
        "layer": c.layer,
        "gap_after": c.gap_after,
        "input_info": figures({"input", "parameter"}),
        "output": figures({"output"}),
        "bound": {
            "rule": bound.rule,
            "value": bound.value,
            "dtype_max": bound.dtype_max,
            "contradicts_output": bound.contradicts_output,
        }
        if bound and bound.applicable
        else None,
        "construct_chain": [link.name for link in c.chain],
        "stack_info": c.stack,
    }
