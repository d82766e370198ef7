"""One fault, one finding: outputs and gradients that one side lacks, several wrong outputs, calls of one side alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from numprobe.compare.exact import is_number
from numprobe.compare.messages import say
from numprobe.compare.page.html import render_html
from numprobe.compare.page.markdown import render_markdown
from numprobe.compare.page.screen import render_terminal
from numprobe.compare.page.view import next_steps, sentence
from numprobe.compare.result import CompareResult, Finding
from numprobe.compare.run import CompareOptions, compare
from numprobe.compare.table import read_parquet
from numprobe.report.terminal import Style

from .written import Entry, call, compared, tensor, write

RANDOM = np.random.default_rng(0)
A, B, C, D = (RANDOM.standard_normal((4, 8)) for _ in range(4))
BF16 = "torch.bfloat16"
TOKENS = np.arange(3, 35).reshape(4, 8)


def both(tmp_path: Path, target: Mapping[str, Entry], golden: Mapping[str, Entry], **more: object) -> CompareResult:
    return compared(write(tmp_path / "t", target, **more), write(tmp_path / "g", golden, **more))  # type: ignore[arg-type]


def only(result: CompareResult) -> Finding:
    [finding] = result.findings
    for lang in ("en", "zh"):
        said = sentence(finding)
        assert say(lang, said.key, **said.values)
    return finding


NUMBER = {"type": "float", "value": 1.5}


@pytest.mark.parametrize("instead", [[None], [], [NUMBER], [[1, 2]], 1.5, "text", {"loss": None}])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_an_output_that_one_side_lacks(tmp_path: Path, instead: object, side: str) -> None:
    whole, lacking = (
        {"Torch.f.0.forward": {**call([tensor(A)], []), "output": outputs}} for outputs in ([tensor(B)], instead)
    )
    result = both(tmp_path, *((lacking, whole) if side == "target" else (whole, lacking)))
    finding = only(result)
    assert (finding.cause, finding.reason, finding.severity) == ("layout", "kind", "error")
    assert (finding.op, finding.slot) == ("Torch.f.0.forward", "output.0")
    assert result.verdict == "fail"


@pytest.mark.parametrize("instead", [[None], []])
def test_an_output_beside_others_is_a_warning_once(tmp_path: Path, instead: list[object]) -> None:
    """One implementation of attention gives its weights, another does not."""
    golden = {f"Torch.f.{i}.forward": call([tensor(A)], [tensor(B), tensor(C)]) for i in range(3)}
    target = {f"Torch.f.{i}.forward": call([tensor(A)], [tensor(B), *instead]) for i in range(3)}
    result = both(tmp_path, target, golden)
    finding = only(result)
    assert (finding.reason, finding.severity, finding.slot) == ("kind", "warning", "output.1")
    assert result.verdict == "pass"


@pytest.mark.parametrize("role", ["input_args", "output"])
@pytest.mark.parametrize(
    ("of_tensor", "plain", "same"), [(1.5, 1.5, True), (1.5, 2.5, False), (2.0, 2, True), (1.0, True, True)]
)
def test_a_tensor_of_one_number_and_that_number(
    tmp_path: Path, role: str, of_tensor: float, plain: float, same: bool
) -> None:
    """The loss of an auxiliary task, a scale: one version makes a tensor of it, another leaves it a number."""
    sides = []
    for leaf in (tensor(np.array(of_tensor)), {"type": type(plain).__name__, "value": plain}):
        record = call([tensor(A)], [tensor(B)])
        sides.append({"Torch.e.0.forward": call([tensor(A)], [tensor(A)]), "Torch.f.0.forward": record})
        sides[-1]["Torch.f.0.forward"] = {**record, role: [*record[role], leaf]}  # type: ignore[misc]
    reasons = {f.reason for f in both(tmp_path, *sides).findings}
    assert reasons == (set() if same else {"kind"})


@pytest.mark.parametrize(
    ("dtype", "plain", "same"),
    [("bf16", 0.1, True), ("bf16", 0.102, False), ("fp32", 0.1, True), ("int64", 0.1, False)],
)
def test_a_number_that_the_dtype_rounds(dtype: str, plain: float, same: bool) -> None:
    rounded = {"bf16": 0.10009765625, "fp32": 0.10000000149011612, "int64": 0.0}
    assert is_number(plain, rounded[dtype], dtype) is same


@pytest.mark.parametrize("plain", ["text", None, [1], {}])
def test_what_is_no_number_is_not_that_of_a_tensor(plain: object) -> None:
    assert not is_number(plain, 1.0, "fp32")


@pytest.mark.parametrize("other", [tensor(np.zeros((4, 8))), None])
def test_a_gradient_of_zeros_may_be_none(tmp_path: Path, other: object) -> None:
    forward = {"Torch.f.0.forward": call([tensor(A)], [tensor(B)])}
    sides = [
        {**forward, "Torch.f.0.backward": {"input": [tensor(C)], "output": [tensor(D), leaf]}} for leaf in (None, other)
    ]
    assert not both(tmp_path, *sides).findings


def test_a_gradient_that_ends_takes_those_before_it_along(tmp_path: Path) -> None:
    forward = {
        "Torch.e.0.forward": call([tensor(A)], [tensor(B)]),
        "Torch.f.0.forward": call([tensor(B)], [tensor(C)]),
    }
    golden = {
        **forward,
        "Torch.f.0.backward": {"input": [tensor(D)], "output": [tensor(A + D)]},
        "Torch.e.0.backward": {"input": [tensor(A + D)], "output": [tensor(B + D)]},
    }
    target = {**forward, "Torch.f.0.backward": {"input": [tensor(D)], "output": [None]}}
    finding = only(both(tmp_path, target, golden))
    assert (finding.cause, finding.reason, finding.op) == ("layout", "kind", "Torch.f.0.backward")
    assert finding.only_golden == ["Torch.e.0.backward"]


def test_backward_records_of_one_side_are_one_finding(tmp_path: Path) -> None:
    names = "abcd"
    forward = {f"Torch.{n}.0.forward": call([tensor(A + i)], [tensor(A + i + 1)]) for i, n in enumerate(names)}
    golden = dict(forward)
    for i, n in enumerate(reversed(names)):
        golden[f"Torch.{n}.0.backward"] = {"input": [tensor(B + i)], "output": [tensor(B + i + 1)]}
    target = {k: v for k, v in golden.items() if k not in ("Torch.c.0.backward", "Torch.a.0.backward")}
    finding = only(both(tmp_path, target, golden))
    assert (finding.cause, finding.reason, finding.severity) == ("unmatched", "only_golden", "warning")
    assert finding.only_golden == ["Torch.c.0.backward", "Torch.a.0.backward"]
    assert not both(tmp_path / "none", forward, golden).findings  # nothing of the target's backward was recorded


@pytest.mark.parametrize("leaf", [tensor(C[:3]), None])
@pytest.mark.parametrize("role", ["parameters", "input"])
def test_a_parameter_of_another_shape_or_none(tmp_path: Path, leaf: dict[str, object] | None, role: str) -> None:
    sides: list[dict[str, Entry]] = []
    for weight in (leaf, tensor(C)):
        if role == "parameters":
            record = {**call([tensor(A)], [tensor(B)]), "parameters": {"weight": weight}}
            sides.append({"Module.a.Linear.forward.0": record})
        else:
            sides.append({"Functional.linear.0.forward": call([tensor(A), weight], [tensor(B)])})
    finding = only(both(tmp_path, *sides))
    assert (finding.cause, finding.reason) == ("parameter", "shape" if leaf else "kind")


@pytest.mark.parametrize("wrong", [(B * 2, C * 2), (np.where(B > 1, np.nan, B), C * 2), (B[:2], C[:3])])
def test_several_wrong_outputs_of_a_call_are_one_finding(tmp_path: Path, wrong: tuple[np.ndarray, np.ndarray]) -> None:
    golden = {
        "Torch.f.0.forward": call([tensor(A)], [tensor(B), tensor(C)]),
        "Torch.g.0.forward": call([tensor(C)], [tensor(D)]),
    }
    target = {
        "Torch.f.0.forward": call([tensor(A)], [tensor(w) for w in wrong]),
        "Torch.g.0.forward": call([tensor(wrong[1])], [tensor(D * 2)]),
    }
    finding = only(both(tmp_path, target, golden))
    assert (finding.op, finding.slot) == ("Torch.f.0.forward", "output.0")
    assert finding.consequences > 0


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_call_of_integers_on_one_side_is_no_other_input(tmp_path: Path, side: str) -> None:
    less, more = (
        {"Functional.embedding.0.forward": call([tensor(tokens, "torch.int64"), tensor(C)], [tensor(out)])}
        for tokens, out in ((TOKENS, A), (TOKENS + 1, B))
    )
    shifted = call([tensor(TOKENS, "torch.int64")], [tensor(TOKENS + 1, "torch.int64")])
    more = {"Tensor.__add__.0.forward": shifted, **more}
    finding = only(both(tmp_path, *((more, less) if side == "target" else (less, more))))
    reason = "operator_extra" if side == "target" else "operator_missing"
    assert (finding.cause, finding.reason, finding.op) == ("introduced", reason, "Functional.embedding.0.forward")
    alone, none = (finding.extra, finding.missing) if side == "target" else (finding.missing, finding.extra)
    assert alone is not None
    assert (alone.op, none) == ("Tensor.__add__.0.forward", None)
    other = {"Functional.embedding.0.forward": call([tensor(TOKENS + 9, "torch.int64"), tensor(C)], [tensor(B)])}
    assert only(both(tmp_path / "other", other, less)).cause == "input"


@pytest.mark.parametrize("beside", ["", "argument", "extra"])
def test_what_alone_is_a_warning_is_an_error_beside_another_argument_or_call(tmp_path: Path, beside: str) -> None:
    """About nine times what bf16 explains."""
    factor = {"type": "float", "value": 1.05 if beside == "argument" else 1.0}
    target = {"Torch.mul.0.forward": call([tensor(A, BF16), factor], [tensor(C * 1.006, BF16)])}
    golden = {"Torch.mul.0.forward": call([tensor(A), {"type": "float", "value": 1.0}], [tensor(C)])}
    if beside == "extra":
        target = {"Torch.scaled.0.forward": call([tensor(B, BF16)], [tensor(D, BF16)]), **target}
    result = both(tmp_path, target, golden)
    assert bool(result.counts["warning"]) == (beside != "extra")  # an argument that differs is one too
    errors = [f for f in result.findings if f.severity == "error"]
    assert [(f.cause, f.op) for f in errors] == [("introduced", "Torch.mul.0.forward")] * bool(beside)
    assert [f.reason for f in errors] == ["argument"] * (beside == "argument") + [""] * (beside == "extra")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_call_of_one_side_alone_is_told_with_its_own_line_and_module(tmp_path: Path, side: str, lang: str) -> None:
    """Not only with those of the next call, which shows it: that may be in another module."""
    block, inner = "Module.block.Block.forward.0", "Module.block.down.Linear.forward.0"
    lines = {
        "Tensor.__mul__.0.forward": "line 12, in forward, h = h * 2",
        "Functional.linear.0.forward": "line 13, in forward, d(h)",
    }
    parents = {"Tensor.__mul__.0.forward": block, "Functional.linear.0.forward": inner, inner: block, block: None}

    def records(times: float) -> dict[str, Entry]:
        linear = call([tensor(A * times), tensor(C)], [tensor(B * times)])
        add = {"Tensor.__mul__.0.forward": call([tensor(A), {"type": "int", "value": 2}], [tensor(A * 2)])}
        outer = call([tensor(A)], [tensor(B * times)])
        return {**(add if times == 2 else {}), "Functional.linear.0.forward": linear, inner: linear, block: outer}

    factors = (2, 1) if side == "target" else (1, 2)
    folders = []
    for name, times in zip("tg", factors, strict=True):
        step = write(tmp_path / name, records(times), {k: v for k, v in parents.items() if k in records(times)})
        stacks = {record: [f"File /home/me/model.py, {line}"] for record, line in lines.items()}
        (step / "rank0" / "stack.json").write_text(json.dumps(stacks))
        folders.append(step)
    result = compared(*folders)
    [said] = next_steps(result)
    assert said.values == {"module": "block"}
    label = {"en": ("extra", "missing"), "zh": ("多出", "缺少")}[lang][side == "golden"]
    line = next(text for text in render_terminal(result, lang, Style(), "r").splitlines() if "model.py:12" in text)
    assert line.split() == [label, "me/model.py:12", "forward:", "h", "=", "h", "*", "2"]
    assert f"- {label}: `Tensor.__mul__.0.forward`, `me/model.py:12 forward: h = h * 2`" in render_markdown(
        result, lang
    )
    assert "model.py:12" in render_html(result, lang).replace("<wbr>", "")


@pytest.mark.parametrize("digests", [False, True])
def test_table_and_finding_give_one_error_for_one_pair(tmp_path: Path, digests: bool) -> None:
    """What the figures differ by: a tenth. The estimate of a scattered error with such a norm is larger."""
    long = RANDOM.standard_normal(4096)

    def written(name: str, times: float) -> Path:
        own = {"md5": name} if digests else {}
        same = {"md5": "same"} if digests else {}
        entry = call([tensor(long, **same)], [tensor(long * times, **own)])
        return write(tmp_path / name, {"Torch.f.0.forward": entry}, summary_mode="md5" if digests else "statistics")

    options = CompareOptions(use_cache=False, jobs=1)
    run = compare(written("t", 1.1), written("g", 1.0), options, parts=tmp_path)
    finding = only(run.result)
    [part] = run.parts
    rows = {row["path"]: row["error"] for row in read_parquet(part).to_dicts()}
    assert rows == {leaf.path: leaf.error for leaf in finding.leaves}
    assert rows["output.0"] == finding.error == pytest.approx(0.1)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_steps_after_the_first_that_differs_are_counted_and_no_part_of_the_picture(tmp_path: Path, lang: str) -> None:
    """There updated weights differ everywhere, and a first layer that is wrong would look like the source."""
    names = [f"Module.layers.{layer}.mlp.Linear.forward.0" for layer in (0, 1)]
    for side, wrong in (("t", (1, 0)), ("g", (None, None))):
        for step in (0, 1):
            outputs = [B * 2 if layer == wrong[step] else B for layer in (0, 1)]
            made = {name: call([tensor(C)], [tensor(out)]) for name, out in zip(names, outputs, strict=True)}
            place = write(tmp_path / "made" / side / str(step), made) / "rank0"
            shutil.copytree(place, tmp_path / side / f"step{step}" / "rank0")
    result = compared(tmp_path / "t", tmp_path / "g")
    assert ([f.op for f in result.findings], result.later_findings) == ([names[1]], 1)
    assert {(cell.layer, cell.verdict) for cell in result.heat} == {(0, "pass"), (1, "error")}
    assert [(pair.step, pair.counts["error"]) for pair in result.ranks] == [(0, 1), (1, 1)]
    later = say(lang, "finding.later", count=1)
    text = render_terminal(result, lang, Style(), "out/report.html", files=["out/a.csv", "out/b.csv"])
    assert later in text
    ends = {"en": ["files   out/a.csv and 1 more", "report  out/report.html"]}
    ends["zh"] = ["文件  out/a.csv 及另外 1 个", "报告  out/report.html"]
    assert text.splitlines()[-2:] == ends[lang]
    markdown = render_markdown(result, lang)
    assert later in markdown
    assert [line[:10] for line in markdown.splitlines() if "rank0" in line and line[0] == "|"] == [
        "| 0 | rank",
        "| 1 | rank",
    ]
    assert say(lang, "page.heat.later", step=0) in render_html(result, lang)
