"""Functions and masks of the user's own: settings wrap_apis and ignore_arguments."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from numprobe.collect.pytorch.settings import load_settings  # noqa: E402
from numprobe.pytorch import PrecisionDebugger  # noqa: E402
from numprobe.record.errors import NumprobeError  # noqa: E402

from .dumps import only  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402

X = torch.tensor([1.0, -2.0])


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package ``kernels`` with a module ``kernels.ops``."""
    package, module = ModuleType("kernels"), ModuleType("kernels.ops")

    class Fused:
        @staticmethod
        def norm(x: torch.Tensor) -> torch.Tensor:
            return x / x.norm()

    def scale(x: torch.Tensor, by: float = 2.0, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return x * by, x

    module.Fused, module.scale = Fused, scale  # type: ignore[attr-defined]
    package.ops = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels", package)
    monkeypatch.setitem(sys.modules, "kernels.ops", module)
    return module


def test_their_prefix_is_the_path_of_the_module(tmp_path: Path, ops: Any):
    plain = ops.scale

    def program() -> None:
        ops.scale(X, by=3.0)
        ops.Fused.norm(X)

    data = recorded(tmp_path, program, wrap_apis={"kernels.ops": ["scale", "Fused.norm"]}).data
    assert list(data) == ["kernels.ops.scale.0.forward", "kernels.ops.norm.0.forward"]
    assert_is(data["kernels.ops.scale.0.forward"]["output"][0], X * 3)
    assert ops.scale is plain


def test_their_gradients_are_recorded(tmp_path: Path, ops: Any):
    w = X.clone().requires_grad_()
    data = recorded(
        tmp_path, lambda: ops.scale(w)[0].square().sum().backward(), wrap_apis={"kernels.ops": ["scale"]}
    ).data
    assert w.grad is not None
    assert_is(data["kernels.ops.scale.0.backward"]["output"][0], w.grad)


def test_a_module_that_is_imported_later(tmp_path: Path, ops: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "kernels.ops")
    del sys.modules["kernels"].ops  # type: ignore[attr-defined]
    with PrecisionDebugger(dump_path=tmp_path, level="L1", wrap_apis={"kernels.ops": ["scale"]}) as debugger:
        sys.modules["kernels.ops"] = ops
        debugger.start()
        ops.scale(X)
        debugger.stop()
        debugger.step()
    assert "kernels.ops.scale.0.forward" in only(tmp_path).data


def test_what_was_never_there_is_told(tmp_path: Path, ops: Any, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    recorded(tmp_path, lambda: ops.scale(X), wrap_apis={"kernels.ops": ["scale", "scales"], "no.such": ["f"]})
    assert "wrap_apis: kernels.ops has no scales, or was not imported" in caplog.text
    assert "wrap_apis: no.such has no f, or was not imported" in caplog.text
    assert "scale," not in caplog.text


@pytest.mark.parametrize(
    ("mask", "inputs", "kwargs", "outputs"),
    [
        ({"input": [0], "output": [1]}, [None, "value"], {"out": "value"}, ["value", None]),
        ({"input": ["out", 1]}, ["value", None], {"out": None}, ["value", "value"]),
        ({"input": "all", "output": "all"}, [None, None], {"out": None}, [None, None]),
    ],
)
def test_masked_arguments_are_null(
    tmp_path: Path, ops: Any, mask: dict[str, Any], inputs: list[Any], kwargs: dict[str, Any], outputs: list[Any]
):
    settings = {"wrap_apis": {"kernels.ops": ["scale"]}, "ignore_arguments": {"kernels.ops": {"scale": mask}}}
    data = recorded(tmp_path, lambda: ops.scale(X, 3.0, out=torch.empty(2)), **settings).data
    record = data["kernels.ops.scale.0.forward"]

    def seen(values: Any) -> Any:
        return [value and "value" for value in values]

    assert seen(record["input_args"]) == inputs
    assert dict(zip(record["input_kwargs"], seen(record["input_kwargs"].values()), strict=True)) == kwargs
    assert seen(record["output"]) == outputs


def test_masks_of_known_functions_can_be_replaced(tmp_path: Path):
    """Those of msProbe stay for all others."""
    settings = {"ignore_arguments": {"Torch": {"exp": {"output": [0]}}}}
    data = recorded(tmp_path, lambda: (torch.exp(X), torch.cos(X)), **settings).data
    assert data["Torch.exp.0.forward"]["output"] == [None]
    assert data["Torch.cos.0.forward"]["output"] != [None]


def test_from_files(tmp_path: Path):
    """As msProbe's users have them: YAML beside the configuration."""
    (tmp_path / "custom_wrap_ops.yaml").write_text("kernels.ops:\n  - scale\n  - norm\n")
    (tmp_path / "ignore.json").write_text('{"kernels.ops": {"scale": {"input": [0, "out"]}}}')
    config = tmp_path / "config.json"
    files = {"wrap_apis": "custom_wrap_ops.yaml", "ignore_arguments": "ignore.json"}
    config.write_text(json.dumps({"dump_path": "d", **files}))
    settings = load_settings(config)
    assert settings.wrap_apis == {"kernels.ops": ("scale", "norm")}
    assert settings.ignore_arguments["kernels.ops.scale"].inputs == {0, "out"}
    assert load_settings(wrap_apis=tmp_path / "custom_wrap_ops.yaml").wrap_apis == settings.wrap_apis
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wrap_apis", ["scale"]),
        ("wrap_apis", {"kernels.ops": "scale"}),
        ("wrap_apis", {"kernels.ops": [1]}),
        ("wrap_apis", {"kernels/ops": ["scale"]}),
        ("wrap_apis", {"kernels": ["scale()"]}),
        ("wrap_apis", {1: ["scale"]}),
        ("ignore_arguments", {"Torch": ["exp"]}),
        ("ignore_arguments", {"Torch": {"exp": {"inputs": [0]}}}),
        ("ignore_arguments", {"Torch": {"exp": {"input": 0}}}),
        ("ignore_arguments", {"Torch": {"exp": {"input": [0.5]}}}),
        ("ignore_arguments", {"Torch": {"exp": {"output": [True]}}}),
    ],
)
def test_wrong_ones_are_named(key: str, value: object):
    with pytest.raises(NumprobeError, match=f"E-CFG-005  {key}"):
        load_settings(**{key: value})


def test_a_file_that_is_not_there():
    with pytest.raises(NumprobeError, match="E-CFG-001"):
        load_settings(wrap_apis="no_such.yaml")
