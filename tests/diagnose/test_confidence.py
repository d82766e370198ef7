"""Confidence is the sum of its terms, each with its reason, and never certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.diagnose.nan_overflow.conclude import LIMITS, total
from numprobe.diagnose.nan_overflow.result import Candidate, NanResult, Params, Term
from numprobe.synth.nan import simulate

from .samples import GLOO, NAN, PYTORCH, SMALL, all_reduce, analysed, call, t, write_rank

TERMS = {
    "term.base": 0.4,
    "term.base_gap": 0.4,
    "term.unique_source": 0.2,
    "term.concurrent": -0.05,
    "term.all_explained": 0.15,
    "term.bound": 0.15,
    "term.class_proof": 0.15,
    "term.peers_clean": 0.1,
    "term.rank_unread": -0.2,
    "term.unrecorded_argument": -0.15,
    "term.grey_zone": -0.2,
    "term.gap": -0.15,
    "term.lineage_unknown": -0.1,
    "term.join_assumed": -0.05,
}


def check_terms(candidate: Candidate) -> None:
    assert candidate.confidence == pytest.approx(sum(x.value for x in candidate.terms))
    assert LIMITS[0] <= candidate.confidence <= LIMITS[1]
    for term in candidate.terms:
        if term.message.key == "term.unread_irrelevant":
            assert -0.05 <= term.value < 0
        elif term.message.key != "term.clamp":
            assert term.value == TERMS[term.message.key]
    keys = [x.message.key for x in candidate.terms]
    assert len(keys) == len(set(keys))
    assert ("term.unique_source" in keys) != ("term.concurrent" in keys)


def keys(result: NanResult) -> list[str]:
    assert result.first is not None
    return [x.message.key for x in result.first.terms]


@pytest.mark.parametrize("case", sorted(p.parent.name for p in GLOO.glob("*/expected.json")))
def test_terms_of_real_dumps(case: str):
    result = analysed(GLOO / case)
    for candidate in result.sources:
        check_terms(candidate)
    if result.first is not None:
        assert result.confidence == result.first.confidence


@pytest.mark.parametrize(
    "scenario", ["grouped_matmul_nan", "two_sources", "gap", "source_missing", "communication_fault"]
)
def test_terms_of_simulated_dumps(scenario: str, tmp_path: Path):
    simulate(scenario, tmp_path, seed=1, size=SMALL)
    result = analysed(tmp_path)
    assert result.sources + result.alternatives
    for candidate in result.sources:
        check_terms(candidate)


def test_a_proved_fault_of_one_rank():
    """0.4 + 0.2 + 0.15 + 0.15: the logarithm of rank 2 is not recorded on its peers with clean inputs."""
    result = analysed(PYTORCH / "h_distributed_4rank_nan" / "dump")
    assert keys(result) == ["term.base", "term.unique_source", "term.all_explained", "term.class_proof"]
    assert result.confidence == 0.9


def test_the_sum_is_clamped(tmp_path: Path):
    """1.0 is never claimed: the last term takes off what is too much."""
    simulate("grouped_matmul_nan", tmp_path, seed=1, size=SMALL, level="mix", risk="ALL", partial=(), missing=())
    result = analysed(tmp_path)
    assert result.first is not None
    assert [(x.message.key, x.value) for x in result.first.terms] == [
        ("term.base", 0.4),
        ("term.unique_source", 0.2),
        ("term.all_explained", 0.15),
        ("term.bound", 0.15),
        ("term.peers_clean", 0.1),
        ("term.clamp", -0.03),
    ]
    assert result.confidence == 0.97


@pytest.mark.parametrize(
    ("first", "cost"), [(True, ("term.rank_unread", -0.2)), (False, ("term.unread_irrelevant", -0.02))]
)
def test_a_missing_rank_costs_what_it_could_have_done(first: bool, cost: tuple[str, float], tmp_path: Path):
    """Rank 1 is missing and shares a group with rank 2, which reaches rank 0 before its fault; or only after it."""
    good, bad = t(1.0), t(NAN)
    with_missing = {"Distributed.all_reduce.9.forward": all_reduce(good, good, 1, 2)}
    rank0 = {
        "Distributed.all_reduce.0.forward": all_reduce(good, good, 0, 2),
        "Torch.log.0.forward": call(t(1.0, -1.0), out=bad),
        "Distributed.all_reduce.1.forward": all_reduce(bad, bad, 0, 2),
    }
    rank2 = {
        "Distributed.all_reduce.0.forward": all_reduce(good, good, 0, 2),
        "Distributed.all_reduce.1.forward": all_reduce(good, bad, 0, 2),
    }
    write_rank(tmp_path / "step0" / "rank0", rank0)
    write_rank(tmp_path / "step0" / "rank2", with_missing | rank2 if first else rank2 | with_missing)
    result = analysed(tmp_path)
    assert result.first is not None
    assert (result.source_ranks, result.missing_ranks, result.clazz) == ([0], [1], "domain_error")
    assert [(x.message.key, x.value) for x in result.first.terms if x.value < 0] == [cost]
    assert {r.rank: r.depends for r in result.ranks} == {0: False, 1: first, 2: False}


def test_gaps_and_concurrent_sources_claim_less(tmp_path: Path):
    simulate("gap", tmp_path / "gap", seed=1, size=SMALL, partial=(), missing=())
    found = analysed(tmp_path / "gap")
    assert {"term.base_gap", "term.gap"} <= set(keys(found))
    assert (found.confidence or 1) <= 0.6
    simulate("two_sources", tmp_path / "two", seed=1, size=SMALL, partial=(), missing=())
    assert "term.concurrent" in keys(analysed(tmp_path / "two"))


def test_the_total_is_rounded_not_cut():
    terms = [Term(0.1, Params("a")), Term(0.2, Params("b"))]
    assert total(terms) == 0.3
