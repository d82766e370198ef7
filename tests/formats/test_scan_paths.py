"""The byte scanner and the full-decode path give the same table, whatever is written in a file."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from numprobe.formats.msprobe import blocks
from numprobe.formats.msprobe.scan import BLOCK, scan_file, scan_file_reference
from numprobe.record.errors import NumprobeError

from .written import INTEROP, Layout, Pairs, Token, contents, dump, mutated, regular, tensor

pytestmark = pytest.mark.usefixtures("both_ways")
WITHOUT_KERNEL = (blocks, "kernels", None)

BLOCKS = st.sampled_from([BLOCK, BLOCK, 1, 50, 200, 700])
_numbers = itertools.count()


def table(scan, *arguments: object) -> object:
    """What a scan says, comparable: the rows, or the error."""
    try:
        index = scan(*arguments)
    except NumprobeError as error:
        return error.code, error.what, error.found
    return (
        index.info,
        index.names,
        index.start.tolist(),
        index.end.tolist(),
        [index.input.tolist(), index.output.tolist(), index.parameter.tolist()],
        index.size,
        index.has_extrema,
        index.damage,
        index.repeated,
    )


def same_table(folder: Path, content: bytes, block: int) -> None:
    file = folder / f"{next(_numbers)}.json"
    file.write_bytes(content)
    try:
        assert table(scan_file, file, block) == table(scan_file_reference, file)
    finally:
        file.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(content=contents(), block=BLOCKS)
def test_generated_files(folder: Path, content: bytes, block: int):
    same_table(folder, content, block)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(content=mutated(), block=BLOCKS)
@example(b'{"data": {": {},\n  "Torch.log.0.forward": {"output": []}}}', 1)  # a quote too few before the first key
def test_damaged_files(folder: Path, content: bytes, block: int):
    same_table(folder, content, block)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(content=regular(), block=BLOCKS)
def test_files_as_a_collector_writes_them(folder: Path, content: bytes, block: int):
    same_table(folder, content, block)


@pytest.mark.parametrize(
    "sample", ["pytorch/h_distributed_4rank_nan", "pytorch/c_statistics_L1_md5", "engines/megatron"]
)
@pytest.mark.parametrize("block", [BLOCK, 20_000])
def test_real_files_need_no_full_decode(monkeypatch: pytest.MonkeyPatch, sample: str, block: int):
    (file, *_) = sorted((INTEROP / sample).rglob("dump.json"))
    expected = table(scan_file_reference, file)
    monkeypatch.setattr("numprobe.formats.msprobe.scan._slow_block", lambda *_: pytest.fail("the slow path"))
    assert table(scan_file, file, block) == expected


def one_record(figure: str, name: str = "Torch.log.0.forward") -> bytes:
    """A dump of one record whose output has this Max."""
    record = {"input_args": [], "input_kwargs": {}, "output": [tensor(Token(figure))]}
    return Layout().write(dump({name: record, "Torch.exp.0.forward": record}))


# What the two paths once disagreed on, or what one of them could not read.
@pytest.mark.parametrize(
    "figure",
    [
        *(
            '"nan "',
            '"nan\\n"',
            '" nan"',
            '"\\u006ean"',
            '"1e400"',
            '"-1E+999"',
            "1e0400",
            "9" * 400,
            "9" * 250 + "e99",
        ),
        *(
            "-" + "9" * 5000,
            "1" * 320 + ".5",
            '"' + "9" * 400 + '"',
            "NaN5",
            "-NaN",
            '": NaN,"',
            '"\\"Max\\": NaN"',
            '"İNF"',
        ),
    ],
)
@pytest.mark.parametrize("block", [BLOCK, 100])
def test_figures_that_were_read_differently(tmp_path: Path, figure: str, block: int):
    same_table(tmp_path, one_record(figure), block)


RECORD = {"input_args": [tensor()], "input_kwargs": {}, "output": [tensor(Token("NaN"), Token("NaN"))]}
EXAMPLES = {
    "first member with one section, second with three": dump(
        {"Module.a.B.parameters_grad.0": {"weight": [tensor()]}, "Torch.log.0.forward": RECORD}
    ),
    "first member with none": dump({"Torch.log.0.forward": {}, "Torch.log.1.forward": RECORD}),
    "last section of the first member empty": dump(
        {"Torch.log.0.backward": {"Max": 0.0, "a": {}}, "Torch.log.1.forward": {"input_args": [], "output": []}}
    ),
    "section key with a token": dump(
        {"Torch.log.0.forward": RECORD, "Torch.log.1.forward": {"info": [], "NaN": [tensor()]}}
    ),
    "name with a token": dump({"Torch.NaN.0.forward": RECORD, "Torch.isinf.0.forward": RECORD}),
    "a key that only ends in Max": dump({"Torch.log.0.forward": {"output": [{'q"Max': Token("NaN"), 'q"Min': 1}]}}),
    "a key that repeats": dump(
        {"Torch.log.0.forward": Pairs([("output", [Pairs([("Max", Token("NaN")), ("Max", 1), ("Min", 1)])])])}
    ),
    "a section that repeats": dump(
        {
            "Torch.log.0.forward": Pairs([("output", [tensor(Token("NaN"))]), ("output", [tensor()])]),
            "Torch.log.1.forward": RECORD,
        }
    ),
    "a record that repeats": dump(Pairs([("Torch.log.0.forward", RECORD), ("Torch.log.0.forward", RECORD)])),
    "a figure outside tensors": dump(
        {"Module.a.Linear.parameters_grad.0": {"weight": [], "Max": Token("NaN")}, "Torch.log.0.forward": RECORD}
    ),
    "a tensor inside a tensor": dump({"Torch.log.0.forward": {"output": [tensor(inside=tensor(Token("-Infinity")))]}}),
    "a shape without elements": dump(
        {"Torch.log.0.forward": {"output": [tensor(Token("NaN"), Token("NaN"), shape=[0])]}}
    ),
    "both infinities": dump(
        {
            "Torch.log.0.forward": {"output": [tensor(Token("Infinity"), Token("-Infinity"))]},
            "Torch.log.1.forward": {"output": [tensor(Token("Infinity")), tensor(1.0, Token("-Infinity"))]},
            "Torch.log.2.forward": {"output": [tensor(Token("-Infinity"), Token("Infinity"))]},
        }
    ),
    "half a character in a name": dump({"Torch.\ud800.0.forward": RECORD}),
    "a key that looks like a record": dump(
        {"Torch.log.0.forward": {"output": [{"x.0.forward": {}, "y.0.forward": {}}]}}
    ),
    "a call counter of thousands of digits": dump({"Torch.log." + "9" * 5000 + ".forward": RECORD}),
    "data inside the header": {"config": {"data": {"x": 1}}, "data": {"Torch.log.0.forward": RECORD}},
    "data twice": Pairs([("data", {"Torch.log.0.forward": RECORD}), ("data", {"Torch.log.1.forward": RECORD})]),
    "keys behind data": {"data": {"Torch.log.0.forward": RECORD}, "Max": [{"a": 1}]},
    "a list": [1, 2],
    "data is a list": {"task": "statistics", "data": [1]},
    "no data": {"task": "statistics"},
}


@pytest.mark.parametrize("case", EXAMPLES)
@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(None),
        Layout(0, colon=":"),
        Layout(2, newline="\r\n", bom=True),
        Layout(1, " ,", ascii_only=False),
    ],
    ids=["msProbe", "one line", "no indent", "crlf", "space before comma"],
)
@pytest.mark.parametrize("block", [BLOCK, 1, 200])
def test_files_that_were_read_differently(tmp_path: Path, case: str, layout: Layout, block: int):
    same_table(tmp_path, layout.write(EXAMPLES[case]), block)


def test_a_file_cut_short_at_any_byte(tmp_path: Path):
    """Every prefix is read up to its last whole record, and the cut is named as such."""
    records = {"Torch.log.0.forward": RECORD, "Torch.名.0.forward": {"output": [None, Token("1e400"), True, "a\\"]}}
    content = Layout(None).write(dump(records))
    first = content.index(b', "Torch.\\u540d')
    whole = content.rindex(b"}}")
    for length in range(content.index(b'"data"') + 9, len(content) - 1):
        same_table(tmp_path, content[:length], BLOCK)
        (tmp_path / "cut.json").write_bytes(content[:length])
        index = scan_file(tmp_path / "cut.json")
        assert len(index) == (length >= first) + (length >= whole)
        assert index.damage is not None
        assert index.damage.reason == "truncated"
        assert index.status == "partial"
