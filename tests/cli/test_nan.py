"""``numprobe nan``: exit codes, JSON, streams, languages, the run's folder."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .shell import CLEAN, NO_FIGURES, H, command, copy_of_h, environment, numprobe, process, tree

FIXED = [  # design: these keys, in this order; more may follow
    *("verdict", "step", "source_ranks", "rank", "class", "confidence", "first_anomaly"),
    *("partial_ranks", "missing_ranks", "out"),
]
ARTIFACTS = ["1_steps.json", "2_events.csv", "3_instances.csv", "4_sources.json", "5_ranks.csv"]
REPORTS = ["report.html", "report.md", "result.json", "run.json"]
MSPROBE = ["cross_rank_analysis.json", "first_contamination.json", "rank_status.csv", "root_cause.json"]


# --- verdict, exit code, JSON ----------------------------------------------------------------------------------------


def test_a_problem_was_found(tmp_path: Path):
    ran = process(tmp_path, "nan", H, "-o", "out", "--json")
    assert ran.code == 1
    assert list(ran.json)[: len(FIXED)] == FIXED
    found = {k: ran.json[k] for k in FIXED if k != "first_anomaly"}
    assert found == {
        "verdict": "overflow_found",
        "step": 0,
        "source_ranks": [2],
        "rank": 2,
        "class": "domain_error",
        "confidence": 0.9,
        "partial_ranks": [],
        "missing_ranks": [],
        "out": "out",
    }
    assert ran.json["first_anomaly"]["op_name"] == "Torch.log.0.forward"
    assert ran.json["first_anomaly"]["gap_after"] is None
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(ARTIFACTS + REPORTS)


def test_nothing_wrong(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", CLEAN, "-o", "out", "--json")
    assert ran.code == 0
    assert {k: ran.json[k] for k in FIXED} == {
        "verdict": "no_overflow",
        "step": None,
        "source_ranks": [],
        "rank": None,
        "class": None,
        "confidence": None,
        "first_anomaly": None,
        "partial_ranks": [],
        "missing_ranks": [],
        "out": "out",
    }


def test_the_data_cannot_decide(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", NO_FIGURES, "-o", "out", "--json")
    assert (ran.code, ran.json["verdict"], ran.json["rank"], ran.json["source_ranks"]) == (3, "inconclusive", None, [])
    ran = numprobe(tmp_path, "nan", NO_FIGURES, "-o", "text", "--lang", "en")
    assert ran.code == 3
    assert "no Max and no Min" in ran.out
    assert "summary_mode statistics" in " ".join(ran.out.split())  # what would decide


def test_json_goes_to_stdout_and_all_else_to_stderr(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--json")
    assert ran.out.count("\n") == 1
    assert [line.split(":")[0] for line in ran.err.splitlines()] == [
        "✓ 1/5 discover",
        "✓ 2/5 scan ranks",
        "✓ 3/5 join collectives",
        "✓ 4/5 rank the sources",
        "✓ 5/5 trace and report",
    ]


def test_the_conclusion_goes_to_stdout(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--lang", "en")
    assert ran.out.startswith("✗ overflow found. Rank 2 made the NaN: Torch.log.0.forward")
    assert ran.out.rstrip().endswith("out/report.html")
    assert "1/5" not in ran.out
    assert "\x1b[" not in ran.out + ran.err  # no terminal, no colours


def test_quiet(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--quiet")
    assert (ran.code, ran.err) == (1, "")
    assert "overflow found" in ran.out


def test_progress_as_json_lines(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--progress", "json", "--json")
    events = [json.loads(line) for line in ran.err.splitlines()]
    assert [(e["stage"], e["of"], e["state"]) for e in events if e["state"] == "done"] == [
        (n, 5, "done") for n in range(1, 6)
    ]
    assert {e["kind"] for e in events} == {"progress"}
    assert {"kind", "stage", "of", "name", "done", "total", "eta_s", "note", "state", "elapsed_s"} == set(events[0])
    scanned = next(e for e in events if e["stage"] == 2 and e["state"] == "done")
    assert (scanned["name"], scanned["done"], scanned["total"]) == ("nan.stage.scan", 4, 4)
    assert ran.json["verdict"] == "overflow_found"


def test_languages(tmp_path: Path):
    zh = numprobe(tmp_path, "nan", H, "-o", "zh", "--lang", "zh")
    en = numprobe(tmp_path, "nan", H, "-o", "en", "--lang", "en")
    assert zh.code == en.code == 1
    assert "号卡" in zh.out
    assert "号卡" not in en.out
    assert any("\u4e00" <= c <= "\u9fff" for c in zh.err)
    for lang, one in (("zh", zh), ("en", en)):
        report = (tmp_path / lang / "report.md").read_text()
        assert ("号卡" in report) == (lang == "zh")
        assert f'lang="{lang}' in (tmp_path / lang / "report.html").read_text()[:300]
        assert "Torch.log.0.forward" in one.out
    by_locale = numprobe(tmp_path, "nan", H, "-o", "locale", LANG="zh_CN.UTF-8")
    assert by_locale.out.replace("locale/", "zh/") == zh.out


def test_verbose_prints_the_map_of_ranks(tmp_path: Path):
    assert "vvSv" in numprobe(tmp_path, "nan", H, "-o", "out", "--verbose", "--lang", "en").out.replace(" ", "")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_with_json_progress_warnings_and_errors_are_json_too(lang: str, tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    shutil.rmtree(dump / "step0" / "rank0")
    os.truncate(dump / "step0" / "rank1" / "dump.json", 60_000)
    (dump / "step0" / "rank3" / "dump.json").write_text("[1]")
    arguments = ("nan", dump, "--progress", "json", "--lang", lang)
    for encoding in ("utf-8", "ascii", "gbk"):
        ran = process(tmp_path, *arguments, "-o", encoding, "--json", PYTHONIOENCODING=encoding)
        events = [json.loads(line) for line in ran.err.splitlines()]
        warnings = [e for e in events if e["kind"] == "warning"]
        assert {e["kind"] for e in events} == {"progress", "warning"}
        assert [(w["code"], w["where"]) for w in warnings] == [
            ("E-FMT-020", "rank0/dump.json"),
            ("E-FMT-021", "rank1/dump.json"),
            ("E-FMT-011", "rank3/dump.json"),
        ]
        assert all(w["what"] and w["do"] for w in warnings)
    (error,) = [json.loads(line) for line in numprobe(tmp_path, "nan", "gone", "--progress=json").err.splitlines()]
    assert (error["kind"], error["code"], error["where"]) == ("error", "E-FMT-001", "gone")
    (error,) = [json.loads(x) for x in numprobe(tmp_path, "nan", "x", "--progress", "json", "--no").err.splitlines()]
    assert (error["kind"], error["code"]) == ("error", "E-USE-001")


# --- choices ---------------------------------------------------------------------------------------------------------


def test_ranks_and_steps_can_be_chosen(tmp_path: Path):
    one = numprobe(tmp_path, "nan", H, "-o", "a", "--rank", "2", "--json")
    assert (one.code, one.json["source_ranks"]) == (1, [2])
    others = numprobe(tmp_path, "nan", H, "-o", "b", "--rank", "0-1,3", "--json")
    assert (others.code, others.json["class"]) == (3, "source_outside_view")
    step = numprobe(tmp_path, "nan", CLEAN, "-o", "c", "--step", "0", "--json")
    assert (step.code, json.loads((tmp_path / "c" / "1_steps.json").read_text())[0]["step"]) == (0, 0)


def test_an_exclusion_gives_the_next_candidate(tmp_path: Path):
    groups = H.parent.parent.parent / "compare" / "overflow_groups"
    every = numprobe(tmp_path, "nan", groups, "-o", "a", "--json")
    assert every.json["source_ranks"] == [2, 3]
    without = numprobe(tmp_path, "nan", groups, "-o", "b", "--json", "--exclude", "Torch.mul.1.")
    assert (without.json["source_ranks"], without.json["first_anomaly"]["op_name"]) == ([0, 1], "Torch.mul.4.forward")
    nothing = numprobe(tmp_path, "nan", groups, "-o", "c", "--json", "--exclude", "Torch.mul.", "--exclude", "Dist")
    assert nothing.json["source_ranks"] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_exclusion_that_matches_nothing_is_said(lang: str, tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--exclude", "Torch.no_such", "--lang", lang)
    assert ran.code == 1
    assert {"en": "matched no candidate: Torch.no_such", "zh": "未匹配任何候选：Torch.no_such"}[lang] in ran.out


def test_more_nodes(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "-k", "5", "--json")
    sources = json.loads((tmp_path / "out" / "4_sources.json").read_text())["sources"]
    assert 1 <= len(sources) <= 5
    assert sources[0]["op_name"] == ran.json["first_anomaly"]["op_name"]


# --- msProbe's files -------------------------------------------------------------------------------------------------


def test_the_file_names_of_msprobe(tmp_path: Path):
    numprobe(tmp_path, "nan", H, "-o", "out", "--compat", "msprobe")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(ARTIFACTS + REPORTS + MSPROBE)
    table = json.loads((tmp_path / "out" / "cross_rank_analysis.json").read_text())
    first, second = list(table.items())[:2]
    assert first == (
        "Distributed.all_reduce.1.forward",
        {
            "source_ranks": [2],
            "relay_ranks": [],
            "propagated_ranks": [0, 1, 3],
            "normal_ranks": [],
            "total_ranks": 4,
            "group": "world",
            "ordinal": 1,
            "order": 0,
        },
    )
    assert (second[1]["source_ranks"], second[1]["relay_ranks"]) == ([2], [0, 1, 3])  # received dirt is no source
    cause = json.loads((tmp_path / "out" / "root_cause.json").read_text())
    assert {k: cause[k] for k in ("verdict", "rank", "class", "partial_ranks", "missing_ranks", "alternatives")} == {
        "verdict": "overflow_found",
        "rank": 2,
        "class": "domain_error",
        "partial_ranks": [],
        "missing_ranks": [],
        "alternatives": [],
    }
    assert cause["first_contamination"] == {
        "instance": "all_reduce@world#1",
        "clean_before": [0, 1, 3],
        "dirty_before": [2],
    }
    anomaly = cause["first_anomaly"]
    assert set(anomaly) >= {
        *(
            "op_name",
            "exec_order",
            "micro_batch",
            "layer",
            "input_info",
            "output",
            "bound",
            "construct_chain",
            "stack_info",
        )
    }
    assert anomaly["output"] == [
        {"slot": "output.0", "shape": [2, 8, 16], "dtype": "torch.float32", "Max": "nan", "Min": "nan"}
    ]
    assert anomaly["construct_chain"][1] == "Module.blocks.1.mlp.ShardedMLP.forward.0"
    with (tmp_path / "out" / "rank_status.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["rank", "role", "first_dirty_op", "index", "via_instance"]
    assert [(r["rank"], r["role"]) for r in rows] == [
        ("0", "victim"),
        ("1", "victim"),
        ("2", "source"),
        ("3", "victim"),
    ]


# --- the run's folder ------------------------------------------------------------------------------------------------


def test_the_default_folder(tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H, "--json")
    (folder,) = (tmp_path / "numprobe_out").iterdir()
    assert ran.json["out"] == f"numprobe_out/{folder.name}"
    assert folder.name.startswith("nan-2")
    assert folder.name.endswith("Z")


def test_the_manifest(tmp_path: Path):
    numprobe(tmp_path, "nan", H, "-o", "out", "--lang", "en", "--full-digest", "--exclude", "Torch.empty")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["skill"], run["status"]) == ("nan", "done")
    assert run["options"] == {
        "step": None,
        "rank": None,
        "exclude": ["Torch.empty"],
        "top": 1,
        "lang": "en",
        "compat": None,
    }
    assert [Path(f["file"]).parent.name for f in run["input_files"]] == ["rank0", "rank1", "rank2", "rank3"]
    assert all(len(f["blake2b"]) == 64 and f["size"] > 1e5 for f in run["input_files"])
    assert {a["name"] for a in run["artifacts"]} == {*ARTIFACTS, *REPORTS} - {"run.json"}


def test_a_used_folder_is_taken_only_for_the_same_run(tmp_path: Path):
    assert numprobe(tmp_path, "nan", H, "-o", "out").code == 1
    before = (tmp_path / "out" / "report.md").read_bytes()
    assert numprobe(tmp_path, "nan", H, "-o", "out").code == 1  # the same: taken up
    assert (tmp_path / "out" / "report.md").read_bytes() == before
    other = numprobe(tmp_path, "nan", H, "-o", "out", "-k", "3")
    assert other.code == 2
    assert "E-OUT-001" in other.err
    assert (tmp_path / "out" / "report.md").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    refused = numprobe(tmp_path, "nan", H, "-o", "mine")
    assert refused.code == 2
    assert "E-OUT-001" in refused.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_file_as_output(tmp_path: Path):
    (tmp_path / "out").write_text("")
    ran = numprobe(tmp_path, "nan", H, "-o", "out")
    assert ran.code == 2
    assert "E-OUT-001  the output is a file" in ran.err


def test_a_place_that_cannot_be_written(tmp_path: Path):
    """Below a file: what no user, root included, can make."""
    (tmp_path / "file").write_text("")
    ran = numprobe(tmp_path, "nan", H, "-o", "file/out")
    assert ran.code == 2
    assert "E-OUT-002" in ran.err
    if os.geteuid():
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        ran = numprobe(tmp_path, "nan", H, "-o", "closed/out")
        assert (ran.code, "E-OUT-002" in ran.err) == (2, True)


def test_the_dump_is_never_written_to(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    before = tree(dump)
    assert numprobe(tmp_path, "nan", dump, "-o", "out", "--compat", "msprobe", "--full-digest").code == 1
    assert numprobe(tmp_path, "inspect", dump).code == 0
    refused = numprobe(tmp_path, "nan", dump, "-o", dump / "out")
    assert (refused.code, "E-OUT-003" in refused.err) == (2, True)
    inside = numprobe(dump, "nan", ".", XDG_CACHE_HOME=str(tmp_path / ".cache"))  # default folder, from within the dump
    assert (inside.code, "E-OUT-003" in inside.err) == (2, True)
    assert tree(dump) == before


@pytest.mark.parametrize("named", ["rank2", "rank2/dump.json"])
@pytest.mark.parametrize("out", ["dump", "dump/x", "dump/step0/x", "dump/step0/rank1/x", "dump/step0/rank2/x"])
def test_no_output_lies_around_a_rank_that_is_named(named: str, out: str, tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    before = tree(dump)
    ran = numprobe(tmp_path, "nan", dump / "step0" / named, "-o", out)
    assert (ran.code, "E-OUT-003" in ran.err) == (2, True)
    assert tree(dump) == before
    assert numprobe(tmp_path, "nan", dump / "step0" / named, "-o", "out").code == 1


def test_the_default_output_does_not_lie_in_the_step(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    shutil.copytree(dump / "step0", dump / "some_step")
    for step in ("step0", "some_step"):  # known by its name, or by the other ranks in it
        ran = numprobe(dump / step, "nan", "rank2/dump.json", XDG_CACHE_HOME=str(tmp_path / ".cache"))
        assert (ran.code, "E-OUT-003" in ran.err) == (2, True)
        assert not (dump / step / "numprobe_out").exists()
    alone = tmp_path / "alone"
    shutil.copytree(dump / "step0" / "rank2", alone / "rank2")
    assert numprobe(alone, "nan", "rank2").code == 1  # nothing says that it lies in a dump


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path):
    (tmp_path / "file").write_text("")
    ran = numprobe(tmp_path, "nan", H, "-o", "out", "--json", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (ran.code, ran.json["source_ranks"]) == (1, [2])


def test_an_interrupted_run_is_marked_and_can_be_run_again(tmp_path: Path):
    """Ctrl-C in the second stage, while a file of 10 MB is scanned."""
    dump = copy_of_h(tmp_path / "dump")
    arguments = ("nan", dump, "-o", "out", "--progress", "json", "--jobs", "1", "--no-cache")
    slow = dump / "step0" / "rank3" / "dump.json"
    slow.write_bytes(slow.read_bytes().replace(b'"data": {', b'"data": {' + many_records(50_000), 1))
    with subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, encoding="utf-8"
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            event = json.loads(line)
            if event["stage"] == 2:
                running.send_signal(signal.SIGINT)
                break
        rest = running.stderr.read()
        assert running.wait(timeout=60) == 130
    assert "Traceback" not in rest
    *_, last, told = [json.loads(line) for line in rest.splitlines()]
    assert last["state"] == "interrupted"
    assert told == {"kind": "interrupted", "what": "interrupted"}
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (manifest["status"], "report.md" in [a["name"] for a in manifest["artifacts"]]) == ("interrupted", False)
    again = numprobe(tmp_path, *arguments, "--json")
    assert (again.code, again.json["source_ranks"]) == (1, [2])
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "done"


def many_records(count: int) -> bytes:
    """Clean records in front of the others."""
    tensor = b'{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}'
    one = b'"Torch.abs.%d.forward": {"input_args": [' + tensor + b'], "input_kwargs": {}, "output": [' + tensor + b"]},"
    return b"".join(one % i for i in range(count))


def test_a_failed_run_is_marked(tmp_path: Path):
    dump = copy_of_h(tmp_path / "dump")
    for file in dump.rglob("dump.json"):
        file.write_text("[1]")
    ran = numprobe(tmp_path, "nan", dump, "-o", "out")
    assert ran.code == 2
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"


GONE = [(("--help",), 0), (("inspect", H), 0), (("nan", H, "-o", "out", "--quiet"), 1)]


@pytest.mark.parametrize(("arguments", "code"), GONE, ids=["help", "inspect", "nan"])
def test_a_reader_that_has_gone(arguments: tuple[object, ...], code: int, tmp_path: Path):
    """``numprobe inspect ... | head -0``: no traceback, and the exit code is what it would have been."""
    with subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        err = running.stderr.read()
        assert running.wait(timeout=60) == code
    assert err == b""


def test_the_first_sign_of_life_comes_at_once(tmp_path: Path):
    began = time.monotonic()
    with subprocess.Popen(
        command("nan", H, "-o", "out", "--progress", "json"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stderr is not None
        first = json.loads(running.stderr.readline())
        took = time.monotonic() - began
    assert (first["stage"], first["name"]) == (1, "nan.stage.discover")
    assert took < 5.0  # a second on a machine that does nothing else


@pytest.mark.parametrize("step", ["step0", "step0/rank2", "step0/rank2/dump.json"])
def test_what_a_dump_may_be(step: str, tmp_path: Path):
    ran = numprobe(tmp_path, "nan", H / step, "-o", "out", "--json")
    assert (ran.code, ran.json["source_ranks"], ran.json["step"]) == (1, [2], 0)
