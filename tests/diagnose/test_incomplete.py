"""Ranks that others name and that are not there, and ranks that stop before the others: the records of the group tell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from numprobe.diagnose import overview
from numprobe.diagnose.nan_overflow.complete import mark_stopped
from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.messages import say
from numprobe.diagnose.nan_overflow.page.html import render_html
from numprobe.diagnose.nan_overflow.page.markdown import render_markdown
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse
from numprobe.record.errors import NumprobeError
from numprobe.report.terminal import Style
from numprobe.synth.nan import UNIT, simulate

from .samples import GLOO, INF, NAN, all_reduce, analysed, call, t, write_rank, write_step
from .test_join import made

WHOLE = {"partial": (), "missing": (), "level": "mix", "risk": "ALL"}


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """16 ranks in two pipeline stages, and the source rank, which lies in the first."""
    out = tmp_path_factory.mktemp("sixteen") / "dump"
    truth = simulate("grouped_matmul_nan", out, seed=3, size=UNIT, **WHOLE)
    return out, truth.source_ranks[0]


def without(dump: Path, out: Path, ranks: Iterable[int]) -> Path:
    shutil.copytree(dump, out)
    for rank in ranks:
        shutil.rmtree(out / "step0" / f"rank{rank}")
    return out


def terms(result: NanResult) -> dict[str, Any]:
    (best, *_) = result.sources or result.alternatives
    return {t.message.key: t.message.values.get("ranks") for t in best.terms}


# --- ranks that records name ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [[15], range(8, 16), range(8), [0, 15], [r for r in range(16) if r not in (5, 13)]])
def test_every_rank_that_a_record_names_is_missing(gone: list[int], sixteen: tuple[Path, int], tmp_path: Path):
    dump, source = sixteen
    gone = list(gone)
    result = analysed(without(dump, tmp_path / "dump", gone))
    named = [r for r in gone if any(r in d.partners for d in _digests(tmp_path / "dump"))]
    assert result.missing_ranks == named
    assert (result.verdict, result.source_ranks) == (
        ("inconclusive", []) if source in gone else ("overflow_found", [source])
    )
    assert [m.values["ranks"] for m in result.limits if m.key == "limit.rank_missing"] == [named]
    rows = {r.rank: r for r in result.ranks}
    assert {r: rows[r].role for r in named} == dict.fromkeys(named, "missing")
    unread = terms(result)
    if source in gone:
        assert source in unread["term.rank_unread"]
        assert rows[source].depends
    for lang, words in (("en", "ranks were read in full"), ("zh", "全部完整读取")):
        assert words not in render_markdown(result, lang)


def _digests(dump: Path) -> list[RankDigest]:
    view = analyse(dump, NanOptions(use_cache=False, jobs=1)).view
    assert view is not None
    return list(view.digests)


def test_a_stage_that_comes_later_costs_little(sixteen: tuple[Path, int], tmp_path: Path):
    """Ranks 8 to 15 are the second stage: what it sends back comes after the fault."""
    dump, _ = sixteen
    result = analysed(without(dump, tmp_path / "dump", range(8, 16)))
    assert terms(result)["term.unread_irrelevant"] == list(range(8, 16))
    assert "term.rank_unread" not in terms(result)
    assert not any(r.depends for r in result.ranks)


def test_one_line_names_all_of_them(sixteen: tuple[Path, int], tmp_path: Path):
    """A choice of ranks that were recorded at all is no string of warnings, and costs no more than what could come before."""
    dump, _ = sixteen
    result = analysed(without(dump, tmp_path / "dump", [r for r in range(16) if r not in (0, 8)]))
    (note,) = [m for m in result.notes if m.key == "note.named"]
    assert note.values["ranks"] == result.missing_ranks
    assert all(r.note is None for r in result.ranks)
    assert "term.unread_irrelevant" not in terms(result)


def test_ranks_that_nobody_asked_for_are_left_out_not_missing(sixteen: tuple[Path, int], tmp_path: Path):
    dump, source = sixteen
    copy = without(dump, tmp_path / "dump", [2, 15])
    beside = [r for r in range(16) if r != source]
    for result in (analysed(copy, ranks=frozenset({source})), analysed(copy / "step0" / f"rank{source}")):
        assert (result.verdict, result.source_ranks, result.missing_ranks) == ("overflow_found", [source], [])
        (left_out,) = [m for m in result.limits if m.key == "limit.left_out"]
        assert set(left_out.values["ranks"]) <= set(beside)  # type: ignore[arg-type]
    both = analysed(copy, ranks=frozenset({source, 15}))
    assert both.missing_ranks == ([15] if 15 in _named(copy, source) else [])


def _named(dump: Path, rank: int) -> list[int]:
    return next(d.partners for d in _digests(dump) if d.rank == rank)


@pytest.mark.parametrize("stray", ["rank5000", "rank1000000"])
def test_a_stray_folder_does_not_hide_the_others(stray: str, sixteen: tuple[Path, int], tmp_path: Path):
    dump, source = sixteen
    copy = without(dump, tmp_path / "dump", [11])
    shutil.copytree(copy / "step0" / "rank2", copy / "step0" / stray)
    result = analysed(copy)
    assert (result.verdict, result.source_ranks, result.missing_ranks) == ("overflow_found", [source], [11])


def test_a_folder_whose_number_no_rank_has_is_named_and_ignored(sixteen: tuple[Path, int], tmp_path: Path):
    dump, source = sixteen
    copy = without(dump, tmp_path / "dump", [])
    shutil.copytree(copy / "step0" / "rank2", copy / "step0" / "rank99999999999999999999")
    result = analysed(copy)
    assert (result.verdict, result.source_ranks, result.missing_ranks) == ("overflow_found", [source], [])
    (said,) = [m for m in result.limits if m.key == "limit.no_rank"]
    assert said.values == {"folders": "step0/rank99999999999999999999"}


@pytest.mark.parametrize("number", [99999999999999999999, 10_000_001, -3])
def test_a_rank_number_in_a_record_that_no_rank_has(number: int, tmp_path: Path):
    """As member of a group and as root: neither a rank, nor an error when the cache is written."""
    records = {
        "Distributed.all_reduce.0.forward": all_reduce(t(1.0), t(1.0), 0, number),
        "Distributed.broadcast.0.forward": call(t(1.0), {"type": "int", "value": number}, out=t(1.0)),
        "Torch.log.0.forward": call(t(1.0, 0.0), out=t(1.0, -INF)),
        "Torch.mul.0.forward": call(t(1.0, -INF), out=t(NAN)),
    }
    write_step(tmp_path / "step0", records)
    result = analyse(tmp_path, NanOptions(jobs=1)).result
    assert (result.verdict, result.source_ranks, result.missing_ranks) == ("overflow_found", [0], [])


# --- ranks that stop ------------------------------------------------------------------------------------------------


def keep_first(dump: Path, rank: int, count: int) -> None:
    file = dump / "step0" / f"rank{rank}" / "dump.json"
    content = json.loads(file.read_text())
    content["data"] = dict(list(content["data"].items())[:count])
    file.write_text(json.dumps(content, indent=1))


@pytest.mark.parametrize("count", [0, 20])
def test_a_rank_that_stops_early_is_partial(count: int, sixteen: tuple[Path, int], tmp_path: Path):
    """Its file is whole JSON, and its groups go on without it."""
    dump, source = sixteen
    for rank in (source, (source + 1) % 8):
        copy = without(dump, tmp_path / f"dump{rank}", [])
        keep_first(copy, rank, count)
        result = analysed(copy)
        assert result.partial_ranks == [rank]
        assert [m.values for m in result.limits if m.key == "limit.rank_stops"] == [{"ranks": [rank], "records": count}]
        assert rank in terms(result)["term.rank_unread"]
        row = next(r for r in result.ranks if r.rank == rank)
        assert (row.status, row.note is not None and row.note.key) == ("partial", "row.stops")
        if rank == source:
            assert (result.verdict, result.clazz) == ("inconclusive", "source_outside_view")
            assert row.role == "partial"
        else:
            assert (result.verdict, result.source_ranks) == ("overflow_found", [source])


def test_a_real_rank_without_records_gives_no_all_clear(tmp_path: Path):
    shutil.copytree(GLOO / "clean_masks", tmp_path / "dump")
    (file, *_) = sorted((tmp_path / "dump").rglob("rank1/dump.json"))
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "data": {}}))
    result = analysed(tmp_path / "dump")
    assert result.partial_ranks == [1]


def one(rank: int, records: int, *calls: Any) -> RankDigest:
    return RankDigest(f"rank{rank}", rank, records=records, calls=list(calls))


def reduces(count: int, *group: int, start: int = 0) -> list[Any]:
    return [made(10 * n, group=group or None, got=1.0 + n + start) for n in range(count)]


def stops(*digests: RankDigest) -> list[int | None]:
    mark_stopped(digests)
    return [d.rank for d in digests if d.reason == "stops"]


def pair(count: int) -> list[Any]:
    return reduces(count, 0, 1)


@pytest.mark.parametrize(
    ("what", "digests", "expected"),
    [
        ("all alike", [one(0, 100, *pair(9)), one(1, 90, *pair(9))], []),
        ("one call short, as at the end of a step", [one(0, 100, *pair(9)), one(1, 90, *pair(8))], []),
        ("a third of it", [one(0, 100, *pair(9)), one(1, 33, *pair(3))], [1]),
        ("nothing", [one(0, 100, *pair(9)), one(1, 0)], [1]),
        ("nothing, and no communication recorded", [one(0, 100), one(1, 0)], [1]),
        ("nothing anywhere", [one(0, 0), one(1, 0)], []),
        ("calls were filtered there, other records are all there", [one(0, 100, *pair(9)), one(1, 95)], []),
        (
            "began later: what it lacks is at the start",
            [one(0, 100, *pair(9)), one(1, 33, *reduces(3, 0, 1, start=6))],
            [],
        ),
        (
            "stages of different length in groups of their own",
            [
                one(0, 100, *pair(9)),
                one(1, 100, *pair(9)),
                one(2, 30, *reduces(3, 2, 3)),
                one(3, 30, *reduces(3, 2, 3)),
            ],
            [],
        ),
        (
            "groups that nobody recorded: calls of several are counted together",
            [one(0, 100, *reduces(9)), one(1, 100, *reduces(9)), one(2, 30, *reduces(3)), one(3, 30, *reduces(3))],
            [],
        ),
        (
            "the only group there is, by its default: one of four stops",
            [one(0, 100, *reduces(9)), one(1, 100, *reduces(9)), one(2, 30, *reduces(3)), one(3, 100, *reduces(9))],
            [2],
        ),
        (
            "two of four stop",
            [one(r, 100 if r < 2 else 20, *reduces(9 if r < 2 else 2, 0, 1, 2, 3)) for r in range(4)],
            [2, 3],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_stops(what: str, digests: list[RankDigest], expected: list[int]):
    assert stops(*digests) == expected


def test_inputs_of_the_clean_step_stay_clean(tmp_path: Path):
    """A step in which one rank has a single record less is whole."""
    records = {f"Torch.add.{n}.forward": call(t(1.0), out=t(1.0)) for n in range(5)}
    write_rank(tmp_path / "step0" / "rank0", records)
    write_rank(tmp_path / "step0" / "rank1", dict(list(records.items())[:4]))
    result = analysed(tmp_path)
    assert (result.verdict, result.partial_ranks) == ("no_overflow", [])


# --- how the report says it -----------------------------------------------------------------------------------------


def test_the_roles_add_up_to_the_ranks(sixteen: tuple[Path, int], tmp_path: Path):
    """A rank that passed the dirt on before its file ends has one role, and is told as read in part beside them."""
    dump, source = sixteen
    copy = without(dump, tmp_path / "dump", [11])
    file = copy / "step0" / f"rank{source + 1}" / "dump.json"
    file.write_bytes(file.read_bytes()[:-3000])
    result = analysed(copy)
    row = next(r for r in result.ranks if r.status == "partial")
    assert row.role in ("relay", "victim")
    line = next(x for x in render_markdown(result, "en").splitlines() if x.startswith("source 1"))
    *roles, partly = line.split(", ")
    assert partly == "1 of them read in part"
    assert sum(int(role.split()[1]) for role in roles) == len(result.ranks) == 16


def test_missing_ranks_share_a_line_of_the_limits(sixteen: tuple[Path, int], tmp_path: Path):
    dump, _ = sixteen
    result = analysed(without(dump, tmp_path / "dump", range(8, 16)))
    assert "| 8-15 | missing | nothing | No: it cannot come before the candidate. |" in render_markdown(result, "en")
    page = render_html(result, "en")
    assert "<td>8-15</td>" in page
    assert "<td>15</td>" not in page


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: f.write_text("garbage"), "json"),
        (lambda f: f.write_text('{"a": ' + "[" * 100_000), "deep"),
        (
            lambda f: (
                f.rename(f.parents[3] / f"elsewhere-{f.name}"),
                f.symlink_to(f.parents[3] / f"elsewhere-{f.name}"),
            ),
            "outside",
        ),
        (lambda f: (f.unlink(), f.symlink_to(f)), "ring"),
        (lambda f: (f.unlink(), f.mkdir()), "file"),
        (lambda f: f.unlink(), None),
    ],
    ids=["garbage", "nested deeply", "link out", "ring", "folder", "absent"],
)
@pytest.mark.parametrize("word", ["stack", "construct"])
def test_a_file_that_is_there_and_cannot_be_read_is_not_called_absent(
    word: str, spoil: Callable[[Path], object], reason: str | None, sixteen: tuple[Path, int], tmp_path: Path
):
    dump, source = sixteen
    copy = without(dump, tmp_path / "dump", [])
    spoil(copy / "step0" / f"rank{source}" / f"{word}.json")
    result = analysed(copy)
    said = [m for m in result.limits if word in m.key]
    if reason is None:
        assert [(m.key, m.values) for m in said] == [(f"limit.no_{word}", {"ranks": [source]})]
    else:
        values = {"ranks": [source], "reason": reason}
        assert [(m.key, m.values) for m in said] == [(f"limit.{word}_unreadable", values)]
    for lang in ("en", "zh"):
        assert "?" not in say(lang, said[0].key, **said[0].values)


def test_a_step_of_empty_folders_says_what_they_lack(tmp_path: Path):
    for rank in (0, 2):
        (tmp_path / "step0" / f"rank{rank}").mkdir(parents=True)
    with pytest.raises(NumprobeError, match="E-FMT-014") as caught:
        analysed(tmp_path)
    assert caught.value.found == "rank0: no dump.json; rank1: no such folder; rank2: no dump.json"


def test_a_link_that_leads_to_itself_is_named_as_one(tmp_path: Path):
    for rank in (0, 1):
        write_rank(tmp_path / "step0" / f"rank{rank}", {"Torch.log.0.forward": call(t(1.0), out=t(0.0))})
    link = tmp_path / "step0" / "rank1" / "dump.json"
    link.unlink()
    link.symlink_to(link)
    (row,) = [r for r in analysed(tmp_path).ranks if r.rank == 1]
    assert row.note is not None
    assert row.note.values["error"] == "E-FMT-015  a link that leads to itself"
    (shown,) = overview.inspect(tmp_path).steps
    assert [r.note for r in shown.ranks] == ["", "E-FMT-015  a link that leads to itself"]


def test_what_is_not_finite_in_a_later_step_only_is_seen_by_inspect(tmp_path: Path):
    for step, value in ((3, 0.0), (4, NAN), (5, NAN)):
        write_rank(tmp_path / f"step{step}" / "rank1", {"Torch.log.0.forward": call(t(1.0), out=t(value))})
    text = overview.render(overview.inspect(tmp_path), "en", Style())
    assert "on 1 rank, from step 4 on;" in text
    assert "shown: step 4, rank 1." in text
    text = overview.render(overview.inspect(tmp_path, steps=frozenset({3})), "zh", Style())
    assert "非有限值  无" in text
    assert "以上为 1 号卡。" in text
