"""Module calls: whatever they take and give, however they end, whoever else has hooks on them."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import only  # noqa: E402
from .recording import assert_is, recorded  # noqa: E402


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass
class Outputs:
    hidden: Tensor
    extra: dict[str, Any]


class Any_(nn.Module):
    """Gives what a function makes of its input."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.make(*args, **kwargs)


class Root(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def shapes(value: Any) -> Any:
    """A record with every tensor replaced by its shape."""
    if isinstance(value, dict):
        return value["shape"] if "shape" in value else {k: shapes(v) for k, v in value.items()}
    return [shapes(v) for v in value] if isinstance(value, list) else value


def generated(x: Tensor) -> Iterator[Tensor]:
    yield x * 2
    yield x * 3


X = torch.ones(2, 3)

OUTPUTS: dict[str, tuple[Any, Any]] = {
    "None": (lambda x: None, [None]),
    "nothing": (lambda x: (), []),
    "generator": (generated, [None]),
    "dataclass": (
        lambda x: Outputs(x * 2, {"n": 1}),
        [{"hidden": [2, 3], "extra": {"n": {"type": "int", "value": 1}}}],
    ),
    "named tuple": (lambda x: Pair(x * 2, None), [[2, 3], None]),
    "named tuple inside": (lambda x: {"p": Pair(x * 2, [x])}, [{"p": {"first": [2, 3], "second": [[2, 3]]}}]),
    "dict of dicts": (lambda x: {"a": {"b": {"c": x * 2}}, 7: x}, [{"a": {"b": {"c": [2, 3]}}, "7": [2, 3]}]),
    "object": (lambda x: object(), [None]),
    "set": (lambda x: {1, 2}, [None]),
    "text": (lambda x: "text", [{"type": "str", "value": "text"}]),
    "text that UTF-8 has not": (
        lambda x: {"k\udc80": "数\udc80"},
        [{"k\\udc80": {"type": "str", "value": "数\\udc80"}}],
    ),
}


@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_outputs_of_every_kind(tmp_path: Path, case: str, level: str):
    make, expected = OUTPUTS[case]
    model = Root(odd=Any_(make), layer=nn.Linear(3, 1))
    given: list[Any] = []

    def program() -> None:
        given.append(model.odd(X))
        if case == "generator":
            assert [t.sum().item() for t in given[0]] == [12, 18]
        model.layer(X).sum().backward()

    data = recorded(tmp_path, program, model=model, level=level).data
    assert shapes(data["Module.odd.Any_.forward.0"]["output"]) == expected
    assert type(given[0]) is type(make(X))  # the program gets what the module gave
    assert "Module.layer.Linear.backward.0" in data


def test_deep_nesting_is_cut_off(tmp_path: Path):
    def nested(x: Tensor) -> Any:
        value: Any = x
        for _ in range(500):
            value = [value]
        return value

    model = Root(deep=Any_(nested))
    assert "Module.deep.Any_.forward.0" in recorded(tmp_path, lambda: model.deep(X), model=model, level="L0").data


def test_a_list_that_holds_itself(tmp_path: Path):
    def circular(x: Tensor) -> Any:
        value: list[Any] = [x]
        value.append(value)
        return value

    model = Root(loop=Any_(circular))
    data = recorded(tmp_path, lambda: model.loop(X), model=model, level="L0").data
    assert data["Module.loop.Any_.forward.0"]["output"][0]["shape"] == [2, 3]


def test_keyword_only_calls(tmp_path: Path):
    model = Root(kw=Any_(lambda *, x, scale=1.0, mask=None: x * scale))
    data = recorded(tmp_path, lambda: model.kw(x=X, scale=2.0), model=model, level="L0").data
    record = data["Module.kw.Any_.forward.0"]
    assert record["input_args"] == []
    assert shapes(record["input_kwargs"]) == {"x": [2, 3], "scale": {"type": "float", "value": 2.0}}


def test_modules_that_are_never_called(tmp_path: Path):
    model = Root(used=nn.Linear(3, 3), unused=nn.Linear(3, 3))
    dump = recorded(tmp_path, lambda: model.used(X).sum().backward(), model=model, level="mix")
    assert [n for n in dump.data if "unused" in n] == []
    nothing = recorded(tmp_path / "none", lambda: None, model=model, level="mix")
    assert nothing.data == {}
    assert nothing.parents == {}


# --- exceptions --------------------------------------------------------------------------------------------------


class Fragile(nn.Module):
    """Fails in the second of its layers when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor, fails: bool) -> Tensor:
        x = self.first(x)
        return self.second(x[:, :2] if fails else x)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_exception_that_the_program_catches(tmp_path: Path, level: str):
    model = Root(fragile=Fragile(), last=nn.Linear(3, 1))

    def program() -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model.fragile(X, True)
        model.last(model.fragile(X, False)).sum().backward()

    dump = recorded(tmp_path, program, model=model, level=level)
    data, parents = dump.data, dump.parents
    failed = data["Module.fragile.second.Linear.forward.0"]
    assert failed["input_args"][0]["shape"] == [2, 2]
    assert failed["output"] == [None]
    assert data["Module.fragile.second.Linear.forward.1"]["output"][0]["shape"] == [2, 3]
    assert "Module.last.Linear.backward.0" in data
    # nothing thinks itself inside the call that failed
    assert parents["Module.fragile.Fragile.forward.1"] is None
    assert parents["Module.last.Linear.forward.0"] is None
    assert parents["Module.fragile.first.Linear.forward.1"] == "Module.fragile.Fragile.forward.1"
    if level == "mix":
        assert parents["Functional.linear.4.forward"] == "Module.last.Linear.forward.0"


def test_an_exception_in_the_backward_pass(tmp_path: Path):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ValueError("no gradient today")

    model = Root(layer=nn.Linear(3, 3), broken=Any_(Broken.apply), last=nn.Linear(3, 3))

    def program() -> None:
        with pytest.raises(ValueError, match="no gradient today"):
            model.last(model.broken(model.layer(X))).sum().backward()
        model.zero_grad()
        model.last(model.layer(X)).sum().backward()

    dump = recorded(tmp_path, program, model=model, level="mix")
    assert "Module.last.Linear.backward.0" in dump.data
    assert "Module.layer.Linear.backward.0" not in dump.data
    assert "Module.layer.Linear.backward.1" in dump.data
    assert_is(dump.data["Module.last.Linear.parameters_grad.1"]["weight"][0], model.last.weight.grad)


def test_an_exception_while_another_is_handled(tmp_path: Path):
    """A module called in an ``except`` block has not failed."""
    model = Root(layer=nn.Linear(3, 3))

    def program() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            model.layer(X)

    data = recorded(tmp_path, program, model=model, level="L0").data
    assert data["Module.layer.Linear.forward.0"]["output"][0]["shape"] == [2, 3]


# --- other hooks, other ways to call ------------------------------------------------------------------------------


def test_hooks_of_other_tools(tmp_path: Path):
    model = Root(layer=nn.Linear(3, 3))
    seen: list[str] = []
    x = X.clone().requires_grad_()
    handles = [
        model.layer.register_forward_pre_hook(lambda m, a: (seen.append("before"), (a[0] * 2,))[1]),
        model.layer.register_forward_hook(lambda m, a, out: (seen.append("after"), out + 1)[1]),
        model.layer.register_full_backward_hook(lambda m, gi, go: (seen.append("backward"), (gi[0] * 10,))[1]),
    ]
    before = model.layer(x)
    before.sum().backward()
    gradient, x.grad = x.grad, None
    kept = [len(h) for h in (model.layer._forward_hooks, model.layer._forward_pre_hooks, model.layer._backward_hooks)]
    outputs: list[Tensor] = []

    def program() -> None:
        outputs.append(model.layer(x))
        outputs[0].sum().backward()

    seen.clear()
    data = recorded(tmp_path, program, model=model, level="mix").data
    assert seen == ["before", "after", "backward"]
    assert torch.equal(outputs[0], before)
    assert torch.equal(x.grad, gradient)
    # what the module itself was given and gave
    assert_is(data["Module.layer.Linear.forward.0"]["input_args"][0], x * 2)
    assert_is(data["Module.layer.Linear.forward.0"]["output"][0], model.layer.forward(x * 2))
    assert [
        len(h) for h in (model.layer._forward_hooks, model.layer._forward_pre_hooks, model.layer._backward_hooks)
    ] == kept
    for handle in handles:
        handle.remove()


def test_two_names_for_one_module(tmp_path: Path):
    """Shared modules have one name, the first."""
    layer = nn.Linear(3, 3)
    model = Root(one=layer, two=layer)
    dump = recorded(tmp_path, lambda: model.two(model.one(X)), model=model, level="L0")
    assert dump.names == ["Module.one.Linear.forward.0", "Module.one.Linear.forward.1"]


def test_a_module_inside_itself(tmp_path: Path):
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, depth: int) -> Tensor:
            return self.layer(x if depth == 0 else self(x, depth - 1))

    model = Root(tree=Recursive())
    dump = recorded(tmp_path, lambda: model.tree(X, 2).sum().backward(), model=model, level="L0")
    forward = [n for n in dump.data if ".forward." in n]
    assert [n for n in forward if "Recursive" in n] == [f"Module.tree.Recursive.forward.{i}" for i in (2, 1, 0)]
    assert dump.parents["Module.tree.Recursive.forward.2"] == "Module.tree.Recursive.forward.1"
    assert dump.parents["Module.tree.layer.Linear.forward.0"] == "Module.tree.Recursive.forward.2"
    assert dump.parents["Module.tree.layer.Linear.forward.2"] == "Module.tree.Recursive.forward.0"


def test_scripted_modules_are_left_alone(tmp_path: Path):
    model = Root(scripted=torch.jit.script(nn.Linear(3, 3)), layer=nn.Linear(3, 3))
    dump = recorded(tmp_path, lambda: model.layer(model.scripted(X)).sum().backward(), model=model, level="mix")
    assert [n for n in dump.data if n.startswith("Module.") and ".forward." in n] == ["Module.layer.Linear.forward.0"]


def test_threads(tmp_path: Path):
    """Each thread has its own place in the tree; no call is lost and none is counted twice."""
    model = Root(a=nn.Sequential(nn.Linear(3, 3), nn.ReLU()), b=nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    barrier = threading.Barrier(2)

    def work(part: nn.Module) -> None:
        barrier.wait()
        for _ in range(20):
            part(X).sum().backward()

    def program() -> None:
        threads = [threading.Thread(target=work, args=(part,)) for part in (model.a, model.b)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    dump = recorded(tmp_path, program, model=model, level="mix")
    forward = [n for n in dump.data if n.startswith("Functional.linear.") and n.endswith("forward")]
    assert sorted(forward) == sorted(f"Functional.linear.{i}.forward" for i in range(40))
    for name, parent in dump.parents.items():
        if name.startswith(("Module.a.", "Module.b.")) and ".forward." in name and name.count(".") == 5:
            assert parent is not None
            assert parent[:9] == name[:9]
    for part in ("a", "b"):
        linear = [n for n in dump.data if n.startswith(f"Module.{part}.0.Linear.forward.")]
        assert len(linear) == 20
        sequential = [n for n in dump.data if n.startswith(f"Module.{part}.Sequential.backward.")]
        assert len(sequential) == 20


def test_another_model_later(tmp_path: Path):
    first, second = Root(layer=nn.Linear(3, 3)), Root(layer=nn.Linear(3, 2))
    with PrecisionDebugger(dump_path=tmp_path, level="L0") as debugger:
        for model in (first, second, first):
            debugger.start(model=model)
            model.layer(X)
            debugger.stop()
            debugger.step()
    assert [only(tmp_path, i).data["Module.layer.Linear.forward.0"]["output"][0]["shape"] for i in range(3)] == [
        [2, 3],
        [2, 2],
        [2, 3],
    ]


def test_module_dump_of_one_module(tmp_path: Path):
    from numprobe.pytorch import module_dump, module_dump_end

    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def program() -> None:
        y = X * 2
        module_dump(net, "net")
        y = net(y)
        module_dump_end()
        (y * 3).sum().backward()
        net(y.detach())

    dump = recorded(tmp_path, program)
    assert [n for n in dump.data if n.startswith("Module")] == [
        "Module.net.Sequential.forward.0",
        "Module.net.Sequential.backward.0",
    ]
    assert [n for n in dump.data if n.startswith("Functional.linear") and "forward" in n] == [
        "Functional.linear.0.forward"
    ]
    assert not net._forward_hooks


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def saved_whole(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"numprobe" not in file.getvalue()  # it can be read where there is no recorder
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("again", [copied, saved_whole])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_is_copied_and_saved_while_it_is_hooked(tmp_path: Path, again: Any, level: str):
    """Its copy is recorded once, and only where it is given to start()."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with PrecisionDebugger(dump_path=tmp_path, level=level) as debugger:
        debugger.start(model=model, token_range=[0, 9])
        other = again(model)
        assert torch.equal(other(X), model(X))
        debugger.stop()
        debugger.step()
        debugger.start(model=again(other))
        debugger.stop()
        debugger.step()
        third = again(other)
        debugger.start(model=third)
        third(X)
        debugger.stop()
        debugger.step()
    for step in (0, 2):
        modules = [name for name in only(tmp_path, step).data if name.startswith("Module.")]
        assert modules == ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0"]


def test_names_that_utf8_has_not(tmp_path: Path):
    root = nn.Module()
    root.add_module("x\ud800", nn.Linear(3, 3))
    recorded(tmp_path, lambda: root.get_submodule("x\ud800")(X).sum().backward(), model=root, level="mix")
    dump = only(tmp_path / "dump")
    assert {"Module.x\\ud800.Linear.forward.0", "Module.x\\ud800.Linear.backward.0"} <= set(dump.data)


def test_a_model_that_is_traced_is_not_recorded(tmp_path: Path):
    """Of torch.jit.trace, sizes are tensors, and what is called becomes part of the graph."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    plain = torch.jit.trace(model, X)
    traced: list[Any] = []
    dump = recorded(tmp_path, lambda: traced.append(torch.jit.trace(model, X)), model=model, level="mix")
    assert str(traced[0].graph).count("aten::") == str(plain.graph).count("aten::")
    assert not any("linear" in name and "forward" in name for name in dump.data if name.startswith("Module"))
