"""NanResult objects as the skill would build them: the 512 ranks of the simulated fault, and the other outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable

from numprobe.diagnose.nan_overflow.result import (
    Bound,
    Candidate,
    ChainLink,
    Citation,
    Evidence,
    Excluded,
    Frame,
    JoinSummary,
    NanResult,
    Params,
    RankRow,
    Slot,
    Spread,
    StepRow,
    Term,
)

NAN = math.nan
OP = "NPU.npu_grouped_matmul.7.forward"
BF16_MAX = 3.3895313892515355e38
RECORDS = 20_086


def cite(rank: int, index: int, name: str, slot: str = "", offset: int = 18_221_904) -> Citation:
    return Citation(f"rank{rank}", rank, 0, index, name, slot, f"step0/rank{rank}/dump.json", offset, 1204)


def tensor(
    slot: str,
    role: str,
    shape: tuple[int, ...],
    figures: tuple[float | int | None, ...],
    state: str = "finite",
    dtype: str = "torch.bfloat16",
) -> Slot:
    return Slot(slot, role, "torch.Tensor", dtype, shape, *figures, state=state)


def matmul_slots() -> list[Slot]:
    return [
        tensor("input_args.0.0", "input", (1024, 512), (7.9375, -8.0, 0.01243, 1391.2)),
        tensor("input_args.1.0", "parameter", (4, 512, 2048), (0.10009, -0.1001, 1.9041e-5, 40.93)),
        tensor("input_kwargs.group_list", "input", (4,), (411, 0, 256.0, None), dtype="torch.int64"),
        Slot("input_kwargs.split_item", "input", "int", value="3", state=""),
        tensor("output.0", "output", (1024, 2048), (NAN, NAN, NAN, NAN), "NaN"),
    ]


def chain() -> list[ChainLink]:
    path = "Module.module.module.decoder"
    names = [
        f"{path}.layers.3.mlp.experts.GroupedMLP.forward.0",
        f"{path}.layers.3.mlp.MoELayer.forward.0",
        f"{path}.layers.3.TransformerLayer.forward.0",
        f"{path}.TransformerBlock.forward.0",
        "Module.module.module.GPTModel.forward.0",
    ]
    return [ChainLink(OP, False, True, 1644), *(ChainLink(name, False, True, 1600 - n) for n, name in enumerate(names))]


def matmul_candidate() -> Candidate:
    return Candidate(
        ranks=[168],
        rank_key="rank168",
        rank=168,
        step=0,
        op_name=OP,
        op_index=1644,
        kind="introduced",
        clazz="kernel_fault",
        confidence=0.80,
        micro_batch=0,
        layer=11,
        module="module.module.decoder.layers.3.mlp.experts.GroupedMLP",
        slots=matmul_slots(),
        chain=chain(),
        frame=Frame(
            "moe/experts.py",
            148,
            "GroupedMLP.forward",
            "fc2_output = npu_grouped_matmul([intermediate], [self.weight2], group_list=tokens_per_expert, ...)",
        ),
        stack=[
            "File moe/experts.py, line 148, in forward, \n fc2_output = npu_grouped_matmul([intermediate], [self.weight2])",
            "File moe/moe_layer.py, line 212, in forward, \n expert_output, mlp_bias = self.experts(dispatched_input)",
            "File pretrain_gpt.py, line 96, in forward_step, \n output_tensor = model(tokens, position_ids)",
        ],
        bound=Bound(True, None, "K * max|x| * max|w|", "512 x 8.000 x 0.1001", 410.0, "bf16", BF16_MAX, True),
        peers_clean=127,
        terms=[
            Term(0.40, Params("term.base")),
            Term(0.20, Params("term.unique_source")),
            Term(0.15, Params("term.all_explained", {"count": 510})),
            Term(0.15, Params("term.bound", {"bound": 410.0, "kinds": "NaN"})),
            Term(0.10, Params("term.peers_clean", {"peers": 127})),
            Term(-0.20, Params("term.rank_unread", {"ranks": [77]})),
        ],
        citation=cite(168, 1644, OP, "output.0"),
        explains=510,
    )


A2A = "Distributed.all_to_all_single.{}.forward"
STAGE_RANKS = range(128, 256)


def _waves() -> list[tuple[str, str, str, int, list[int]]]:
    """Name, API, phase, instances and new ranks of each line of the spread; the grid is PP 4, EP 32, TP 4."""
    combine = [r for r in STAGE_RANKS if r % 4 == 0 and r != 168][:23]
    reduced = [r for r in STAGE_RANKS if r // 4 in {c // 4 for c in [*combine, 168]} and r not in {*combine, 168}]
    rest = [r for r in STAGE_RANKS if r not in {168, *combine, *reduced}]
    return [
        (OP, "npu_grouped_matmul", "forward", 0, [168]),
        (A2A.format(7), "all_to_all_single", "forward", 1, combine),
        ("Distributed.all_reduce.4.forward", "all_reduce", "forward", 24, reduced),
        (A2A.format(8), "all_to_all_single", "forward", 4, rest),
        ("Distributed.isend.0.forward", "isend", "forward", 128, list(range(256, 384))),
        ("Distributed.isend.0.forward", "isend", "forward", 128, list(range(384, 512))),
        ("Distributed.isend.0.backward", "isend", "backward", 127, [r for r in range(128) if r != 77]),
    ]


ARRIVED = {
    0: OP,
    1: A2A.format(7),
    2: "Distributed.all_reduce.4.forward",
    3: A2A.format(8),
    4: "Distributed.irecv.0.forward",
    5: "Distributed.irecv.0.forward",
    6: "Distributed.irecv.0.backward",
}
INDEX = {0: 1644, 1: 1651, 2: 1702, 3: 1911, 4: 2, 5: 2, 6: 10_877}


def _sources_of(rank: int, wave: int) -> list[int]:
    if wave == 1:
        return [168]
    if wave == 2:
        return [rank // 4 * 4]
    if wave == 3:
        return [r for r in STAGE_RANKS if r % 4 == rank % 4 and r < 224]
    return [rank - 128 if wave in (4, 5) else rank + 128] if wave else []


def _via(rank: int, wave: int) -> str:
    api = ["", "all_to_all_single", "all_reduce", "all_to_all_single", "isend", "isend", "isend"][wave]
    group = [
        "",
        "3f9a01bc",
        f"tp{rank // 4:03d}",
        f"ep{rank % 4}",
        f"{rank - 128}-{rank}",
        f"{rank - 128}-{rank}",
        f"{rank + 128}-{rank}",
    ][wave]
    return f"{api}@{group}#{[0, 7, 4, 8, 0, 0, 0][wave]}" if wave else ""


def ranks_512(names: dict[int, str] | None = None) -> list[RankRow]:
    wave_of = {rank: n for n, wave in enumerate(_waves()) for rank in wave[4]}
    rows = []
    for rank in range(512):
        place = {"pp": rank // 128, "tp": rank % 4, "ep": rank % 128 // 4}
        if rank == 77:
            note = Params("row.missing", {"folder": "step0/rank77"})
            rows.append(RankRow("rank77", 77, "missing", "missing", place, depends=True, note=note))
            continue
        wave = wave_of[rank]
        relays = 128 <= rank < 384
        partial = rank == 311
        rows.append(
            RankRow(
                f"rank{rank}",
                rank,
                "source" if rank == 168 else "relay" if relays else "victim",
                "partial" if partial else "ok",
                place,
                8412 if partial else RECORDS,
                ARRIVED[wave],
                INDEX[wave],
                _via(rank, wave),
                _sources_of(rank, wave),
                note=Params("row.partial", {"records": 8412, "index": 8412, "offset": 5_908_211}) if partial else None,
            )
        )
    return rows


def spread_512() -> list[Spread]:
    lines, dirty = [], 0
    for order, (name, api, phase, instances, new) in enumerate(_waves()):
        dirty += len(new)
        sources = sorted({source for rank in new for source in _sources_of(rank, order)})
        lines.append(
            Spread(order, _via(new[0], order) or OP, name, api, phase, instances, "verified", new, sources, dirty)
        )
    return lines


def evidence_512() -> list[Evidence]:
    here, peer = cite(168, 1644, OP, "output.0"), cite(172, 1644, OP, "output.0", 18_219_466)
    return [
        Evidence("E1", Params("evidence.first_dirty", {"op": OP, "slot": "output.0", "kinds": "NaN"}), [here]),
        Evidence("E2", Params("evidence.bound", {"bound": 410.0, "dtype": "bf16", "dtype_max": BF16_MAX}), [here]),
        Evidence("E3", Params("evidence.peers_clean", {"peers": 127, "max_abs": 61.8}), [peer]),
        Evidence(
            "E4",
            Params("evidence.only_home_grown", {"ranks": [168], "verified": 7}),
            [
                cite(168, 1651, A2A.format(7), "input_args.1", 18_300_117),
                cite(132, 1651, A2A.format(7), "input_args.1"),
            ],
        ),
        Evidence("E5", Params("evidence.all_explained", {"count": 510})),
        Evidence(
            "E6",
            Params(
                "evidence.peer_observation",
                {
                    "slot": "input_kwargs.group_list",
                    "stat": "Min",
                    "rank": 168,
                    "value": 0,
                    "peers": 127,
                    "low": 96,
                    "high": 201,
                },
            ),
            [cite(168, 1644, OP, "input_kwargs.group_list"), cite(172, 1644, OP, "input_kwargs.group_list")],
            proves=False,
        ),
    ]


def excluded_512() -> list[Excluded]:
    kinds = [
        ("Tensor.masked_fill", 24_528, 511, "-inf", "mask_fill", "exact"),
        ("Distributed.all_to_all_single", 2_448, 51, "NaN", "placeholder", "exact"),
        ("Tensor.triu", 1_022, 511, "-inf", "mask_builder", "exact"),
        ("Torch.empty", 462, 154, "NaN, inf", "allocation_overwritten", "structural"),
        ("Tensor.clone", 391, 154, "NaN", "carried", "matched"),
        ("Functional.softmax", 96, 96, "-inf", "overflowed_stat", "exact"),
        ("Tensor.__truediv__", 1, 1, "inf", "absorbed", "matched"),
    ]
    return [
        Excluded(*kind, example=cite(40 + n, 300 + n, f"{kind[0]}.3.forward", "output.0"))
        for n, kind in enumerate(kinds)
    ]


def config(ops: str) -> str:
    return '{"task": "tensor", "level": "L1", "step": [0], "rank": [168, 172],\n "list": ["' + ops + '"]}'


def kernel_fault_512() -> NanResult:
    """512 ranks, NaN from a kernel on rank 168; rank 77 missing, rank 311 cut short."""
    return NanResult(
        verdict="overflow_found",
        step=0,
        source_ranks=[168],
        rank=168,
        clazz="kernel_fault",
        confidence=0.80,
        headline=Params("headline.introduced", {"ranks": [168], "op": OP, "kinds": "NaN", "layer": 11}),
        dump="first_step_nan",
        framework="pytorch",
        level="mix",
        sources=[matmul_candidate()],
        evidence=evidence_512(),
        excluded=excluded_512(),
        ranks=ranks_512(),
        spread=spread_512(),
        join=JoinSummary(
            31_204,
            31_190,
            0,
            14,
            0,
            6,
            [Params("note.join.dangling", {"count": 6}), Params("note.join.shifted", {"group": "3f9a01bc"})],
        ),
        steps=[StepRow(0, 512, [311], [77], 10_252_272, 511, "dirty")],
        partial_ranks=[311],
        missing_ranks=[77],
        limits=[Params("limit.in_place"), Params("limit.detection")],
        next_checks=[
            Params("check.rerun_op", {"op": OP}),
            Params("check.empty_expert", {"slot": "input_kwargs.group_list"}),
            Params("check.kernel_memory", {"command": config("npu_grouped_matmul.7")}),
            Params("check.read_rank", {"ranks": [77], "command": "numprobe nan first_step_nan"}),
            Params("check.exclude", {"command": f"numprobe nan first_step_nan --exclude {OP}"}),
        ],
        notes=[Params("note.layer_offset", {"local": 3, "stage": 1, "layer": 11, "grade": "deduced"})],
        records=10_252_272,
        bytes=7_310_000_000,
    )


def no_overflow() -> NanResult:
    """Eight clean ranks with masks and buffers."""
    rows = [RankRow(f"rank{r}", r, "clean", "ok", {"tp": r % 2, "dp": r // 2}, 1200) for r in range(8)]
    return NanResult(
        verdict="no_overflow",
        step=3,
        headline=Params("headline.look_alikes", {"records": 9600, "ranks": 8, "count": 412}),
        dump="clean_run",
        framework="pytorch",
        level="mix",
        ranks=rows,
        excluded=[
            Excluded(
                "Tensor.masked_fill",
                400,
                8,
                "-inf",
                "mask_fill",
                "matched",
                cite(0, 12, "Tensor.masked_fill.0.forward", "output.0"),
            ),
            Excluded(
                "Torch.empty",
                12,
                4,
                "NaN",
                "allocation_overwritten",
                "structural",
                cite(1, 3, "Torch.empty.0.forward", "output.0"),
            ),
        ],
        join=JoinSummary(96, 96),
        steps=[StepRow(step, 8, [], [], 9600, 0, "look_alikes_only") for step in (2, 3)],
        limits=[Params("limit.detection")],
        records=9600,
        bytes=4_200_000,
    )


def source_outside_view() -> NanResult:
    """Rank 77 is missing and all readable inputs of the first dirty communication are clean: inconclusive."""
    name = "Distributed.all_reduce.2.forward"
    best = Candidate(
        ranks=[76],
        rank_key="rank76",
        rank=76,
        step=0,
        op_name=name,
        op_index=512,
        kind="outside",
        clazz="source_outside_view",
        confidence=0.4,
        slots=[
            tensor("input_args.0", "input", (4096, 7168), (3.5, -3.25, 0.001, 412.0)),
            tensor("output.0", "output", (4096, 7168), (NAN, NAN, NAN, NAN), "NaN"),
        ],
        chain=[ChainLink(name, False, True, 512)],
        bound=Bound(False, Params("bound.not_source")),
        terms=[Term(0.40, Params("term.base"))],
        citation=cite(76, 512, name, "output.0"),
        suspects=[77],
    )
    rows = [RankRow(f"rank{r}", r, "victim", "ok", {}, 900, name, 512, "all_reduce@tp19#2", [77]) for r in (76, 78, 79)]
    rows.insert(
        1,
        RankRow(
            "rank77", 77, "missing", "missing", depends=True, note=Params("row.missing", {"folder": "step0/rank77"})
        ),
    )
    return NanResult(
        verdict="inconclusive",
        step=0,
        headline=Params("headline.outside", {"op": name, "ranks": [76], "kinds": "NaN"}),
        dump="missing_source",
        framework="pytorch",
        level="L1",
        alternatives=[best],
        evidence=[
            Evidence(
                "E1",
                Params("evidence.communication_inputs", {"members": 3, "op": name}),
                [cite(76, 512, name, "input_args.0")],
            ),
            Evidence("E2", Params("evidence.suspects", {"ranks": [77], "op": name})),
        ],
        ranks=rows,
        missing_ranks=[77],
        join=JoinSummary(12, 10, 0, 2),
        limits=[Params("limit.no_construct")],
        next_checks=[Params("check.read_rank", {"ranks": [77], "command": "numprobe nan missing_source"})],
        records=2700,
        bytes=900_000,
    )


def gap() -> NanResult:
    """Modules only: the operator between two records was not recorded."""
    last, first = "Module.blocks.1.ln_2.LayerNorm.forward.0", "Module.blocks.1.mlp.down_proj.Linear.forward.0"
    candidate = Candidate(
        ranks=[2],
        rank_key="rank2",
        rank=2,
        step=0,
        op_name=first,
        op_index=31,
        kind="gap",
        confidence=0.55,
        layer=1,
        gap_after=last,
        gap_after_index=29,
        slots=[
            tensor("input_args.0", "input", (4, 64), (NAN, NAN, NAN, NAN), "NaN", "torch.float32"),
            tensor("output.0", "output", (4, 32), (NAN, NAN, NAN, NAN), "NaN", "torch.float32"),
        ],
        chain=[
            ChainLink(first, True, True, 31),
            ChainLink("Module.blocks.1.mlp.ShardedMLP.forward.0", False, True, 30),
            ChainLink("Module.blocks.1.Block.forward.0", None, None),
        ],
        bound=Bound(False, Params("bound.not_source")),
        terms=[
            Term(0.40, Params("term.base_gap")),
            Term(0.20, Params("term.unique_source")),
            Term(0.15, Params("term.all_explained", {"count": 3})),
            Term(-0.20, Params("term.gap")),
        ],
        citation=cite(2, 31, first, "input_args.0"),
        explains=3,
    )
    rows = [
        RankRow(
            f"rank{r}",
            r,
            "source" if r == 2 else "victim",
            "ok",
            {},
            140,
            first if r == 2 else "Module.blocks.1.mlp.ShardedMLP.forward.0",
            30,
        )
        for r in range(4)
    ]
    return NanResult(
        verdict="overflow_found",
        step=0,
        source_ranks=[2],
        rank=2,
        clazz="unknown",
        confidence=0.55,
        headline=Params("headline.gap", {"ranks": [2], "op": first, "after": last, "kinds": "NaN"}),
        dump="modules_only",
        framework="pytorch",
        level="L0",
        sources=[candidate],
        evidence=[
            Evidence(
                "E1", Params("evidence.gap", {"after": last, "op": first}), [cite(2, 29, last), cite(2, 31, first)]
            ),
            Evidence(
                "E2",
                Params(
                    "evidence.hidden_communication",
                    {"ranks": [0, 1, 3], "op": "Module.blocks.1.mlp.ShardedMLP.forward.0"},
                ),
            ),
        ],
        ranks=rows,
        limits=[Params("limit.level_l0"), Params("limit.no_communication"), Params("limit.no_stack")],
        next_checks=[
            Params("check.record_gap", {"after": last, "op": first}),
            Params("check.record_operators", {"op": first}),
        ],
        records=560,
        bytes=400_000,
    )


def two_sources() -> NanResult:
    """Two independent sources in different groups, one of them replicated; not all ranks are reached."""
    first = Candidate(
        ranks=[2, 3],
        rank_key="rank2",
        rank=2,
        step=1,
        op_name="Functional.linear.12.forward",
        op_index=88,
        kind="parameter",
        clazz="bad_parameter",
        confidence=0.72,
        slots=[
            tensor("input_args.1", "parameter", (64, 64), (NAN, NAN, NAN, NAN), "NaN", "torch.float32"),
            tensor("output.0", "output", (8, 64), (NAN, NAN, NAN, NAN), "NaN", "torch.float32"),
        ],
        chain=[ChainLink("Functional.linear.12.forward", True, True, 88)],
        terms=[Term(0.40, Params("term.base")), Term(0.32, Params("term.class_proof", {"class": "bad_parameter"}))],
        citation=cite(2, 88, "Functional.linear.12.forward", "input_args.1"),
        concurrent_with=["Torch.log.0.forward"],
    )
    second = Candidate(
        ranks=[6],
        rank_key="rank6",
        rank=6,
        step=1,
        op_name="Torch.log.0.forward",
        op_index=40,
        kind="introduced",
        clazz="domain_error",
        confidence=0.66,
        kinds="-inf",
        citation=cite(6, 40, "Torch.log.0.forward", "output.0"),
        terms=[Term(0.40, Params("term.base")), Term(0.26, Params("term.concurrent", {"count": 1}))],
    )
    rows = [
        RankRow(
            f"rank{r}",
            r,
            "source" if r in (2, 3, 6) else "victim" if r in (0, 1, 7) else "clean",
            "ok",
            {"tp": r % 2},
            200,
        )
        for r in range(8)
    ]
    return NanResult(
        verdict="overflow_found",
        step=1,
        source_ranks=[2, 3],
        rank=2,
        clazz="bad_parameter",
        confidence=0.72,
        headline=Params(
            "headline.parameter", {"ranks": [2, 3], "op": first.op_name, "slot": "input_args.1", "kinds": "NaN"}
        ),
        dump="two_sources",
        framework="pytorch",
        level="L1",
        sources=[first, second],
        alternatives=[
            Candidate(
                [0],
                "rank0",
                0,
                1,
                "Tensor.div.3.forward",
                12,
                "introduced",
                "unknown",
                0.2,
                citation=cite(0, 12, "Tensor.div.3.forward"),
            )
        ],
        evidence=[
            Evidence(
                "E1",
                Params("evidence.parameter", {"slot": "input_args.1", "op": first.op_name, "kinds": "NaN"}),
                [first.citation],
            ),
            Evidence("E2", Params("evidence.replicated", {"ranks": [2, 3]})),
            Evidence("E3", Params("evidence.concurrent", {"op": second.op_name, "ranks": [6]}), [second.citation]),
        ],
        ranks=rows,
        spread=[
            Spread(0, "", first.op_name, "linear", "forward", 0, "verified", [2, 3], [], 2),
            Spread(
                1,
                "all_reduce@0#1",
                "Distributed.all_reduce.1.forward",
                "all_reduce",
                "forward",
                1,
                "consistent",
                [0, 1],
                [2, 3],
                4,
            ),
        ],
        steps=[
            StepRow(0, 8, [], [], 1600, 0, "clean"),
            StepRow(1, 8, [], [], 1600, 6, "dirty"),
            StepRow(2, 8, [], [], 0, 0, "not_scanned"),
        ],
        next_checks=[Params("check.parameter", {"slot": "input_args.1"})],
        notes=[Params("note.steps", {"step": 1})],
        records=3200,
    )


def one_process() -> NanResult:
    """A single proc folder: no rank number, no communication, nothing to compare with."""
    name = "Torch.log.0.forward"
    here = Citation("proc4711", None, None, 5, name, "output.0", "dump.json", 0, 900)
    candidate = Candidate(
        ranks=[],
        rank_key="proc4711",
        rank=None,
        step=None,
        op_name=name,
        op_index=5,
        kind="introduced",
        clazz="domain_error",
        confidence=0.6,
        kinds="-inf",
        slots=[
            tensor("input_args.0", "input", (), (0.0, 0.0, 0.0, 0.0), dtype="torch.float32"),
            tensor("output.0", "output", (), (-math.inf, -math.inf, -math.inf, math.inf), "-inf", "torch.float32"),
        ],
        terms=[Term(0.4, Params("term.base")), Term(0.2, Params("term.unique_source"))],
        citation=here,
    )
    return NanResult(
        verdict="overflow_found",
        clazz="domain_error",
        confidence=0.6,
        headline=Params("headline.introduced", {"ranks": "proc4711", "op": name, "kinds": "-inf"}),
        dump="proc4711",
        framework="pytorch",
        level="L1",
        sources=[candidate],
        evidence=[
            Evidence(
                "E1",
                Params(
                    "evidence.domain", {"op": name, "slot": "input_args.0", "stat": "Min", "value": 0.0, "edge": "zero"}
                ),
                [here],
            )
        ],
        ranks=[RankRow("proc4711", None, "source", "ok", {}, 30, name, 5)],
        next_checks=[Params("check.domain", {"op": name, "slot": "input_args.0"})],
        records=30,
        bytes=9000,
    )


HOSTILE = "</script><img src=x onerror=alert(1)>\"'&`|.层\u202e名.\x1b[31m{{7*7}}.forward"


def hostile() -> NanResult:
    """Every text of the dump tries to leave its place."""
    result = kernel_fault_512()
    here = Citation("rank168", 168, 0, 1644, HOSTILE, HOSTILE, f"step0/{HOSTILE}/dump.json", 12, 3)
    first = result.sources[0]
    first.op_name, first.citation, first.gap_after = HOSTILE, here, HOSTILE
    first.chain = [ChainLink(HOSTILE, False, True, 3)]
    first.frame = Frame(HOSTILE, 1, HOSTILE, HOSTILE)
    first.stack = [HOSTILE]
    first.slots = [
        Slot(HOSTILE, "output", "torch.Tensor", "torch.float32", (1,), NAN, NAN, NAN, NAN, "NaN"),
        Slot(HOSTILE, "input", HOSTILE, value=HOSTILE),
    ]
    result.headline = Params("headline.introduced", {"ranks": [168], "op": HOSTILE, "kinds": "NaN"})
    result.evidence = [
        Evidence("E1", Params("evidence.first_dirty", {"op": HOSTILE, "slot": HOSTILE, "kinds": "NaN"}), [here])
    ]
    result.dump = HOSTILE
    result.user_excluded = [HOSTILE]
    result.excluded = [Excluded(HOSTILE, 1, 1, "NaN", "carried", "unknown", here)]
    result.ranks = [RankRow(HOSTILE, None, "victim", "ok", {}, 3, HOSTILE, 2, HOSTILE), *result.ranks]
    result.next_checks = [Params("check.exclude", {"command": f"numprobe nan {HOSTILE}"})]
    return result


def many_ranks() -> NanResult:
    """4,096 ranks: the grid shows groups."""
    result = kernel_fault_512()
    more = [RankRow(f"rank{r}", r, "clean", "ok", {"pp": r // 1024, "tp": r % 4}, 100) for r in range(512, 4096)]
    places = [
        RankRow(
            row.rank_key,
            row.rank,
            row.role,
            row.status,
            {"pp": 0, "tp": n % 4},
            row.records,
            row.first_dirty,
            row.first_dirty_index,
            row.via,
            row.from_ranks,
            row.depends,
            row.note,
        )
        for n, row in enumerate(result.ranks)
    ]
    result.ranks = places + more
    return result


ALL: dict[str, Callable[[], NanResult]] = {
    "kernel_fault_512": kernel_fault_512,
    "no_overflow": no_overflow,
    "source_outside_view": source_outside_view,
    "gap": gap,
    "two_sources": two_sources,
    "one_process": one_process,
    "hostile": hostile,
    "many_ranks": many_ranks,
}


def nothing_known() -> NanResult:
    """A dump without Max and Min: no rank says anything."""
    return NanResult(
        "inconclusive", headline=Params("headline.no_statistics", {"task": "structure"}), dump="structure_only"
    )


ALL["nothing_known"] = nothing_known
