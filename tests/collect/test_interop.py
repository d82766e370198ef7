"""The programs that msProbe's stored sample dumps were made with, run under numprobe: same names, same order, same figures.

Where numprobe differs on purpose, the test says how.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    pytest.skip("the samples are of torch 2.13: older ones call other functions inside", allow_module_level=True)

from .conftest import Once  # noqa: E402
from .dumps import FEATURES, OURS, SAMPLES, Dump, Json, config, differences, is_tensor, leaves, only, run  # noqa: E402

TRAIN = {
    "a_statistics_mix_2steps": ["--steps", "2", "--fused"],
    "b_tensor_mix_fp32": ["--opt-outside", "--small"],
    "c_statistics_L1_md5": [],
    "d_statistics_L0": [],
    "e_statistics_mix_nan": ["--steps", "2", "--fused", "--nan"],
    "f_tensor_mix_bf16": ["--opt-outside", "--small", "--bf16"],
    "g_structure_mix": [],
}
STORED = {"x_checkpoint_nonreentrant": "ckpt", "x_debug_save": "debug", "x_request_id": "reqid"}
MODES = ["multi", "mdump", "token", "ops", "accum", "ckpt_re", "nostop"]  # the last one ends its process
BF16 = 2.0**-6  # two roundings: the processors that the dumps were made on differ


@pytest.fixture
def trained(once: Once) -> Path:
    """Dumps of the small llama, by the name of the sample."""

    def make(out: Path) -> None:
        arguments: list[str] = []
        for case, options in TRAIN.items():
            arguments += [str(SAMPLES / case / "config.json"), str(out / case), *options, "--"]
        run("train.py", *arguments)

    return once("train", make)


@pytest.fixture
def odd(once: Once) -> Dump:
    sample = SAMPLES / "x_types" / "config.json"
    return only(once("odd", lambda out: run("odd.py", sample, out)))  # type: ignore[arg-type, return-value]


@pytest.fixture
def featured(once: Once) -> Path:
    """Dumps of the features program, by mode."""

    def make(out: Path) -> None:
        arguments: list[str] = []
        for case, mode in STORED.items():
            arguments += [mode, str(SAMPLES / case / "config.json"), str(out / mode), "--"]
        for mode in MODES:
            settings = config(out / f"{mode}.json", level="L1" if mode in ("mdump", "ops") else "mix")
            arguments += [mode, str(settings), str(out / mode), "--"]
        run("features.py", *arguments[:-1], code=3)

    return once("features", make)


def sample(case: str, step: int = 0) -> Dump:
    return Dump(SAMPLES / case / "dump" / f"step{step}" / "proc1000")


def kind_of(name: str) -> str:
    if name.endswith(".backward"):
        return "api backward"
    return "module backward" if ".backward." in name else "other"


def assert_same(found: Dump, wanted: Dump, *, exact: float = 1e-6, loose: float = 1e-4, names: bool = True) -> None:
    """Records are equal, but for the gradients of an API's inputs, which are true ones and say whose they are."""
    ours, theirs = found.data, wanted.data
    if names:
        assert list(ours) == list(theirs)
    lines: list[str] = []
    for name in [n for n in theirs if n in ours]:
        record, reference = dict(ours[name]), dict(theirs[name])
        kind = kind_of(name)
        if kind != "other":
            assert len(record.pop("grad_of")) == len(record["output"]), name
        if kind == "api backward":
            record.pop("output")
            reference.pop("output")
        lines += differences(name, record, reference, exact=exact, loose=loose)
    assert lines == []


def assert_gradients_fit(dump: Dump) -> None:
    """Of every API: a gradient has the shape of the input that ``grad_of`` names."""
    data = dump.data
    seen = 0
    for name, record in data.items():
        if kind_of(name) != "api backward":
            continue
        forward = data[name.removesuffix("backward") + "forward"]
        inputs = {p.removeprefix(".input_args.").removeprefix(".input_kwargs."): v for p, v in leaves(forward)}
        for path, gradient in zip(record["grad_of"], record["output"], strict=True):
            assert inputs[path]["requires_grad"] is True, name
            assert gradient is None or gradient["shape"] == inputs[path]["shape"], name
            seen += gradient is not None
    assert seen


# --- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("a_statistics_mix_2steps", 0),
        ("a_statistics_mix_2steps", 1),
        ("b_tensor_mix_fp32", 0),
        ("d_statistics_L0", 0),
        ("e_statistics_mix_nan", 0),
        ("e_statistics_mix_nan", 1),
        ("f_tensor_mix_bf16", 0),
    ],
)
def test_training(trained: Path, case: str, step: int):
    found, wanted = only(trained / case, step), sample(case, step)
    bf16 = case.startswith("f_")
    assert_same(found, wanted, exact=BF16 if bf16 else 1e-6, loose=BF16 if bf16 else 1e-4)
    if case != "d_statistics_L0":
        assert_gradients_fit(found)
    header = found.header
    assert list(header)[:4] == ["task", "level", "framework", "dump_data_dir"]
    for key in ("task", "level", "framework"):
        assert header[key] == wanted.header[key]
    tensors = str(found.folder.resolve() / "dump_tensor_data")
    assert header["dump_data_dir"] == (tensors if case[0] in "bf" else None)
    assert header["grad_kind"] == "true"


@pytest.mark.parametrize("case", ["b_tensor_mix_fp32", "f_tensor_mix_bf16"])
def test_tensor_files_are_those_of_the_records(trained: Path, case: str):
    found = only(trained / case)
    records = [v for _, v in leaves(found.data) if is_tensor(v)]
    names = [r["data_name"] for r in records]
    files = found.folder / "dump_tensor_data"
    assert sorted(names) == sorted(p.name for p in files.iterdir())
    assert len(set(names)) == len(names)
    for record in records:
        tensor = torch.load(files / record["data_name"], weights_only=True)
        assert list(tensor.shape) == record["shape"]
        assert str(tensor.dtype) == record["dtype"]
        assert tensor.is_contiguous()
        assert tensor.max().item() == record["Max"]
        assert tensor.min().item() == record["Min"]


def test_true_gradients_of_linear_layers(trained: Path):
    """A 3-D linear without bias ends in a view, whose gradients the reference shows; ours are those of x, as the module has."""
    ours, theirs = only(trained / "a_statistics_mix_2steps").data, sample("a_statistics_mix_2steps").data
    compared = 0
    for name in ours:
        if not (name.startswith("Functional.linear.") and name.endswith(".backward")):
            continue
        assert ours[name]["grad_of"] == ["0"]  # the weight's is in parameters_grad
        module = next(m for m in theirs if ".Linear.backward." in m and theirs[m]["input"] == theirs[name]["input"])
        assert differences(name, {"g": ours[name]["output"]}, {"g": theirs[module]["output"]}) == []
        assert theirs[name]["output"][0]["shape"] != ours[name]["output"][0]["shape"]
        compared += 1
    assert compared == 15


def test_L1_with_checksums(trained: Path):
    found, wanted = only(trained / "c_statistics_L1_md5"), sample("c_statistics_L1_md5")
    plain = strip(found.data, "md5"), strip(wanted.data, "md5")
    assert list(plain[0]) == list(plain[1])
    lines = []
    for name, record in plain[0].items():
        mine = {k: v for k, v in record.items() if k not in ("output", "grad_of") or kind_of(name) == "other"}
        lines += differences(name, mine, {k: plain[1][name][k] for k in mine})
    assert lines == []
    assert_gradients_fit(found)
    assert found.parents == {}


def strip(data: Json, key: str) -> Json:
    """A copy without one key of the tensor records, which must be there."""
    copy: Json = json.loads(json.dumps(data))
    for path, value in leaves(copy):
        if is_tensor(value):
            assert key in value, path
            del value[key]
    return copy


def test_checksums_of_what_no_processor_rounds(trained: Path):
    """Token ids, weights as they were drawn, looked-up rows: the same bytes here and there."""
    found, wanted = only(trained / "c_statistics_L1_md5").data, sample("c_statistics_L1_md5").data
    name = "Functional.embedding.0.forward"
    pairs = [(found[name]["input_args"][i], wanted[name]["input_args"][i]) for i in (0, 1)]
    pairs.append((found[name]["output"][0], wanted[name]["output"][0]))
    for n in range(15):
        name = f"Functional.linear.{n}.forward"
        pairs.append((found[name]["input_args"][1], wanted[name]["input_args"][1]))
    assert [a["md5"] for a, _ in pairs] == [b["md5"] for _, b in pairs]
    assert all(len(a["md5"]) == 8 for a, _ in pairs)


def test_nan_is_where_the_reference_has_it(trained: Path):
    found = only(trained / "e_statistics_mix_nan").data
    dirty = [
        n for n, r in found.items() if any(is_tensor(v) and v["Max"] != v["Max"] for _, v in leaves(r.get("output")))
    ]
    assert dirty[0] == "Functional.linear.12.forward"
    weight = found["Functional.linear.12.forward"]["input_args"][1]
    assert [weight[k] for k in ("nan", "pos_inf", "neg_inf")] == [1, 0, 0]


# --- module tree -------------------------------------------------------------------------------------------------


def assert_tree(found: Dump, wanted: Dump, late: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Parents are those of the reference, and also where it has none: backward records below their module's.

    Backward records of filtered APIs are not in the tree: nothing is recorded of them.
    """
    ours, theirs, recorded = found.parents, wanted.parents, set(wanted.names)
    backward = {n for n in theirs if kind_of(n) == "api backward"}
    assert set(theirs) - set(ours) == {n for n in backward if n not in recorded}
    assert set(ours) - set(theirs) == set()
    for name, parent in ours.items():
        if theirs[name] is not None and name not in late:
            assert parent == theirs[name], name
        elif parent is not None:
            assert kind_of(name) != "other", name
            assert parent in ours
            assert parent == parent_by_forward(ours, name)


def parent_by_forward(parents: dict[str, str | None], name: str) -> str | None:
    """What the forward call of the same number says, turned backward."""
    forward = name.replace(".backward", ".forward")
    above = parents[forward]
    return None if above is None else above.replace(".forward.", ".backward.")


@pytest.mark.parametrize("case", [c for c in TRAIN if "mix" in c and c[0] != "g"] + ["d_statistics_L0"])
def test_tree(trained: Path, case: str):
    assert_tree(only(trained / case), sample(case))


def test_structure_task(trained: Path):
    found, wanted = only(trained / "g_structure_mix"), sample("g_structure_mix")
    assert found.data == {}
    assert set(found.stacks) == set(wanted.stacks)
    ours, theirs = found.parents, wanted.parents
    forward = [n for n in theirs if ".backward" not in n]
    assert [n for n in forward if ours.get(n, "absent") != theirs[n]] == []
    assert [n for n in theirs if ".backward." in n and n not in ours] == []  # modules' backward records


# --- stacks ------------------------------------------------------------------------------------------------------


def test_stacks(trained: Path):
    found, wanted = only(trained / "a_statistics_mix_2steps"), sample("a_statistics_mix_2steps")
    ours, theirs = found.stacks, wanted.stacks
    assert set(ours) == set(theirs) == {n for n in found.names if ".forward" in n}
    groups = json.loads((found.folder / "stack.json").read_text())
    assert list(groups) == [str(i) for i in range(len(groups))]
    names = Counter(name for listed, _ in groups.values() for name in listed)
    assert set(names.values()) == {1}
    frames = [tuple(f) for _, f in groups.values()]
    assert len(set(frames)) == len(frames)  # the same stack is written once
    for name, lines in ours.items():
        assert all(line.startswith("File /") for line in lines)
        assert not any("src/numprobe" in line for line in lines), name
        assert [tail(line) for line in lines if "site-packages" in line] == [
            tail(line) for line in theirs[name] if "site-packages" in line
        ]
    silu = ours["Functional.silu.0.forward"]
    assert (
        re.search(r"torch/nn/functional.py, line \d+, in silu", silu[0]) is None
    )  # the API itself is not in its stack
    assert re.search(r"llama.py, line \d+, in forward, \n return self.down_proj\(F.silu\(", silu[0])
    assert silu[-1].endswith("in <module>, \n train(options(rest[:cut]))")


def tail(frame: str) -> str:
    """A frame without the folder where Python packages lie."""
    return frame.partition("site-packages")[2]


# --- odd values --------------------------------------------------------------------------------------------------


def test_odd_values(odd: Dump):
    wanted = sample("x_types")
    ours, theirs = odd.data, wanted.data
    # Dropout with p=0 hands its input through: nothing of its own flows back. The outputs that only the dict holds get none.
    gone = ["Module.drop.Dropout.backward.0", "Tensor.__sub__.0.backward", "Tensor.__add__.0.backward"]
    assert [n for n in theirs if n not in ours] == gone
    # relu_ works in place on what lin gave: the reference loses lin's second backward record by that.
    assert [n for n in ours if n not in theirs] == ["Module.lin.Linear.backward.1"]
    assert ours["Module.lin.Linear.backward.1"]["input"][0]["shape"] == [3, 4]
    lines = []
    for name in [n for n in theirs if n in ours and ".backward" not in n]:
        lines += differences(name, ours[name], theirs[name])
    assert lines == []
    # Of four outputs of Odd, one is the input itself: it has no gradient of its own.
    assert [g and g["shape"] for g in ours["Module.odd.Odd.backward.0"]["input"]] == [[3, 4], None, None, None]
    assert (
        differences(
            "odd", ours["Module.odd.Odd.backward.0"]["output"][0], theirs["Module.odd.Odd.backward.0"]["output"][0]
        )
        == []
    )


def test_odd_order(odd: Dump):
    """A record that waits for gradients which never come stands where the backward pass has ended, not where the step does."""
    theirs = sample("x_types").data
    ours = odd.data
    assert [n for n in ours if n in theirs] == [n for n in theirs if n in ours]


def test_odd_tree(odd: Dump):
    wanted = sample("x_types").parents
    assert {n: wanted[n] for n in wanted if ".backward" not in n} == {
        n: p for n, p in odd.parents.items() if ".backward" not in n
    }
    assert odd.parents["Functional.linear.1.backward"] == "Module.lin.Linear.backward.1"


def test_odd_figures_beyond_the_reference(odd: Dump):
    """Mean and Norm of integers and float64, and counts of what is not finite."""
    record = odd.data["Torch.mul.1.forward"]["output"][0]
    assert (record["dtype"], record["Mean"], record["Norm"]) == ("torch.float64", 2.0, pytest.approx(12**0.5))
    theirs = sample("x_types").data["Torch.mul.1.forward"]["output"][0]
    assert (theirs["Mean"], theirs["Norm"]) == (None, None)
    arange = odd.data["Torch.max.0.forward"]["input_args"][0]
    assert (arange["dtype"], arange["Mean"], arange["Norm"]) == ("torch.int64", 2.5, pytest.approx(55**0.5))
    infinite = odd.data["Torch.add.1.forward"]["input_args"][0]
    assert [infinite[k] for k in ("nan", "pos_inf", "neg_inf")] == [0, 1, 1]
    assert {k for _, v in leaves(odd.data) if is_tensor(v) for k in v} >= OURS


def test_odd_tensor_list(odd: Dump):
    wanted = {v["data_name"] for _, v in leaves(sample("x_types").data) if is_tensor(v) and "data_name" in v}
    found = {v["data_name"] for _, v in leaves(odd.data) if is_tensor(v) and "data_name" in v}
    assert found == wanted
    assert {p.name for p in (odd.folder / "dump_tensor_data").iterdir()} == found


# --- features ----------------------------------------------------------------------------------------------------


def test_checkpoint(featured: Path):
    found, wanted = only(featured / "ckpt"), sample("x_checkpoint_nonreentrant")
    assert_same(found, wanted)
    assert set(found.stacks) == set(wanted.stacks)
    ours, theirs = found.parents, wanted.parents
    # the recomputed call that torch stops early has begun, which the reference does not see
    assert set(ours) - set(theirs) == {"Functional.linear.5.forward"}
    assert set(theirs) - set(ours) == set()
    # recomputing belongs to no record, the reference puts it below the backward record that ran last
    assert {n for n in theirs if ours[n] != theirs[n]} == {"Module.a.Blk.forward.1"}
    assert ours["Module.a.Blk.forward.1"] is None


def test_request_id(featured: Path):
    found, wanted = only(featured / "reqid"), sample("x_request_id")
    assert_same(found, wanted)
    assert found.parents == wanted.parents


@pytest.mark.parametrize("step", [0, 1])
def test_debug_save(featured: Path, step: int):
    found, wanted = only(featured / "debug", step), sample("x_debug_save", step)
    assert found.names == wanted.names
    assert [line for n in found.data for line in differences(n, {"": found.data[n]}, {"": wanted.data[n]})] == []
    assert sorted(p.name for p in found.folder.iterdir()) == ["debug.json", "dump_tensor_data"]


@pytest.mark.parametrize("mode", MODES)
def test_features(featured: Path, mode: str):
    found, wanted = only(featured / mode), Dump(FEATURES / mode)
    assert_same(found, wanted)
    if mode in ("mdump", "ops"):  # level L1
        assert found.parents == {}
    else:
        assert_tree(found, wanted)


def test_features_that_end_the_program(featured: Path):
    """SystemExit without stop(): everything up to there is in the files."""
    assert len(only(featured / "nostop").data) == 12
