"""The files of msProbe's RL skill, stage by stage: ``output_0`` to ``output_5``.

Stages 1 to 4 are its published rules on the module records of the first rank of each side, with the pairs found here: output 0,
input 0 and the weight by Max, Min, Mean and Norm, relative to rollout. Up to 1e-4 is ok, up to 1e-2 a warning, and both a warning
and an alert are a mismatch. Other than there, a figure that is finite on one side only is an alert. Stage 5 has the findings of
this skill in the keys of the other: what these rules flag and the comparison clears stands among the structural false positives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numprobe.align.roles.rules import standard_rules
from numprobe.align.roles.side import RoleSide
from numprobe.diagnose.rl_consistency.classify import ACTIVATIONS
from numprobe.diagnose.rl_consistency.result import Finding, RlResult
from numprobe.diagnose.rl_consistency.view import View, role_of
from numprobe.formats.msprobe.values import GIVEN, ValueTable
from numprobe.record.names import parse_name

Row = dict[str, Any]
OK, WARN, TINY = 1e-4, 1e-2, 1e-12
METRICS = ("Max", "Min", "Mean", "Norm")
TARGETS = ("output.0", "input_args.0", "parameters.weight")
FUSED = (("linear_q_down_proj", "fused_qkv_a_proj"), ("linear_kv_down_proj", "fused_qkv_a_proj"))
BLOCKS = (
    ("mlp", (".mlp.",)),
    ("attn", ("self_attn", "self_attention", "attention")),
    ("norm", ("norm",)),
    ("embed", ("embed",)),
)
POLICY = {
    "value_mismatch_shape_match": 1,
    "value_mismatch_numel_match": 1,
    "value_mismatch_shape_mismatch": 2,
    "value_match_shape_mismatch": 3,
    "missing_compare_target": 3,
    "value_match_shape_match": 4,
    "parameter_mismatch_output_aligned": 5,
}
FOCUS = {1: "high", 2: "high", 3: "review", 4: "normal", 5: "deprioritized"}
CLASSIFICATION = {
    "missing_operator": "missing_or_extra_op_between_aligned_boundary",
    "configuration_difference": "in_module_impl_difference",
    "implementation_difference": "in_module_impl_difference",
    "parameter_difference": "parameter_or_checkpoint_issue",
    "upstream_propagation": "upstream_propagation",
}
REASONING = {
    "fused_qkv_structural_mismatch": "One side fuses what the other splits; inputs agree.",
    "normal_aligned": "Output, parameters and inputs agree.",
    "comparison_premise_abnormal_but_output_aligned": "The output agrees; parameters or keyword arguments could not be compared.",
    "internal_difference_but_output_aligned": "The output agrees, something before it does not.",
    "insufficient_output_evidence": "The output is missing on one side.",
    "module_impl_mismatch": "Inputs and parameters agree, the output does not.",
    "parameter_sync_mismatch": "Inputs agree, parameters and output do not.",
    "upstream_propagation_or_amplification": "The output differs, and so do its inputs; parameters agree.",
    "systemic_misalignment": "The output differs, and neither inputs nor parameters agree.",
}
NEXT_CHECKS = (
    "Record the tensors of anchor and suspect on both sides and compare them element by element.",
    "Check configuration and kernel of what lies between anchor and suspect on both sides.",
    "Check that both sides got the same tokens and the weights of the same step.",
)


class Peers(NamedTuple):
    """A module record of training and its partners."""

    train: str
    rollout: list[str]


@dataclass
class _Side:
    """The module records of one side, by name."""

    values: ValueTable
    record: dict[str, int]

    def leaf(self, name: str, path: str) -> int:
        """The row of a slot, -1 where the record has none that is a tensor."""
        v = self.values
        rows = (r for r in v.rows(self.record[name]) if v.slots[v.slot[r]][1] == path and v.kinds[v.kind[r]][2])
        return next(rows, -1)

    def keywords(self, name: str) -> dict[str, int]:
        v = self.values
        paths = {v.slots[v.slot[r]][1]: r for r in v.rows(self.record[name]) if v.kinds[v.kind[r]][2]}
        return {p.partition(".")[2]: r for p, r in paths.items() if p.startswith("input_kwargs.")}


def compat_files(view: View, result: RlResult, out: str) -> dict[str, Any]:
    """By file name: what a ``.json`` holds; of a ``.csv`` its head and rows."""
    sides = _side(view.train), _side(view.rollout)
    peers = _peers(view)
    keys = [_key_row(p) for p in peers]
    values = _stage_3([(p.train, name) for p in peers for name in p.rollout], *sides)
    modules = _stage_4([(p.train, name) for p in peers for name in p.rollout], values, *sides)
    paths = {
        "train_path": str(view.train.original.dump.place.dump),
        "rollout_path": str(view.rollout.original.dump.place.dump),
    }
    order = {"order_basis": "train_data_insertion_order", "left_key": "train_key"}
    counts = Counter(row["priority_bucket"] for row in values)
    head = ("train_key", "rollout_key", "cardinality", "layer_index", "block", "confidence", "notes")
    mapped = ("mapping_type", "train_key", "rollout_key", "layer_index", "block", "confidence", "notes")
    compared: tuple[str, ...] = (
        "train_key",
        "rollout_key",
        "compare_target",
        "dtype_status",
        "shape_status",
        "shape_relation",
    )
    compared += (
        "numeric_consistency",
        "priority_rank",
        "priority_bucket",
        "metric_status",
        "value_status",
        "metric_summary",
    )
    judged = ("train_key", "rollout_key", "module_priority_rank", "module_status", "reasoning")
    flat = [{**row, "rollout_key": ";".join(row["rollout_keys"])} for row in keys]
    pairs = [
        {**row, "mapping_type": row["cardinality"], "rollout_key": name} for row in keys for name in row["rollout_keys"]
    ]
    return {
        "output_0_key_mapping.json": {
            p.train: p.rollout[0] if len(p.rollout) == 1 else p.rollout for p in peers if p.rollout
        },
        "output_1_key_mapping.json": {"meta": paths | order, "rows": keys},
        "output_1_key_mapping.csv": _table(head, flat),
        "output_2_mapping.json": {p.train: p.rollout for p in peers if p.rollout},
        "output_2_mapping.csv": _table(mapped, pairs),
        "output_3_value_compare.json": {
            "meta": {
                "eps": TINY,
                "thresholds": {"ok": OK, "warn": WARN},
                **order,
                "priority_policy": [{"priority_rank": n, "priority_bucket": bucket} for bucket, n in POLICY.items()],
                "priority_counts": dict(counts),
                "missing_compare_target": counts["missing_compare_target"],
            },
            "records": values,
        },
        "output_3_value_compare.csv": _table(compared, [{**row, "metric_summary": _summary(row)} for row in values]),
        "output_4_module_analysis.json": {"meta": order, "records": modules},
        "output_4_module_analysis.csv": _table(judged, modules),
        "output_5_root_cause_report.json": {**paths, "out_dir": out, **_stage_5(view, result, modules)},
    }


def _table(head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[Any]]]:
    return head, [[row[name] for name in head] for row in rows]


# --- stages 0 to 2: which module is which -----------------------------------------------------------------------------


def _side(side: RoleSide) -> _Side:
    values = side.original.values
    return _Side(values, {name: i for i, name in reversed(list(enumerate(values.names)))})


def _peers(view: View) -> list[Peers]:
    """Every module record of training in the order of the file, with its partners."""
    partners: dict[int, list[int]] = {}
    roles = [{m.record: m.role.name for m in side.modules} for side in (view.train, view.rollout)]
    for pair, (t, g) in enumerate(zip(view.records.target, view.records.golden, strict=True)):
        if t < 0 or g < 0:
            continue
        role = role_of(view.name(pair))
        one, other = (
            _main(side.origin[i], of, role) for side, i, of in ((view.train, t, roles[0]), (view.rollout, g, roles[1]))
        )
        side_by_side = len(one) == len(other)  # q with q, k with k
        for n, record in enumerate(one):
            partners.setdefault(record, []).extend([other[n]] if side_by_side else other)
    names, golden = view.train.original.values.names, view.rollout.original.values.names
    return [
        Peers(name, list(dict.fromkeys(golden[g] for g in partners.get(i, ()))))
        for i, name in enumerate(names)
        if name.startswith("Module.")
    ]


def _main(origin: Sequence[int], roles: Mapping[int, str], role: str) -> Sequence[int]:
    """What a canonical record was made of, without what it only swallowed (the norm before a fused linear)."""
    wanted = {role, *standard_rules().merged.get(role, ()), *({"mlp"} if role == "moe" else ())}
    return [i for i in origin if roles.get(i) in wanted] or origin


def _key_row(peers: Peers) -> Row:
    layer = parse_name(peers.train).layer
    count = len(peers.rollout)
    return {
        "train_key": peers.train,
        "rollout_keys": peers.rollout,
        "layer_index": "-" if layer is None else layer,
        "block": _block(peers.train),
        "cardinality": "1:0" if not count else "1:1" if count == 1 else "1:N",
        "confidence": "high" if count else "low",
        "notes": "" if count else "no partner",
    }


def _block(name: str) -> str:
    return next((block for block, words in BLOCKS if any(word in name for word in words)), "other")


# --- stage 3: values --------------------------------------------------------------------------------------------------


def _stage_3(pairs: Sequence[tuple[str, str]], train: _Side, rollout: _Side) -> list[Row]:
    found = []
    for one, other in pairs:
        rows = [_compared(one, other, target, train, rollout) for target in TARGETS]
        there = [row for row in rows if row is not None]
        output = there[0] if there and there[0]["compare_target"] == "output.0" else None
        for row in there:
            weight = row["compare_target"] == "parameters.weight" and row["numeric_consistency"] == "mismatch"
            if weight and output is not None and output["numeric_consistency"] == "aligned":
                _prioritise(row, "parameter_mismatch_output_aligned")
        found += there
    return found


def _compared(one: str, other: str, target: str, train: _Side, rollout: _Side) -> Row | None:
    t, g = train.leaf(one, target), rollout.leaf(other, target)
    if t < 0 and g < 0:
        return None
    row: Row = {"train_key": one, "rollout_key": other, "compare_target": target}
    for label, side, at in (("train", train, t), ("rollout", rollout, g)):
        v = side.values
        shape = v.shapes[v.shape[at]] if at >= 0 else None
        row[f"dtype_{label}"] = v.kinds[v.kind[at]][1] if at >= 0 else None
        row[f"shape_{label}"] = list(shape) if shape is not None else None
        row[f"numel_{label}"] = int(v.numel[at]) if at >= 0 else None
    row["dtype_status"] = "match" if row["dtype_train"] == row["dtype_rollout"] else "mismatch"
    row["shape_status"] = "match" if row["shape_train"] == row["shape_rollout"] else "mismatch"
    row["shape_relation"] = _relation(row["shape_train"], row["shape_rollout"])
    row["metrics"] = {
        name: _metric(_figure(train.values, t, n), _figure(rollout.values, g, n)) for n, name in enumerate(METRICS)
    }
    row |= {f"diff_{name}%": metric["diff_pct"] for name, metric in row["metrics"].items()}
    missing = t < 0 or g < 0
    states = [metric["status"] for metric in row["metrics"].values()]
    row["metric_status"] = next((s for s in ("alert", "warn", "ok") if s in states), "missing")
    row["numeric_consistency"] = {"alert": "mismatch", "warn": "mismatch", "ok": "aligned"}.get(
        row["metric_status"], "missing"
    )
    if missing or row["numeric_consistency"] == "missing":
        row["value_status"] = "missing_on_train" if t < 0 else "missing_on_rollout" if g < 0 else "missing"
        return _prioritise(row, "missing_compare_target")
    row["value_status"] = "match" if row["numeric_consistency"] == "aligned" else "mismatch"
    shape = "numel_match" if row["shape_relation"].endswith("numel_match") else "shape_mismatch"
    shape = "shape_match" if row["shape_relation"] == "exact_match" else shape
    if row["value_status"] == "match" and shape == "numel_match":
        shape = "shape_mismatch"
    return _prioritise(row, f"value_{row['value_status']}_{shape}")


def _prioritise(row: Row, bucket: str) -> Row:
    rank = POLICY[bucket]
    row |= {"priority_rank": rank, "priority_bucket": bucket, "focus_level": FOCUS[rank], "focus_reason": bucket}
    return row


def _relation(one: list[int] | None, other: list[int] | None) -> str:
    if one is None or other is None:
        return "unknown"
    if one == other:
        return "exact_match"
    if [n for n in one if n != 1] == [n for n in other if n != 1]:
        return "singleton_compatible_numel_match"
    return "numel_match" if math.prod(one) == math.prod(other) else "numel_mismatch"


def _figure(values: ValueTable, row: int, column: int) -> float | None:
    return float(values.figures[row, column]) if row >= 0 and values.status[row, column] == GIVEN else None


def _metric(train: float | None, rollout: float | None) -> Row:
    error, status = None, "missing"
    if train is not None and rollout is not None:
        if math.isfinite(train) and math.isfinite(rollout):
            error = abs(train - rollout) / max(abs(rollout), TINY)
            status = "ok" if error <= OK else "warn" if error <= WARN else "alert"
        elif math.isfinite(train) or math.isfinite(rollout):
            error, status = math.inf, "alert"
    percent = None if error is None else 100 * error
    return {"train": train, "rollout": rollout, "rel_err": error, "diff_pct": percent, "status": status}


def _summary(row: Row) -> str:
    told = ((name, m["status"], m["rel_err"]) for name, m in row["metrics"].items())
    return "; ".join(
        f"{name}:{status}@{'-' if error is None else format(error, '.4g')}" for name, status, error in told
    )


# --- stage 4: modules -------------------------------------------------------------------------------------------------


def _stage_4(pairs: Sequence[tuple[str, str]], values: Sequence[Row], train: _Side, rollout: _Side) -> list[Row]:
    by_pair: dict[tuple[str, str], dict[str, Row]] = {}
    for row in values:
        by_pair.setdefault((row["train_key"], row["rollout_key"]), {})[row["compare_target"]] = row
    return [_module(one, other, by_pair.get((one, other), {}), train, rollout) for one, other in pairs]


def _module(one: str, other: str, rows: Mapping[str, Row], train: _Side, rollout: _Side) -> Row:
    output, given, weight = (rows[t]["numeric_consistency"] if t in rows else "missing" for t in TARGETS)
    keywords, details = _keywords(one, other, train, rollout)
    known = [state for state in (given, keywords) if state in ("aligned", "mismatch", "partial")]
    entering = "mismatch" if "mismatch" in known else "aligned" if known else "missing"
    incomplete = weight == "missing" or keywords in ("missing", "partial")
    bucket, rank, status = _bucket(output, weight, entering, incomplete, _is_fused(one, other))
    layer = parse_name(one).layer
    return {
        "train_key": one,
        "rollout_key": other,
        "layer_index": "-" if layer is None else layer,
        "block": _block(one),
        "output_consistency": output,
        "input_consistency": entering,
        "parameter_consistency": weight,
        **{
            f"{name}_bucket": rows[t]["priority_bucket"] if t in rows else None
            for name, t in zip(("output", "input", "parameter"), TARGETS, strict=True)
        },
        "input_kwargs_status": keywords,
        "input_kwargs_details": details,
        "module_bucket": bucket,
        "module_priority_rank": rank,
        "module_status": status,
        "focus_level": FOCUS[rank],
        "reasoning": REASONING[bucket],
        "premise_flags": ["comparison_premise_incomplete"] if incomplete else [],
    }


def _keywords(one: str, other: str, train: _Side, rollout: _Side) -> tuple[str, Row]:
    mine, theirs = train.keywords(one), rollout.keywords(other)
    if not mine and not theirs:
        return "not_applicable", {}
    shared = [name for name in mine if name in theirs]
    details = {}
    for name in shared:
        states = [
            _metric(_figure(train.values, mine[name], n), _figure(rollout.values, theirs[name], n))["status"]
            for n in range(4)
        ]
        details[name] = "mismatch" if {"warn", "alert"} & set(states) else "aligned" if "ok" in states else "missing"
    if "mismatch" in details.values():
        return "mismatch", details
    if not shared:
        return "missing", details
    return ("aligned" if len(shared) == len(mine) == len(theirs) else "partial"), details


def _is_fused(one: str, other: str) -> bool:
    return any(a in one and b in other for a, b in FUSED)


def _bucket(output: str, weight: str, entering: str, incomplete: bool, fused: bool) -> tuple[str, int, str]:
    if output == "mismatch" and entering == "aligned" and fused:
        return "fused_qkv_structural_mismatch", 5, "tolerable_structural_mismatch"
    if output == "aligned":
        if weight == entering == "aligned":
            return "normal_aligned", 4, "normal"
        if incomplete:
            return "comparison_premise_abnormal_but_output_aligned", 5, "closed_aligned"
        return "internal_difference_but_output_aligned", 5, "closed_aligned"
    if output == "missing":
        return "insufficient_output_evidence", 3, "needs_review"
    if entering == "aligned":
        return ("module_impl_mismatch" if weight == "aligned" else "parameter_sync_mismatch"), 1, "output_mismatch"
    bucket = "upstream_propagation_or_amplification" if weight == "aligned" else "systemic_misalignment"
    return bucket, 2, "output_mismatch"


# --- stage 5: the cause -----------------------------------------------------------------------------------------------


def _stage_5(view: View, result: RlResult, modules: Sequence[Row]) -> Row:
    by_keys = {(row["train_key"], row["rollout_key"]): row for row in modules}
    by_name = {name: row for row in modules for name in (row["train_key"], row["rollout_key"])}
    suspects = {(f.suspect.train, f.suspect.rollout) for f in result.findings}
    cleared = {
        name: pair
        for pair in result.mapping
        if pair.verdict in ("pass", "warning")
        for name in (*pair.train, *pair.rollout)
    }
    false_positives = [
        {
            **_picked(row, "train_key", "rollout_key", "module_bucket"),
            "skip_reason": _cleared(cleared[row["train_key"]].ratio),
        }
        for keys, row in by_keys.items()
        if row["module_priority_rank"] in (1, 2, 5)
        and row["output_consistency"] == "mismatch"
        and keys not in suspects
        and row["train_key"] in cleared
    ]
    causes = [_suspect(f, by_keys, by_name) for f in result.findings]
    evidence = [
        name
        for cause in causes[:1]
        for side in ("train", "rollout")
        for name in cause[f"unmatched_{side}_between_boundary"]
    ]
    return {
        "structural_false_positives": false_positives,
        "root_cause_suspects": causes,
        "top_hypothesis": causes[0]["rationale"] if causes else "",
        "top_evidence": evidence,
        "next_checks": list(NEXT_CHECKS),
    }


def _picked(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _cleared(ratio: float | None) -> str:
    found = "" if ratio is None else f": at most {ratio:.2g} times what the arithmetic explains"
    return f"agrees once both sides are in one form and all ranks are joined{found}"


def _suspect(f: Finding, by_keys: Mapping[tuple[str | None, str | None], Row], by_name: Mapping[str, Row]) -> Row:
    row = by_keys.get((f.suspect.train, f.suspect.rollout), {})
    anchor = by_keys.get((f.anchor.train, f.anchor.rollout)) if f.anchor is not None else None
    between = {
        side: [n for s, n in zip(f.segment_sides, f.segment, strict=True) if s == side and n not in by_name]
        for side in ("train", "rollout")
    }
    acts = {side: [n for n in names if _is_activation(n)] for side, names in between.items()}
    return {
        "train_key": f.suspect.train,
        "rollout_key": f.suspect.rollout,
        "module_priority_rank": row.get("module_priority_rank", 1),
        "module_bucket": row.get("module_bucket", ""),
        "classification": CLASSIFICATION.get(f.clazz, "needs_manual_review"),
        "rationale": _rationale(f),
        "previous_aligned_boundary": anchor,
        "unmatched_train_between_boundary": between["train"],
        "unmatched_rollout_between_boundary": between["rollout"],
        "likely_missing_train_activation": acts["rollout"] if not acts["train"] else [],
        "likely_missing_rollout_activation": acts["train"] if not acts["rollout"] else [],
    }


def _is_activation(name: str) -> bool:
    return any(word in name.lower() for word in (*ACTIVATIONS, "act_fn", "activation_func"))


def _rationale(f: Finding) -> str:
    suspect = f.suspect.train or f.suspect.rollout
    anchor = (f.anchor.train or f.anchor.rollout) if f.anchor is not None else None
    where = f"{f.slot} of {suspect} is the first to differ by more than the arithmetic explains"
    after = f"; the output of {anchor} agrees" if anchor else ""
    return f"{f.clazz} ({f.kind}): {where}{after}"
