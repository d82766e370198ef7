"""What cannot be read says so in one line: what, where, what to do. What can be read is read."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from numprobe.formats.dump import load_index, open_dump
from numprobe.formats.layout import find_layout
from numprobe.formats.msprobe.scan import scan_file
from numprobe.formats.msprobe.structure import read_construct, read_stacks
from numprobe.record.errors import NumprobeError
from numprobe.record.nonfinite import Kinds

from .written import Layout, Token, dump, tensor

RECORD = {"input_args": [tensor()], "input_kwargs": {}, "output": [tensor(Token("NaN"), Token("NaN"))]}
GOOD = Layout().write(dump({"Torch.log.0.forward": RECORD, "Torch.exp.0.forward": RECORD}))


def write(file: Path, content: bytes = GOOD) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def refused(path: Path) -> NumprobeError:
    """The error of opening and reading what lies at ``path``, with all that it must say."""

    def read() -> None:
        for step in open_dump(path, use_cache=False).steps:
            for rank in step.ranks:
                assert not rank.problem
                load_index(rank.dump)

    with pytest.raises(NumprobeError) as caught:
        read()
    error = caught.value
    assert error.what
    assert "\n" not in error.what
    assert error.where
    assert error.do
    return error


# --- folders -----------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path):
    assert refused(tmp_path / "gone").code == "E-FMT-001"
    assert refused(tmp_path / ("x" * 300)).code == "E-FMT-001"
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    assert refused(tmp_path / "ring").code == "E-FMT-001"


def test_nothing_to_read(tmp_path: Path):
    error = refused(tmp_path)
    assert (error.code, error.found) == ("E-FMT-002", "nothing")
    (tmp_path / "logs").mkdir()
    assert refused(tmp_path).found == "logs"
    (tmp_path / "step0").mkdir()
    assert refused(tmp_path).what == "no rank here"
    assert refused(write(tmp_path / "notes.txt")).what == "notes.txt is no dump"
    assert refused(write(tmp_path / "stack.json")).what == "stack.json is no dump"


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "dump.json")
    assert refused(tmp_path / "dump.json").what == "dump.json is neither file nor folder"
    assert refused(tmp_path).what == "dump.json cannot be read: it is no file"


def test_a_folder_called_dump_json(tmp_path: Path):
    (tmp_path / "rank0" / "dump.json").mkdir(parents=True)
    assert refused(tmp_path).what == "dump.json cannot be read: it is no file"


def test_ranks_without_folder_or_dump_are_missing(tmp_path: Path):
    for rank in (0, 1, 4):
        write(tmp_path / f"step0/rank{rank}/dump.json")
    (tmp_path / "step0/rank2").mkdir()
    (step,) = find_layout(tmp_path).steps
    assert [(r.rank, r.problem) for r in step.ranks] == [(0, ""), (1, ""), (2, "missing"), (3, "missing"), (4, "")]


def test_few_ranks_of_many_are_a_choice_not_a_loss(tmp_path: Path):
    write(tmp_path / "rank0/dump.json")
    write(tmp_path / "rank5000/dump.json")
    layout = find_layout(tmp_path)
    assert layout.sparse
    assert [r.rank for r in layout.steps[0].ranks] == [0, 5000]


@pytest.mark.parametrize("stray", [12, 5000, 1_000_000, 10_000_000])
def test_one_number_far_off_hides_no_gap(tmp_path: Path, stray: int):
    for rank in (0, 1, 2, 4, stray):
        write(tmp_path / f"step0/rank{rank}/dump.json")
    (step,) = find_layout(tmp_path).steps
    assert [(r.rank, r.problem) for r in step.ranks] == [
        (0, ""),
        (1, ""),
        (2, ""),
        (3, "missing"),
        (4, ""),
        (stray, ""),
    ]


@pytest.mark.parametrize("folder", ["rank10000001", "rank99999999999999999999", "rank_" + "9" * 200])
def test_a_number_that_no_rank_has(tmp_path: Path, folder: str):
    """Beside ranks the folder is ignored, and named; alone it is read as a rank without number."""
    for rank in ("rank0", "rank1", folder):
        write(tmp_path / "step0" / rank / "dump.json")
    layout = find_layout(tmp_path)
    assert [r.rank for r in layout.steps[0].ranks] == [0, 1]
    assert layout.ignored == (f"step0/{folder}",)
    alone = find_layout(tmp_path / "step0" / folder)
    assert [(r.key, r.rank) for r in alone.steps[0].ranks] == [(folder, None)]
    assert len(load_index(alone.steps[0].ranks[0].dump)) == 2


def test_a_number_that_no_step_has(tmp_path: Path):
    for step in ("step0", "step" + "9" * 30):
        write(tmp_path / step / "rank0" / "dump.json")
    layout = find_layout(tmp_path)
    assert [s.step for s in layout.steps] == [0]
    assert layout.ignored == ("step" + "9" * 30,)


@pytest.mark.parametrize(
    ("folders", "what", "found"),
    [
        (("step0/rank0", "step0/rank_0"), "folders of two jobs lie in one step", "rank0, rank_0"),
        (
            ("step0/rank0", "step0/rank1", "step0/proc77"),
            "folders of two jobs lie in one step",
            "rank0 to rank1, and proc77",
        ),
        (("step0/rank0", "step_0/rank0"), "two folders have one step number", "step0, step_0"),
    ],
)
def test_two_jobs_are_never_merged(tmp_path: Path, folders: tuple[str, ...], what: str, found: str):
    for folder in folders:
        write(tmp_path / folder / "dump.json")
    error = refused(tmp_path)
    assert (error.code, error.what, error.found) == ("E-FMT-003", what, found)


def test_names_in_any_script(tmp_path: Path):
    root = tmp_path / "转储 été"
    write(root / "step3/rank0/dump.json")
    (step,) = find_layout(root).steps
    assert step.step == 3
    write(tmp_path / "other/rank٣/dump.json")  # no number of ours: a folder like any other
    assert [r.rank for r in find_layout(tmp_path / "other").steps[0].ranks] == [None]


@pytest.mark.parametrize("linked", ["step0/rank1", "step0/rank1/dump.json"])
def test_links_out_of_the_dump_are_not_followed(tmp_path: Path, linked: str):
    elsewhere = write(tmp_path / "elsewhere/dump.json")
    write(tmp_path / "dump/step0/rank0/dump.json")
    link = tmp_path / "dump" / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere.parent if link.name == "rank1" else elsewhere)
    (step,) = find_layout(tmp_path / "dump").steps
    assert [(r.rank, r.problem) for r in step.ranks] == [(0, ""), (1, "outside")]


def test_a_linked_step_leads_out_with_all_its_ranks(tmp_path: Path):
    write(tmp_path / "elsewhere/rank0/dump.json")
    write(tmp_path / "dump/step0/rank0/dump.json")
    (tmp_path / "dump/step1").symlink_to(tmp_path / "elsewhere")
    first, second = find_layout(tmp_path / "dump").steps
    assert [r.problem for r in first.ranks + second.ranks] == ["", "outside"]


def test_links_of_stacks_and_construct(tmp_path: Path):
    construct = write(tmp_path / "elsewhere.json", b'{"Torch.log.0.forward": null}')
    stacks = write(tmp_path / "dump/rank0/stack.json", b'{"Torch.log.0.forward": ["File a.py, line 1"]}')
    for rank in (0, 1):
        write(tmp_path / f"dump/rank{rank}/dump.json")
    (tmp_path / "dump/rank1/construct.json").symlink_to(construct)  # leads out
    (tmp_path / "dump/rank1/stack.json").symlink_to(stacks)  # stays inside
    handle = open_dump(tmp_path / "dump", use_cache=False)
    rank = handle.rank(handle.steps[0].ranks[1])
    assert (rank.tree.present, rank.tree.problem) == (False, "outside")
    assert rank.stacks == {"Torch.log.0.forward": ["File a.py, line 1"]}


def test_a_ring_of_links_instead_of_a_dump(tmp_path: Path):
    write(tmp_path / "rank0/dump.json")
    (tmp_path / "rank1").mkdir()
    (tmp_path / "rank1/dump.json").symlink_to(tmp_path / "rank1/dump.json")
    (step,) = find_layout(tmp_path).steps
    assert [r.problem for r in step.ranks] == ["", "ring"]


def test_a_path_that_is_a_link_itself_is_followed(tmp_path: Path):
    real = write(tmp_path / "real/rank0/dump.json")
    (tmp_path / "latest").symlink_to(real.parent.parent)
    (tmp_path / "one.json").symlink_to(real)
    for given in ("latest", "one.json"):
        (step,) = find_layout(tmp_path / given).steps
        assert [(r.rank, r.problem) for r in step.ranks] == [(0, "")]
        assert len(load_index(step.ranks[0].dump)) == 2


def test_a_single_file_is_read_whatever_its_name(tmp_path: Path):
    write(tmp_path / "dump.json")
    other = write(tmp_path / "saved.json", Layout().write(dump({"Torch.add.0.forward": RECORD})))
    (step,) = find_layout(other).steps
    assert load_index(step.ranks[0].dump).names == ["Torch.add.0.forward"]


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder that another user may read, and that user's eyes if the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() != 0:
            yield folder
            return
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)


def test_files_and_folders_without_read_permission():
    with as_nobody() as folder:
        os.seteuid(os.getuid())
        try:
            for rank in range(4):
                write(folder / f"dump/rank{rank}/dump.json")
            (folder / "dump/rank1/dump.json").chmod(0)
            (folder / "dump/rank2").chmod(0)
            (folder / "closed").mkdir(mode=0)
            write(folder / "listed/step0/rank0/dump.json")
            (folder / "listed/step0").chmod(0o644)  # its names may be listed, and nothing in it looked at
        finally:
            if os.getuid() == 0:
                os.seteuid(65534)
        handle = open_dump(folder / "dump", use_cache=False)
        ranks = handle.steps[0].ranks
        assert [r.rank for r in ranks] == [0, 1, 2, 3]
        assert [len(load_index(ranks[i].dump)) for i in (0, 3)] == [2, 2]
        for i in (1, 2):
            with pytest.raises(NumprobeError, match=r"dump\.json cannot be read: Permission denied"):
                load_index(ranks[i].dump)
        assert (handle.rank(ranks[2]).stacks, handle.rank(ranks[2]).stacks.problem) == ({}, "denied")
        assert refused(folder / "closed").code == "E-FMT-010"
        for given in ("listed", "listed/step0"):
            error = refused(folder / given)
            assert (error.code, error.what, error.where) == (
                "E-FMT-010",
                "the folder cannot be entered",
                str(folder / "listed/step0"),
            )
        os.seteuid(os.getuid())
        (folder / "listed/step0").chmod(0o755)
        (folder / "dump/rank2").chmod(0o755)
        (folder / "closed").chmod(0o755)


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "what"),
    [
        (b"", "E-FMT-011", "dump.json is empty"),
        (b" \r\n\t", "E-FMT-011", "dump.json is empty"),
        (b"\xef\xbb\xbf", "E-FMT-011", "dump.json is empty"),
        (b"[1, 2]", "E-FMT-011", "dump.json is no JSON object: it begins with '['"),
        (b"<html>", "E-FMT-011", "dump.json is no JSON object: it begins with '<'"),
        (b"\x80\x04\x95\x10", "E-FMT-011", "dump.json is no JSON object: it begins with '\\x80'"),
        (bytes(range(256)) * 64, "E-FMT-011", "dump.json is no JSON object: it begins with '\\x00'"),
        (GOOD.decode().encode("utf-16"), "E-FMT-011", "dump.json is no JSON object: it begins with '\\xff'"),
        (b"{}", "E-FMT-012", 'dump.json is not a dump: no member "data"'),
        (b'{"task": "stat', "E-FMT-012", 'dump.json is not a dump: no member "data"'),
        (b'{"data": [1, 2]}', "E-FMT-012", 'dump.json is not a dump: member "data" is no object'),
        (b'{"data": null}', "E-FMT-012", 'dump.json is not a dump: member "data" is no object'),
        (b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "E-FMT-012", 'dump.json is not a dump: no member "data"'),
    ],
)
def test_files_that_are_no_dump(tmp_path: Path, content: bytes, code: str, what: str):
    error = refused(write(tmp_path / "rank0/dump.json", content))
    assert (error.code, error.what) == (code, what)


def test_deep_nesting_is_damage_in_that_record(tmp_path: Path):
    for depth in (5_000, 100_000):
        deep = Token("[" * depth + "]" * depth)
        content = Layout(None).write(dump({"Torch.log.0.forward": RECORD, "Torch.x.0.forward": {"output": deep}}))
        index = scan_file(write(tmp_path / "dump.json", content))
        assert index.names == ["Torch.log.0.forward"]
        assert index.damage is not None
        assert (index.damage.record, index.damage.reason) == ("Torch.x.0.forward", "nested too deeply")


def test_nesting_that_python_can_read_is_read(tmp_path: Path):
    output: object = tensor(Token("NaN"))
    for _ in range(400):  # the collector's own limit
        output = [output]
    content = Layout(None).write(dump({"x.0.debug": output, "Torch.log.0.forward": {"output": output}}))
    write(tmp_path / "rank0/dump.json", content)
    handle = open_dump(tmp_path, use_cache=False)
    rank = handle.rank(handle.steps[0].ranks[0])
    assert rank.index.damage is None
    assert rank.index.output.tolist() == [int(Kinds.NAN)] * 2
    assert [v.kinds for v in rank.record(1).values] == [Kinds.NAN]


def test_repeated_records_are_all_kept_and_named(tmp_path: Path):
    content = b'{"data": {"Torch.log.0.forward": {}, "Torch.exp.0.forward": {}, "Torch.log.0.forward": {}}}'
    index = scan_file(write(tmp_path / "dump.json", content))
    assert index.names == ["Torch.log.0.forward", "Torch.exp.0.forward", "Torch.log.0.forward"]
    assert index.repeated == ["Torch.log.0.forward"]
    assert index.damage is None


def test_absurd_shapes_and_figures(tmp_path: Path):
    odd = [
        tensor(Token("1e400"), shape=[10**30, 10**30]),
        tensor(Token("9" * 5000), shape="huge", dtype=["x"]),
        tensor("nan\t", True, shape=[-1]),
        tensor([1], {"a": 1}, shape=[2] * 100),
    ]
    write(tmp_path / "rank0/dump.json", Layout().write(dump({"Torch.log.0.forward": {"output": odd}})))
    handle = open_dump(tmp_path, use_cache=False)
    values = handle.rank(handle.steps[0].ranks[0]).record(0).values
    assert [v.numel for v in values] == [None] * 4
    assert [v.kinds.words() for v in values] == ["inf", "inf", "NaN", "unknown"]


@pytest.mark.parametrize(
    ("cut", "records", "reason"),
    [(-1, 2, "truncated"), (-2, 2, "truncated"), (-40, 1, "truncated"), (GOOD.index(b"Torch"), 0, "truncated")],
)
def test_a_truncated_file_gives_its_readable_prefix(tmp_path: Path, cut: int, records: int, reason: str):
    index = scan_file(write(tmp_path / "dump.json", GOOD[:cut]))
    assert len(index) == records
    assert index.status == "partial"
    assert index.damage is not None
    assert index.damage.reason == reason


def test_garbage_behind_half_of_a_file(tmp_path: Path):
    half = GOOD.index(b'"Torch.exp')
    index = scan_file(write(tmp_path / "dump.json", GOOD[:half] + bytes(500)))
    assert index.names == ["Torch.log.0.forward"]
    assert index.damage is not None
    assert (index.damage.offset, index.damage.reason) == (half, "malformed")


@pytest.mark.parametrize(
    "content",
    [
        b'{"data": {"Torch.log.0.forward": {"output": ["' + b"x" * 3_000_000 + b'"]}}}',
        b'{"data": {"Torch.log.0.forward": {"output": [' + b"[1], " * 600_000 + b"NaN]}}}",
        b'{"data": {"' + b"x" * 3_000_000 + b'": {}}}',
        b'{"' + b"x" * 3_000_000 + b'": 1}',
        b'{"data": {"a": "' + b"x" * 3_000_000,
        b'{"data": {' + b'"x.0.forward": {"y.0.forward": {' * 100 + b'"z": "' + b'\\", ' * 500_000,
        b'{"data": {"x.0.forward": {' + b'"y.0.forward": {}, ' * 150_000,
        b"{" + b" " * 3_000_000,
        b'{"data": {' + b"," * 3_000_000,
        b'{"data": {"a": ' + b"9" * 3_000_000 + b"}}",
        b"\x00" * 3_000_000,
        b'{"data": {"a": "' + b'\\"' * 1_500_000 + b'"}}',
    ],
    ids=range(12),
)
def test_one_huge_thing_takes_seconds_at_most(tmp_path: Path, content: bytes):
    file = write(tmp_path / "dump.json", content)
    begun = time.process_time()
    for block in (1 << 20, 1 << 14):
        with suppress(NumprobeError):
            assert len(scan_file(file, block)) <= 1
    assert time.process_time() - begun < 10


# --- a file that is being written --------------------------------------------------------------------------------


def test_a_file_that_keeps_growing_is_marked_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "dump.json")

    def scan_and_grow(path: Path):
        index = scan_file(path)
        path.write_bytes(path.read_bytes() + b" ")
        return index

    monkeypatch.setattr("numprobe.formats.dump.scan_file", scan_and_grow)
    index = load_index(file, tmp_path / "cache")
    assert len(index) == 2
    assert index.damage is not None
    assert index.damage.reason == "live"
    assert not (tmp_path / "cache").exists()  # never kept


def test_a_file_that_was_just_emptied_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "dump.json", b"")
    monkeypatch.setattr("numprobe.formats.dump.time.sleep", lambda seconds: file.write_bytes(GOOD))
    assert len(load_index(file)) == 2


def test_an_old_empty_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path / "dump.json", b"")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr("numprobe.formats.dump.time.sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(NumprobeError, match=r"dump\.json is empty"):
        load_index(file)


# --- stacks and construct ----------------------------------------------------------------------------------------


def test_ranks_without_stacks_and_construct(tmp_path: Path):
    write(tmp_path / "rank0/dump.json")
    handle = open_dump(tmp_path, use_cache=False)
    rank = handle.rank(handle.steps[0].ranks[0])
    assert rank.stacks == {}
    assert not rank.tree.present
    assert rank.tree.chain("Torch.log.0.forward") == ["Torch.log.0.forward"]


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 10_000, b'"a"', b"17"])
def test_unreadable_stacks_and_construct_are_as_good_as_none(tmp_path: Path, content: bytes):
    assert read_stacks(write(tmp_path / "stack.json", content)) == {}
    assert not read_construct(write(tmp_path / "construct.json", content)).present
    assert not read_construct(tmp_path).present


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "json"),
        (b"garbage", "json"),
        (bytes(range(256)), "json"),
        (b"[1]", "json"),
        (DEEP, "json"),
        (b'{"a": ' + DEEP, "deep"),
        (b'{"a": ' + DEEP + b"]" * 100_000 + b"}", "deep"),
        (b'{"a": ["f', "cut"),
        (b"{}", ""),
        (b'{"a": ["f"], "b": ["', ""),  # what stands before the damage counts
    ],
)
def test_a_stack_or_construct_that_is_there_says_why_it_cannot_be_read(tmp_path: Path, content: bytes, problem: str):
    assert read_stacks(write(tmp_path / "stack.json", content)).problem == problem
    assert read_construct(write(tmp_path / "construct.json", content)).problem == problem


def test_a_stack_or_construct_that_is_no_file_says_so(tmp_path: Path):
    assert (read_stacks(tmp_path / "gone").problem, read_construct(tmp_path / "gone").problem) == ("", "")
    assert (read_stacks(tmp_path).problem, read_construct(tmp_path).problem) == ("file", "file")
    os.mkfifo(tmp_path / "pipe")
    assert (read_stacks(tmp_path / "pipe").problem, read_construct(tmp_path / "pipe").problem) == ("file", "file")
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    assert (read_stacks(tmp_path / "ring").problem, read_construct(tmp_path / "ring").problem) == ("ring", "ring")


def test_truncated_ones_give_their_readable_prefix(tmp_path: Path):
    tree = {"Torch.log.0.forward": "Module.a.B.forward.0", "Module.a.B.forward.0": None}
    content = json.dumps(tree).encode()[:-3]
    assert read_construct(write(tmp_path / "construct.json", content)).parents == {
        "Torch.log.0.forward": "Module.a.B.forward.0"
    }
    stacks = {"0": [["a", "b"], ["f"]], "1": [["c"], ["g"]]}
    content = b"\xef\xbb\xbf" + json.dumps(stacks).encode()
    assert read_stacks(write(tmp_path / "stack.json", content)) == {"a": ["f"], "b": ["f"], "c": ["g"]}
    assert read_stacks(write(tmp_path / "stack.json", content[:-4])) == {"a": ["f"], "b": ["f"]}


def test_a_ring_of_parents_ends(tmp_path: Path):
    tree = read_construct(write(tmp_path / "construct.json", b'{"a": "b", "b": ["a", 3], "c": "c", "d": 5, "e": []}'))
    assert tree.chain("a") == ["a", "b"]
    assert tree.parents == {"a": "b", "b": "a", "c": None, "d": None, "e": None}
    assert tree.micro_step == {"b": 3}
