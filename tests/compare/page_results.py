"""CompareResult objects as a comparison would build them, with the rows of its table, for the tests of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from numprobe.compare.page.rows import Row
from numprobe.compare.result import VERDICTS, Cell, CompareResult, Finding, Leaf, Place, Problem, RankPair, Side

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&`|.层\u202e名.\x1b[31m{{7*7}}.forward"
ADD, MATMUL, MUL = "Tensor.__add__.10.forward", "Torch.matmul.2.forward", "Tensor.__mul__.23.forward"
PRODUCT = "Module.layers.1.mlp.product.Product.forward.0"
PARTS = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn", "self_attn.o_proj"),
    *("Block", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.product", "mlp.down_proj", "mlp"),
)
Sample = tuple[CompareResult, list[Row]]


def side(dtype: str = "bf16", *figures: float | None, shape: Sequence[int] = (2, 24, 64)) -> Side:
    return Side(dtype, list(shape), *(figures or (1.023, -0.7305, 0.00588, 7.772)))


def leaf(path: str = "output.0", verdict: str = "error", status: str = "introduced", **more: object) -> Leaf:
    role = "output" if path.startswith("output") else "input"
    values = {"error": 0.225, "expected": 0.0037, "rho": 60.1, **more}
    return Leaf(role, path, side(), side("fp32", 0.8889, -0.9082, 0.01007, 7.662), verdict, status, **values)


def finding(op: str | None = PRODUCT, **more: object) -> Finding:
    values: dict[str, object] = {
        "cause": "introduced",
        "reason": "",
        "severity": "error",
        "op": op,
        "golden_op": op,
        "slot": "output.0",
        "step": 0,
        "rank_keys": ["rank0"],
        "ranks": [0],
        "op_index": 118,
        "phase": "forward",
        "layer": 1,
        "rho": 60.1,
        "error": 0.225,
        "expected": 0.0037,
        "after": None,
        "parameter": "",
        "only_target": [],
        "only_golden": [],
        "inside": ["Module.layers.1.mlp.MLP.forward.0", "Module.layers.1.Block.forward.0"],
        "stack": ["File /train/model/mlp.py, line 96, in forward, \n return self.down_proj(self.product(x))"],
        "leaves": [leaf("input_args.0", "pass", "", error=0.0027, expected=0.0058, rho=0.47), leaf()],
        "consequences": 540,
        "target_place": Place("rank0/dump.json", 62_945, 633),
        "golden_place": Place("rank0/dump.json", 66_831, 694),
    }
    return Finding(**{**values, **more})


def pair(rank: int = 0, status: str = "ok", **more: object) -> RankPair:
    counts = {**dict.fromkeys(VERDICTS, 0), "pass": 990, "warning": 3, "error": 6}
    values = {"records": 397, "leaves": 999, "compared": 999, "counts": counts, "mode": "statistics", **more}
    return RankPair(0, rank, f"rank{rank}", f"rank{rank}", status, **values)


def heat(layers: int = 3, at: int = 1, parts: Sequence[str] = PARTS, phase: str = "forward") -> list[Cell]:
    """A clean start, one part of layer ``at`` that brings a difference in, and layers that hand it on."""
    cells = [Cell("embed_tokens", None, phase, "pass", "", 0.2)]
    for layer in range(layers):
        for part in parts:
            own = layer == at and part == "mlp.product"
            late = layer > at or (layer == at and part in ("mlp.down_proj", "mlp"))
            verdict = "error" if own or (late and layer % 2) else "warning" if late else "pass"
            status = "introduced" if own else "propagated" if late else ""
            cells.append(Cell(part, layer, phase, verdict, status, 60.1 if own else 0.3))
    return [
        *cells,
        Cell("norm", None, phase, "warning", "propagated", 9.2),
        Cell("lm_head", None, phase, "pass", "", None),
    ]


def row(n: int, op: str = PRODUCT, **more: object) -> Row:
    first = Row(0, 0, n, op, op, "forward", "output", "output.0", "error", "propagated", None, 0.225, 0.0037, 60.1)
    return first._replace(**more)


def result(findings: Sequence[Finding] = (), **more: object) -> CompareResult:
    values: dict[str, object] = {
        "verdict": "fail" if findings else "pass",
        "premise": "",
        "mode": "statistics",
        "target": "dump/target",
        "golden": "dump/golden",
        "coverage": 0.9975,
        "counts": {**dict.fromkeys(VERDICTS, 0), "pass": 990, "warning": 3, "error": 6},
        "findings": list(findings),
        "ranks": [pair()],
        "heat": [*heat(), *heat(phase="backward")],
        "dtypes": ["bf16/fp32", "fp32/fp32"],
        "notes": [],
        "detection_limit": 0.09,
    }
    return CompareResult(**{**values, **more})


def introduced() -> Sample:
    warning = row(7, "Tensor.__mul__.1.forward", verdict="warning", status="", path="input_args.1", rho=5.5)
    rows = [warning, row(118, status="introduced"), *(row(119 + n, phase="backward") for n in range(7))]
    return result([finding()]), rows


def gap() -> Sample:
    """An operator that only the golden run calls, before the call that shows it."""
    leaves = [leaf("input_args.0"), replace_leaf(leaf("output.0", "error", "propagated"), max=math.inf)]
    found = finding(
        ADD,
        reason="operator_missing",
        slot="input_args.0",
        after=MATMUL,
        only_golden=[MUL],
        error=24.676,
        leaves=leaves,
        layer=1,
        inside=["Module.layers.1.self_attn.Attention.forward.0"],
    )
    return result([found], heat=heat()), [row(100, ADD, path="input_args.0", status="introduced", rho=math.inf)]


def replace_leaf(old: Leaf, **figures: float) -> Leaf:
    assert old.target is not None
    target = {name: getattr(old.target, name) for name in ("dtype", "shape", "max", "min", "mean", "norm")}
    return Leaf(old.role, old.path, Side(**{**target, **figures}), old.golden, old.verdict, old.status, rho=old.rho)


def every_cause() -> Sample:
    """A finding of each cause, some with warnings, one without a record on the golden side."""
    alone = Leaf("input", "input_args.0", side(), None, "unmatched")
    scale = Leaf("input", "input_args.1", Side("float", scalar="0.5"), Side("float", scalar="0.25"), "warning")
    digest = Leaf("output", "output.0", Side("bf16", [2], digest="a1b2"), Side("bf16", [2], digest="00ff"), "error")
    names = [f"Functional.silu.{n}.forward" for n in range(30)]
    findings = [
        finding("Functional.linear.12.forward", cause="parameter", parameter="layers.1.mlp.up_proj.weight"),
        finding(cause="input", slot="input_args.0"),
        finding(cause="nonfinite", error=None, expected=None, rho=math.inf),
        finding(cause="layout", leaves=[leaf(reason="shape", error=None, rho=None)]),
        finding(cause="nonfinite", reason="gap", error=math.inf, stack=[]),
        finding(reason="gap", after=MATMUL, slot="input_args.0"),
        finding(reason="operator_differs", only_target=names[:2], only_golden=names[2:]),
        finding(reason="argument", leaves=[scale]),
        finding(reason="digest", leaves=[digest]),
        finding(
            None,
            golden_op=names[0],
            cause="unmatched",
            reason="only_golden",
            severity="warning",
            only_golden=names,
            leaves=[alone],
            target_place=None,
        ),
    ]
    return result(findings, mode="mixed"), [row(n) for n in range(60)]


def nothing_found() -> Sample:
    counts = {**dict.fromkeys(VERDICTS, 0), "pass": 999}
    return result(counts=counts, coverage=1.0, heat=heat(at=9), detection_limit=None), []


def inconclusive() -> Sample:
    """Too little in common, levels that differ, no module at all."""
    little = Problem("little", "", 0, "rank0", "dump/target/rank0/dump.json", {"coverage": 0.12})
    return result(
        verdict="inconclusive",
        premise="coverage",
        coverage=0.12,
        heat=[],
        notes=["levels:L1:L0"],
        dtypes=[],
        problems=[little],
    ), []


def several_ranks() -> Sample:
    note = "E-FMT-012 the file cannot be read"
    bad = [pair(3, "partial"), pair(4, "unreadable", note=note, records=0), RankPair(0, 9, "rank9", "", "missing")]
    found = [finding(), finding(ADD, ranks=[1, 2], rank_keys=["rank1", "rank2"])]
    rows = [row(n, rank=rank) for n in range(100) for rank in range(3)]
    problems = [
        Problem("cut", "target", 0, "rank3", "dump/target/rank3/dump.json", {"offset": 5000, "op": ADD}),
        Problem("unreadable", "golden", 0, "rank4", "dump/golden/rank4/dump.json", {"why": "E-FMT-012"}),
    ]
    return result(found, ranks=[pair(0), pair(1), pair(2), *bad], problems=problems), rows


def many_ranks() -> Sample:
    """600 ranks, of which rank 577 alone has errors."""
    counts = {**dict.fromkeys(VERDICTS, 0), "pass": 999}
    ranks = [pair(n, counts={**counts, "error": 6 if n == 577 else 0}) for n in range(600)]
    return result([finding(ranks=[577], rank_keys=["rank577"])], ranks=ranks), [row(5)]


def sixty_one_layers() -> Sample:
    """61 layers of 25 parts in three phases, and a table that is cut."""
    parts = [*PARTS, *(f"mlp.shared.{name}" for name in "abcdefghijkl")]
    cells = [cell for phase in ("forward", "backward", "parameters_grad") for cell in heat(61, 17, parts, phase)]
    counts = {**dict.fromkeys(VERDICTS, 0), "pass": 7_138, "warning": 5_235, "error": 6_543, "unmatched_golden": 5}
    rows = [
        row(n, f"Functional.linear.{n}.{('forward', 'backward')[n % 2]}", phase=("forward", "backward")[n % 2])
        for n in range(1_999)
    ]
    rows.append(
        row(1_999, MUL, target_op=None, verdict="unmatched_golden", status="", error=None, expected=None, rho=None)
    )
    found = finding("Module.layers.17.mlp.product.Product.forward.0", layer=17)
    return result([found], heat=cells, counts=counts), rows


def hostile() -> Sample:
    """Every text that comes from a dump tries to leave its place."""
    bad = Side(HOSTILE, [2, 2], 1.0, digest=HOSTILE)
    leaves = [
        Leaf(HOSTILE, HOSTILE, bad, Side(HOSTILE, None, scalar=HOSTILE), "error", "introduced"),
        leaf("output.0", "warning"),
    ]
    place = Place(f"{HOSTILE}/dump.json", 12, 3)
    found = finding(
        HOSTILE,
        golden_op=HOSTILE + "2",
        slot=HOSTILE,
        parameter=HOSTILE,
        after=HOSTILE,
        only_target=[HOSTILE],
        only_golden=[HOSTILE],
        inside=[f"Module.{HOSTILE}.layers.1.C.forward.0", HOSTILE],
        stack=[HOSTILE, f"File {HOSTILE}, line 1, in {HOSTILE}, {HOSTILE}"],
        leaves=leaves,
        rank_keys=[HOSTILE],
        ranks=[],
        target_place=place,
        golden_place=place,
    )
    ranks = [
        RankPair(0, None, HOSTILE, HOSTILE, "partial", HOSTILE),
        RankPair(0, None, HOSTILE, "", "missing", HOSTILE),
    ]
    cells = [
        Cell(HOSTILE, 1, "forward", "error", "introduced", math.inf),
        Cell(HOSTILE, None, "forward", "incomparable", "", None),
    ]
    return result(
        [found, found],
        target=HOSTILE,
        golden=HOSTILE,
        ranks=ranks,
        heat=cells,
        dtypes=[HOSTILE, HOSTILE],
        notes=[f"levels:{HOSTILE}:{HOSTILE}"],
    ), [row(1, HOSTILE, golden_op=HOSTILE + "2", path=HOSTILE, role=HOSTILE)] * 8


ALL: dict[str, Callable[[], Sample]] = {
    sample.__name__: sample
    for sample in (
        introduced,
        gap,
        every_cause,
        nothing_found,
        inconclusive,
        several_ranks,
        many_ranks,
        sixty_one_layers,
        hostile,
    )
}
