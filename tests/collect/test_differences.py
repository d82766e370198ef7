"""Setting bench_path: two runs of a program, the second with a call that gives something else for the same inputs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from numprobe.collect.pytorch.differences import rank_folder  # noqa: E402
from numprobe.collect.pytorch.settings import load_settings  # noqa: E402
from numprobe.pytorch import PrecisionDebugger  # noqa: E402
from numprobe.record.errors import NumprobeError  # noqa: E402

from .dumps import Dump, is_tensor, leaves, only  # noqa: E402
from .recording import recorded  # noqa: E402


class Noisy(torch.autograd.Function):
    """The identity, but for what is added to it on the way there or back."""

    added = 0.0
    added_back = 0.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + Noisy.added

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + Noisy.added_back


class Api:
    @staticmethod
    def noisy(x: Any, factor: float = 1.0, **options: torch.Tensor) -> Any:
        return {"y": [Noisy.apply(x["x"] if isinstance(x, dict) else x)], "factor": factor}


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Noisy.apply(x * self.weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.wave, self.last = nn.Linear(3, 3), Wave(), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.wave(self.first(x)))


@pytest.fixture(autouse=True)
def _quiet():
    yield
    Noisy.added = Noisy.added_back = 0.0


def two_runs(
    tmp_path: Path, program: Callable[[], object], change: Callable[[], object], *, mode: str = "md5", **settings: Any
) -> tuple[Dump, set[str]]:
    """The second dump and the names of its records that have tensor files."""
    apis = settings.pop("apis", [])
    with PrecisionDebugger(
        dump_path=tmp_path / "old", level=settings.get("level", "L1"), summary_mode=mode, risk_level="ALL"
    ) as debugger:
        run(debugger, program, settings.get("model"), apis)
    change()
    made = {key: value for key, value in settings.items() if key != "model"}
    with PrecisionDebugger(
        dump_path=tmp_path / "new",
        task="tensor",
        bench_path=tmp_path / "old",
        summary_mode=mode,
        risk_level="ALL",
        **made,
    ) as debugger:
        run(debugger, program, settings.get("model"), apis)
    dump = only(tmp_path / "new")
    files = {p.name for p in (dump.folder / "dump_tensor_data").glob("*.pt")}
    named = {v["data_name"]: n for n, r in dump.data.items() for _, v in leaves(r) if is_tensor(v) and "data_name" in v}
    assert files == set(named)
    return dump, set(named.values())


def run(debugger: PrecisionDebugger, program: Callable[[], object], model: Any, apis: list[Any]) -> None:
    for api in apis:
        debugger.register_custom_api(*api)
    debugger.start(model=model)
    program()
    debugger.stop()
    debugger.step()


API = [(Api, "noisy", "Custom")]
X = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_the_call_that_differs_is_saved_whole(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture):
    def program() -> None:
        y = F.silu(X)
        z = Api.noisy({"x": y}, factor=2.0, other=torch.ones(2))["y"][0]
        torch.exp(z)

    dump, saved = two_runs(tmp_path, program, lambda: setattr(Noisy, "added", 1e-3), mode=mode, apis=API, diff_nums=-1)
    assert saved == {"Custom.noisy.0.forward"}, "exp only had another input"
    record = dump.data["Custom.noisy.0.forward"]
    folder = dump.folder / "dump_tensor_data"
    y = torch.load(folder / record["input_args"][0]["x"]["data_name"], weights_only=True)
    assert torch.equal(y, F.silu(X))
    assert torch.equal(
        torch.load(folder / record["input_kwargs"]["other"]["data_name"], weights_only=True), torch.ones(2)
    )
    z = torch.load(folder / record["output"][0]["y"][0]["data_name"], weights_only=True)
    assert torch.equal(z, y + 1e-3)
    assert "Custom.noisy.0.forward: equal inputs, but output.0.y.0 differs" in caplog.text


def test_equal_runs_save_nothing(tmp_path: Path):
    model = Net()
    dump, saved = two_runs(
        tmp_path, lambda: model(X).sum().backward(), model.zero_grad, model=model, level="mix", diff_nums=-1
    )
    assert saved == set()
    assert len(dump.data) > 10
    assert len(dump.stacks) == len([n for n in dump.data if "forward" in n])
    assert "Module.first.Linear.forward.0" in dump.parents.values()


@pytest.mark.parametrize("changed", ["keyword", "scalar", "nested"])
def test_other_inputs_excuse_another_output(tmp_path: Path, changed: str):
    """The reference looks at flat positional tensors alone."""
    given = {"keyword": torch.ones(2), "scalar": 2.0, "nested": X}

    def program() -> None:
        Api.noisy({"x": given["nested"]}, factor=given["scalar"], other=given["keyword"])  # type: ignore[arg-type]

    def change() -> None:
        Noisy.added = 1.0
        given[changed] = given[changed] + 1.0  # type: ignore[operator]

    assert two_runs(tmp_path, program, change, apis=API)[1] == set()


def test_a_changed_parameter_excuses_its_module(tmp_path: Path):
    model = Net()

    def change() -> None:
        with torch.no_grad():
            model.wave.weight.add_(1.0)

    settings = {"model": model, "level": "L0", "diff_nums": -1}
    assert two_runs(tmp_path, lambda: model(X), change, **settings)[1] == set()


def test_a_module_that_differs(tmp_path: Path):
    model = Net()
    change = lambda: setattr(Noisy, "added", 1.0)  # noqa: E731
    dump, saved = two_runs(tmp_path, lambda: model(X), change, model=model, level="L0", diff_nums=-1)
    assert saved == {"Module.wave.Wave.forward.0"}
    record = dump.data["Module.wave.Wave.forward.0"]
    assert set(record["parameters"]) == {"weight"}
    assert "data_name" in record["parameters"]["weight"]


def test_a_backward_pass_that_differs(tmp_path: Path):
    """Its forward call agreed, and so did what came into it: scattered additions of a GPU, say."""

    def program() -> None:
        x = X.clone().requires_grad_()
        torch.exp(Api.noisy(torch.sin(x))["y"][0]).sum().backward()

    change = lambda: setattr(Noisy, "added_back", 1e-3)  # noqa: E731
    _, saved = two_runs(tmp_path, program, change, apis=API, diff_nums=-1)
    assert saved == {"Custom.noisy.0.backward"}


def test_gradients_of_another_definition_are_not_compared(tmp_path: Path):
    def program() -> None:
        x = X.clone().requires_grad_()
        torch.exp(Api.noisy(torch.sin(x))["y"][0]).sum().backward()

    change = lambda: setattr(Noisy, "added_back", 1e-3)  # noqa: E731
    assert two_runs(tmp_path, program, change, apis=API, diff_nums=-1, compat=True)[1] == set()


def test_inputs_are_saved_as_they_were_before_the_call(tmp_path: Path):
    class InPlace:
        @staticmethod
        def twist(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return x.mul_(2.0 + Noisy.added)

    dump, saved = two_runs(
        tmp_path,
        lambda: InPlace.twist(torch.ones(3)),
        lambda: setattr(Noisy, "added", 1.0),
        apis=[(InPlace, "twist", "Custom")],
    )
    assert saved == {"Custom.twist.0.forward"}
    record = dump.data["Custom.twist.0.forward"]["input_args"][0]
    assert torch.load(dump.folder / "dump_tensor_data" / record["data_name"], weights_only=True).tolist() == [
        1.0,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (-1, 3)])
def test_it_ends_after_so_many(tmp_path: Path, limit: int, count: int):
    def program() -> None:
        for i in range(3):
            Api.noisy(X * i)
        torch.cos(X)

    dump, saved = two_runs(tmp_path, program, lambda: setattr(Noisy, "added", 1.0), apis=API, diff_nums=limit)
    assert saved == {f"Custom.noisy.{i}.forward" for i in range(count)}
    assert ("Torch.cos.0.forward" in dump.data) == (limit == -1)


def test_after_the_last_one_no_step_follows(tmp_path: Path):
    with PrecisionDebugger(dump_path=tmp_path / "old", level="L1", summary_mode="md5", risk_level="ALL") as debugger:
        for _ in range(2):
            run(debugger, lambda: Api.noisy(X), None, API)
    Noisy.added = 1.0
    with PrecisionDebugger(
        dump_path=tmp_path / "new", task="tensor", bench_path=tmp_path / "old", summary_mode="md5", level="L1"
    ) as debugger:
        for _ in range(2):
            run(debugger, lambda: Api.noisy(X), None, API)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["step0"]


def test_ranks_are_found_by_number(tmp_path: Path):
    for name in ("rank0", "rank10", "rank2"):
        (tmp_path / name).mkdir()
    assert rank_folder(tmp_path, 2).name == "rank2"
    assert rank_folder(tmp_path, 10).name == "rank10"
    for rank in (1, None):
        with pytest.raises(NumprobeError, match="E-COL-008"):
            rank_folder(tmp_path, rank)
    other = tmp_path / "single"
    (other / "proc77").mkdir(parents=True)
    assert rank_folder(other, None).name == rank_folder(other, 0).name == "proc77"
    (other / "proc78").mkdir()
    with pytest.raises(NumprobeError, match="several processes"):
        rank_folder(other, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the reference cannot be read"),
        ("{", "the reference is no whole dump.json"),
        ("[]", "the reference is no whole dump.json"),
        ('{"data": {"Torch.exp.0.forward": {"output": [null]}}}', "the reference has no checksums of summary_mode md5"),
        (
            '{"data": {"a": {"output": [{"dtype": "d", "shape": [], "md5": "0x00"}]}}}',
            "the reference has no checksums of summary_mode md5",
        ),
    ],
)
def test_a_reference_that_cannot_be_used_is_told_and_the_program_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
):
    folder = tmp_path / "old" / "step0" / "proc1"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "dump.json").write_text(content)
    caplog.set_level(logging.ERROR)
    dump = recorded(tmp_path, lambda: torch.exp(X), task="tensor", bench_path=tmp_path / "old", summary_mode="md5")
    assert f"NOTHING IS COMPARED in step 0: E-COL-008  {reason}" in caplog.text
    assert dump.names == ["Torch.exp.0.forward"]


def test_settings_that_cannot_work(tmp_path: Path):
    with pytest.raises(NumprobeError, match="E-CFG-011"):
        PrecisionDebugger(dump_path=tmp_path, task="tensor", bench_path=tmp_path, summary_mode="md5")
    for wrong in ({"summary_mode": "statistics"}, {"summary_mode": "hash", "async_dump": True, "list": ["linear"]}):
        with pytest.raises(NumprobeError, match="E-CFG-009"):
            load_settings(task="tensor", bench_path=tmp_path, **wrong)


def test_figures_that_are_no_numbers_do_not_matter(tmp_path: Path):
    """A reference with bare NaN, and one of msProbe's, whose header says nothing of gradients."""

    def program() -> None:
        Api.noisy(torch.log(torch.tensor([-1.0, 1.0])))

    def change() -> None:
        Noisy.added = 1.0
        file = next((tmp_path / "old").rglob("dump.json"))
        header = json.loads(file.read_text())
        assert header.pop("grad_kind") == "true"
        file.write_text(json.dumps(header, indent=1))
        assert "NaN" in file.read_text()

    assert two_runs(tmp_path, program, change, apis=API)[1] == {"Custom.noisy.0.forward"}
