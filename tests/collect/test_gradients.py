"""Backward records hold true gradients: what one call contributes to each of its inputs, computed here a second time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from numprobe.pytorch import PrecisionDebugger  # noqa: E402

from .dumps import Dump  # noqa: E402
from .recording import assert_is, is_of, recorded  # noqa: E402


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- one API -----------------------------------------------------------------------------------------------------

TARGET = torch.tensor([1, 0, 3])
ROWS = torch.tensor([[0, 2], [1, 1], [2, 0]])

# What is called, its record, shapes of its inputs
CALLS: dict[str, tuple[Callable[..., Any], str, list[tuple[int, ...]]]] = {
    "cross_entropy": (lambda x: F.cross_entropy(x, TARGET), "Functional.cross_entropy", [(3, 5)]),
    "linear 3-D": (lambda x, w: F.linear(x, w), "Functional.linear", [(2, 3, 4), (5, 4)]),
    "linear with bias": (lambda x, w, b: F.linear(x, w, b), "Functional.linear", [(2, 3, 4), (5, 4), (5,)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), "Functional.layer_norm", [(3, 4), (4,)]),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), "Functional.batch_norm", [(5, 4)]),
    "normalize": (lambda x: F.normalize(x), "Functional.normalize", [(3, 4)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "Functional.scaled_dot_product_attention",
        [(1, 2, 5, 4)] * 3,
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), "Functional.conv1d", [(2, 3, 7), (4, 3, 3)]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), "Functional.interpolate", [(1, 2, 3)]),
    "pad": (lambda x: F.pad(x, (1, 2)), "Functional.pad", [(3, 4)]),
    "embedding": (lambda w: F.embedding(ROWS, w), "Functional.embedding", [(3, 4)]),
    "mse_loss": (lambda x, y: F.mse_loss(x, y), "Functional.mse_loss", [(3, 4), (3, 4)]),
    "softmax": (lambda x: torch.softmax(x, -1), "Torch.softmax", [(3, 4)]),
    "matmul": (lambda a, b: torch.matmul(a, b), "Torch.matmul", [(2, 3, 4), (4, 5)]),
    "@": (lambda a, b: a @ b, "Tensor.__matmul__", [(3, 4), (4, 5)]),
    "broadcast": (lambda a, b: a / b, "Tensor.__truediv__", [(3, 4), (4,)]),
    "einsum": (lambda a, b: torch.einsum("bij,jk->bik", a, b), "Torch.einsum", [(2, 3, 4), (4, 5)]),
    "std": (lambda x: torch.std(x, dim=1), "Torch.std", [(3, 4)]),
    "linalg.norm": (lambda x: torch.linalg.norm(x), "Torch.norm", [(3, 4)]),
    "where": (lambda a, b: torch.where(a > 0, a, b), "Torch.where", [(3, 4), (3, 4)]),
    "gather": (lambda x: torch.gather(x, 1, ROWS), "Torch.gather", [(3, 4)]),
    "stack": (lambda a, b: torch.stack([a, b]), "Torch.stack", [(3, 4), (3, 4)]),
    "cat": (lambda a, b: torch.cat((a, b), dim=1), "Torch.cat", [(3, 4), (3, 2)]),
    "keyword": (lambda a, b: torch.add(input=a, other=b, alpha=3), "Torch.add", [(3, 4), (3, 4)]),
    "transpose": (lambda x: x.transpose(0, 1), "Tensor.transpose", [(3, 4)]),
    "expand": (lambda x: x.expand(3, 4), "Tensor.expand", [(1, 4)]),
    "split": (lambda x: torch.split(x, [1, 3], dim=1), "Torch.split", [(3, 4)]),
    "chunk": (lambda x: x.chunk(2, dim=1), "Tensor.chunk", [(3, 4)]),
    "max": (lambda x: torch.max(x, dim=1), "Torch.max", [(3, 4)]),
    "topk": (lambda x: torch.topk(x, 2), "Torch.topk", [(3, 4)]),
    "var_mean": (lambda x: torch.var_mean(x, dim=0), "Torch.var_mean", [(3, 4)]),
    "linalg.svdvals": (lambda x: torch.linalg.svd(x, full_matrices=False), "Torch.svd", [(3, 4)]),
}

# Where the inputs stand that have a gradient, unless they are the first ones
PLACES = {
    "stack": ["0.0", "0.1"],
    "cat": ["0.0", "0.1"],
    "keyword": ["input", "other"],
    "embedding": ["1"],
    "layer_norm": ["0", "2"],
    "where": ["1", "2"],
    "einsum": ["1", "2"],
}


def made_by(output: Any) -> list[Tensor]:
    """The outputs that a gradient can flow back from."""
    listed = list(output) if isinstance(output, (tuple, list)) else [output]
    return [t for t in listed if t.requires_grad]


@pytest.mark.parametrize("case", CALLS)
def test_inputs_of_one_api(tmp_path: Path, case: str):
    """Each input is used elsewhere too, as in a residual connection: only the part of this call counts."""
    call, name, shapes = CALLS[case]
    leaves = [random(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]

    def program() -> None:
        inputs = [leaf * 1.5 for leaf in leaves]
        outputs = made_by(call(*inputs))
        loss = sum((t * random(*t.shape, seed=50 + i)).sum() for i, t in enumerate(outputs))
        (loss + sum((t * t).sum() for t in inputs)).backward()

    dump = recorded(tmp_path, program)
    inputs = [(leaf * 1.5).detach().requires_grad_() for leaf in leaves]
    outputs = made_by(call(*inputs))
    weights = [random(*t.shape, seed=50 + i) for i, t in enumerate(outputs)]
    numbers = [n for n in dump.data if n.startswith(f"{name}.") and n.endswith(".forward")]
    record = dump.data[next(n for n in numbers if dump.data[n]["output"]).replace(".forward", ".backward")]
    for found, weight in zip(record["input"], weights, strict=True):
        assert_is(found, weight)
    for found, gradient in zip(record["output"], torch.autograd.grad(outputs, inputs, weights), strict=True):
        assert_is(found, gradient)
    assert record["grad_of"] == PLACES.get(case, [str(i) for i in range(len(inputs))])


def test_only_the_used_output_of_several(tmp_path: Path):
    x = random(4, 6).requires_grad_()

    def program() -> None:
        _, second = torch.split(x * 1.0, 3, dim=1)
        (second * 2.0).sum().backward()

    record = recorded(tmp_path, program).data["Torch.split.0.backward"]
    assert_is(record["input"][1], torch.full((4, 3), 2.0))
    assert record["input"][0] is None
    assert_is(record["output"][0], torch.cat([torch.zeros(4, 3), torch.full((4, 3), 2.0)], 1))


def test_one_tensor_in_two_places(tmp_path: Path):
    """Each place has its own part."""
    x = random(3, 4).requires_grad_()
    record = recorded(tmp_path, lambda: torch.mul(x * 1.0, x * 1.0).sum().backward()).data["Torch.mul.0.backward"]
    assert_is(record["output"][0], x)
    assert_is(record["output"][1], x)

    def same() -> None:
        h = x * 1.0
        torch.mul(h, h).sum().backward()

    record = recorded(tmp_path / "same", same).data["Torch.mul.0.backward"]
    assert record["grad_of"] == ["0", "1"]
    assert_is(record["output"][0], x)
    assert_is(record["output"][1], x)


def test_leaf_inputs(tmp_path: Path):
    """Contributions of two calls to one leaf stand in two records; .grad has the sum."""
    x, w = random(3, 4).requires_grad_(), random(3, 4, seed=1)

    def program() -> None:
        (torch.mul(x, w).sum() + torch.exp(x).sum()).backward()

    data = recorded(tmp_path, program).data
    assert_is(data["Torch.mul.0.backward"]["output"][0], w)
    assert_is(data["Torch.exp.0.backward"]["output"][0], x.exp())
    assert torch.allclose(x.grad, w + x.detach().exp())


def test_parameters(tmp_path: Path):
    """An API's record leaves them out; at mix they are in parameters_grad, once."""
    net = nn.Sequential(nn.Linear(4, 2))
    x = random(3, 4).requires_grad_()
    record = recorded(tmp_path / "L1", lambda: net(x).sum().backward()).data["Functional.linear.0.backward"]
    assert record["grad_of"] == ["0"]
    assert_is(record["output"][0], x.grad)
    net.zero_grad()
    data = recorded(tmp_path / "mix", lambda: net(x).sum().backward(), model=net, level="mix").data
    assert data["Functional.linear.0.backward"]["grad_of"] == ["0"]
    assert_is(data["Module.0.Linear.parameters_grad.0"]["weight"][0], net[0].weight.grad)
    assert_is(data["Module.0.Linear.parameters_grad.0"]["bias"][0], net[0].bias.grad)


# --- in place, views ---------------------------------------------------------------------------------------------


def test_in_place(tmp_path: Path):
    """An operator in place gives its input another node: the record of what made the input stays, with what came after it."""
    x = random(3, 4).requires_grad_()
    gradient = random(3, 4, seed=9)

    def program() -> None:
        y = torch.mul(x, 3.0)
        y.add_(1.0)
        y.relu_()
        y.backward(gradient)

    data = recorded(tmp_path, program).data
    through = gradient * (3 * x + 1 > 0)
    assert_is(data["Tensor.relu_.0.backward"]["input"][0], gradient)
    assert_is(data["Tensor.relu_.0.backward"]["output"][0], through)
    assert_is(data["Tensor.add_.0.backward"]["output"][0], through)
    assert_is(data["Torch.mul.0.backward"]["input"][0], through)
    assert_is(data["Torch.mul.0.backward"]["output"][0], 3 * through)


def test_in_place_on_a_view(tmp_path: Path):
    x = random(4, 3).requires_grad_()

    def steps(base: Tensor) -> Tensor:
        y = torch.mul(base, 2.0)
        y[1].mul_(5.0)
        y[2:].exp_()
        return torch.sin(y)

    data = recorded(tmp_path, lambda: steps(x).sum().backward()).data
    y = torch.mul(x, 2.0).detach()
    y[1] *= 5
    y[2:].exp_()
    behind = torch.cos(y)
    assert_is(data["Torch.sin.0.backward"]["output"][0], behind)
    factor = torch.ones(4, 3)
    factor[1] = 5
    factor[2:] = y[2:]
    assert_is(data["Torch.mul.0.backward"]["output"][0], 2 * factor * behind)
    assert torch.allclose(x.grad, 2 * factor * behind)


def test_setitem(tmp_path: Path):
    """y[0] = z: what was there gets no gradient, z does."""
    x, z = random(3, 4).requires_grad_(), random(4, seed=1).requires_grad_()

    def program() -> None:
        y = torch.mul(x, 2.0)
        y[0] = torch.mul(z, 3.0)
        torch.tanh(y).sum().backward()

    data = recorded(tmp_path, program).data
    assert_is(data["Torch.mul.0.backward"]["output"][0], x.grad)
    assert_is(data["Torch.mul.1.backward"]["output"][0], z.grad)
    assert x.grad[0].abs().max() == 0


# --- modules -----------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Outer(nn.Module):
    """The outermost module is not recorded."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_residual_connection(tmp_path: Path, level: str):
    """The inner module's input gradient is that of its own way, the block's has the other way too."""
    model = Outer(block=Residual())
    x, gradient = random(3, 4).requires_grad_(), random(3, 4, seed=1)
    data = recorded(tmp_path, lambda: model(x * 1.0).backward(gradient), model=model, level=level).data
    h = x.detach().requires_grad_()
    (own,) = torch.autograd.grad(model.block.inner(h), h, gradient)
    inner = data["Module.block.inner.Sequential.backward.0"]
    assert_is(inner["input"][0], gradient)
    assert_is(inner["output"][0], own)
    assert_is(data["Module.block.Residual.backward.0"]["output"][0], own + gradient)
    assert torch.allclose(x.grad, own + gradient)


def test_module_called_twice(tmp_path: Path):
    """Two records, each with its own input; the parameters' gradient is added up first."""
    layer = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    model = Twice()
    x, gradient = random(3, 4).requires_grad_(), random(3, 4, seed=1)
    data = recorded(tmp_path, lambda: model(x).backward(gradient), model=model, level="L0").data
    middle = torch.tanh(layer(x)).detach().requires_grad_()
    (behind,) = torch.autograd.grad(layer(middle), middle, gradient)
    assert_is(data["Module.layer.Linear.backward.1"]["output"][0], behind)
    assert_is(data["Module.layer.Linear.backward.0"]["input"][0], behind * (1 - middle.detach() ** 2))
    assert_is(data["Module.layer.Linear.backward.0"]["output"][0], x.grad)
    assert_is(data["Module.layer.Linear.parameters_grad.0"]["weight"][0], layer.weight.grad)
    assert "Module.layer.Linear.parameters_grad.1" not in data


def test_module_whose_inputs_are_nested(tmp_path: Path):
    class Pair(nn.Module):
        def forward(self, pair: dict[str, Any], *, scale: Tensor) -> dict[str, Any]:
            a, (b, _) = pair["a"], pair["rest"]
            return {"sum": a * scale + b, "parts": [a.exp(), None]}

    model = Outer(pair=Pair())
    a, b, scale = (random(3, 4, seed=i).requires_grad_() for i in range(3))

    def program() -> None:
        out = model.pair({"a": a * 1.0, "rest": (b * 1.0, "text")}, scale=scale)
        (out["sum"].sum() + (2 * out["parts"][0]).sum()).backward()

    record = recorded(tmp_path, program, model=model, level="L0").data["Module.pair.Pair.backward.0"]
    assert record["grad_of"] == ["0.a", "0.rest.0", "scale"]
    for found, tensor in zip(record["output"], (a, b, scale), strict=True):
        assert_is(found, tensor.grad)
    assert_is(record["input"][0], torch.ones(3, 4))
    assert_is(record["input"][1], torch.full((3, 4), 2.0))


def test_module_with_an_input_that_nothing_uses(tmp_path: Path):
    class First(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * 2.0

    model = Outer(first=First())
    x, y = random(3).requires_grad_(), random(3, seed=1).requires_grad_()
    data = recorded(tmp_path, lambda: model.first(x, y).sum().backward(), model=model, level="L0").data
    record = data["Module.first.First.backward.0"]
    assert_is(record["output"][0], torch.full((3,), 2.0))
    assert record["output"][1] is None


def test_module_that_changes_its_input_in_place(tmp_path: Path):
    model = Outer(first=nn.Linear(4, 4), act=nn.ReLU(inplace=True), second=nn.Linear(4, 2))
    x = random(3, 4).requires_grad_()
    data = recorded(tmp_path, lambda: model(x).sum().backward(), model=model, level="L0").data
    before = model.first(x).detach()
    behind = model.second.weight.sum(0).expand(3, 4)
    assert_is(data["Module.act.ReLU.backward.0"]["input"][0], behind)
    assert_is(data["Module.act.ReLU.backward.0"]["output"][0], behind * (before > 0))
    assert_is(data["Module.first.Linear.backward.0"]["input"][0], behind * (before > 0))
    assert_is(data["Module.first.Linear.backward.0"]["output"][0], x.grad)


def test_gradient_accumulation(tmp_path: Path):
    """Two micro-batches: parameters_grad is the running sum, the modules' own records are of one batch each."""
    model = Outer(layer=nn.Linear(4, 2))
    batches = [random(3, 4, seed=i).requires_grad_() for i in range(2)]

    def program() -> None:
        for x in batches:
            model(x).sum().backward()

    data = recorded(tmp_path, program, model=model, level="mix").data
    sums = [x.detach().sum(0).expand(2, 4) for x in batches]
    assert_is(data["Module.layer.Linear.parameters_grad.0"]["weight"][0], sums[0])
    assert_is(data["Module.layer.Linear.parameters_grad.1"]["weight"][0], sums[0] + sums[1])
    for i, x in enumerate(batches):
        assert_is(data[f"Module.layer.Linear.backward.{i}"]["output"][0], x.grad)


# --- graphs that are not plain -----------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """Its gradient is wrong on purpose: the record has what flows, not what is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x * 2, y + n

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, None, Tensor]:
        return a * 7, None, b * 11


def test_custom_function(tmp_path: Path):
    class Custom(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a, b = Doubled.apply(x, 3, y)
            return a + 2 * b

    model = Outer(custom=Custom())
    x, y = random(3, 4).requires_grad_(), random(3, 4, seed=1).requires_grad_()
    data = recorded(tmp_path, lambda: model.custom(x, y).sum().backward(), model=model, level="mix").data
    record = data["Module.custom.Custom.backward.0"]
    assert_is(record["output"][0], torch.full((3, 4), 7.0))
    assert_is(record["output"][1], torch.full((3, 4), 22.0))
    assert_is(data["Tensor.__add__.1.backward"]["output"][1], torch.ones(3, 4))


def test_without_gradients(tmp_path: Path):
    model = Outer(frozen=nn.Linear(4, 4), layer=nn.Linear(4, 2))
    x = random(3, 4)

    def program() -> None:
        with torch.no_grad():
            h = model.frozen(x)
        model.layer(h).sum().backward()
        model.layer(h.detach())

    dump = recorded(tmp_path, program, model=model, level="mix")
    assert [n for n in dump.backward() if "frozen" in n] == []
    assert [n for n in dump.backward() if n.startswith("Module")] == [
        "Module.layer.Linear.backward.0",
        "Module.layer.Linear.parameters_grad.0",
    ]
    assert "Functional.linear.0.backward" not in dump.data
    assert dump.data["Module.layer.Linear.backward.0"]["output"] == []  # its input needs no gradient


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = Residual()
        self.second = Residual()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_checkpoint(tmp_path: Path, reentrant: bool, level: str):
    model = Recomputed(reentrant)
    x, gradient = random(3, 4).requires_grad_(), random(3, 4, seed=1)
    data = recorded(tmp_path, lambda: model(x).backward(gradient), model=model, level=level).data
    last = 1 if reentrant else 0  # the graph of the recomputed call, or of the first one
    h = model.first(x).detach().requires_grad_()
    (behind,) = torch.autograd.grad(model.second(h), h, gradient)
    assert_is(data[f"Module.first.Residual.backward.{last}"]["input"][0], behind)
    assert_is(data[f"Module.first.Residual.backward.{last}"]["output"][0], x.grad)
    assert f"Module.first.Residual.backward.{1 - last}" not in data
    assert_is(data["Module.first.inner.0.Linear.parameters_grad.0"]["weight"][0], model.first.inner[0].weight.grad)


def test_two_passes_through_one_graph(tmp_path: Path):
    """retain_graph: the record is of one of the passes, whole, and stands in the file once."""
    model = Outer(layer=nn.Linear(4, 2))
    x = random(3, 4).requires_grad_()
    weights = [random(3, 2, seed=i) for i in (1, 2)]

    def program() -> None:
        y = torch.tanh(model(x))
        y.backward(weights[0], retain_graph=True)
        PrecisionDebugger.stop()
        PrecisionDebugger.start(model=model)
        y.backward(weights[1])

    for level in ("L1", "mix"):
        data = recorded(tmp_path / level, program, model=model, level=level).data
        y = torch.tanh(model(x)).detach()
        record = data["Torch.tanh.0.backward"]
        of = [i for i, weight in enumerate(weights) if is_of(record["input"][0], weight)]
        assert len(of) == 1
        assert_is(record["output"][0], weights[of[0]] * (1 - y**2))


def test_second_derivatives(tmp_path: Path):
    """create_graph, as of a gradient penalty: the gradients are what torch says, whoever watches."""
    x = random(3, 4).requires_grad_()

    def penalty() -> Tensor:
        y = torch.tanh(x).pow(2).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.pow(2).sum().backward()
        found, x.grad = x.grad, None
        return found

    plain = penalty()
    watched: list[Tensor] = []
    dump = recorded(tmp_path, lambda: watched.append(penalty()))
    assert torch.equal(watched[0], plain)
    assert len(dump.data) == len(set(dump.data))


def test_backward_after_stop(tmp_path: Path):
    """The forward pass was recorded: an API's backward pass still is, until step() ends it all."""
    model = Outer(layer=nn.Linear(4, 2))
    x = random(3, 4).requires_grad_()
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="mix") as debugger:
        debugger.start(model=model)
        loss = model(x).sum()
        later = model(x).sum()
        debugger.stop()
        loss.backward()
        debugger.step()
        later.backward()
        debugger.start(model=model)
        debugger.step()
    [rank] = (tmp_path / "dump" / "step0").iterdir()
    data = Dump(rank).data
    assert_is(data["Functional.linear.0.backward"]["output"][0], model.layer.weight.sum(0).expand(3, 4))
    assert "Functional.linear.1.backward" not in data
    assert [p.name for p in (tmp_path / "dump").iterdir()] in (["step0"], ["step0", "step1"], ["step1", "step0"])


# --- the program's own results -----------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Residuals, a shared layer, in-place operators, dropout, a recomputed part, a multi-output operator."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.shared = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.1)
        self.act = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.drop(self.shared(self.norm(x)))
        x = x + checkpoint(self.block, x, use_reentrant=False)
        x = self.act(self.shared(x)) + x
        x = x + checkpoint(self.block, x, use_reentrant=True)
        first, second = x.split(4, dim=-1)
        x = torch.cat([first * second, second], dim=-1)
        x += 1.0
        return self.head(x)


def trained(start: nn.Module, dtype: torch.dtype, debugger: PrecisionDebugger | None) -> list[Tensor]:
    torch.manual_seed(3)
    model = copy.deepcopy(start).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        if debugger is not None:
            debugger.start(model=model)
        for _ in range(2):
            ids = torch.randint(0, 11, (4, 6))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [loss.detach(), *(p.detach() for p in model.parameters()), torch.rand(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_bit_identical(tmp_path: Path, dtype: torch.dtype):
    """Losses, parameters after three optimizer steps and the random numbers that follow, with the collector and without."""
    torch.manual_seed(0)
    start = Mixed()
    plain = trained(start, dtype, None)
    for level in ("L0", "L1", "mix"):
        with PrecisionDebugger(dump_path=tmp_path / level, level=level, risk_level="ALL") as debugger:
            watched = trained(start, dtype, debugger)
        assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True)), level
    assert all(torch.equal(a, b) for a, b in zip(trained(start, dtype, None), plain, strict=True))


# --- one tensor, several uses ------------------------------------------------------------------------------------


def test_a_leaf_whose_cast_autocast_has_kept(tmp_path: Path):
    """Three calls use one cast of x; each record has what its own call contributes, in float32."""
    x = random(3, 4).requires_grad_()
    weights = [random(4, 4, seed=i + 1).bfloat16() for i in range(3)]

    def program() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total = sum(torch.matmul(x, w).float().square().sum() for w in weights)
        total.backward()

    data = recorded(tmp_path, program).data
    parts = []
    for i, w in enumerate(weights):
        own = x.detach().bfloat16().requires_grad_()
        torch.matmul(own, w).float().square().sum().backward()
        parts.append(own.grad.float())
        record = data[f"Torch.matmul.{i}.backward"]
        assert record["grad_of"] == ["0"]
        assert_is(record["output"][0], parts[-1])
    assert not is_of(data["Torch.matmul.0.backward"]["output"][0], sum(parts)), "the sum is another"
    exact = sum(part.double() for part in parts)
    assert torch.allclose(x.grad.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


def test_without_the_cache_every_call_has_a_cast(tmp_path: Path):
    x = random(3, 4).requires_grad_()
    w = random(4, 4, seed=1).bfloat16()

    def program() -> None:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            total = torch.matmul(x, w).float().sum() + torch.matmul(x, w).float().square().sum()
        total.backward()

    data = recorded(tmp_path, program).data
    own = x.detach().bfloat16().requires_grad_()
    torch.matmul(own, w).float().sum().backward()
    assert_is(data["Torch.matmul.0.backward"]["output"][0], own.grad.float())


def test_a_module_under_autocast(tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    x = random(3, 4).requires_grad_()

    def program() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()

    data = recorded(tmp_path, program, model=model, level="L0").data
    assert_is(data["Module.0.Linear.backward.0"]["output"][0], x.grad)


TWICE: dict[str, Callable[[Tensor], Tensor]] = {
    "Tensor.__mul__": lambda x: x * x,
    "Torch.sub": lambda x: torch.sub(x, x, alpha=3.0),
    "Torch.div": lambda x: torch.div(x, x),
    "Torch.cat": lambda x: torch.cat([x, x]),
    "Torch.where": lambda x: torch.where(torch.tensor([[True], [False], [True]]), x, x),
    "Torch.addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "Functional.mse_loss": lambda x: F.mse_loss(x, x),
    "Torch.maximum": lambda x: torch.maximum(x, x),
}


@pytest.mark.parametrize("name", list(TWICE))
@pytest.mark.parametrize("leaf", [True, False])
def test_a_tensor_that_is_given_twice(tmp_path: Path, name: str, leaf: bool):
    """Each place has its own part, as if two tensors of the same values had been given."""
    x = random(3, 4).abs().add(0.5).requires_grad_()

    def program() -> None:
        given = x if leaf else torch.mul(x, 1.0)
        (TWICE[name](given) * 2).sum().backward()

    record = recorded(tmp_path, program).data[f"{name}.0.backward"]
    places = record["output"]
    assert len(places) == len(record["grad_of"]) >= 2
    assert sum(p["Mean"] for p in places) == pytest.approx(x.grad.mean().item(), abs=1e-6)
    if name == "Torch.sub":
        assert [p["Max"] for p in places] == [2.0, -6.0]
    if name == "Torch.where":
        assert [(p["Max"], p["Min"]) for p in places] == [(2.0, 0.0)] * 2
    if name == "Torch.div":
        assert places[0]["Min"] > 0 > places[1]["Max"]


def test_a_tensor_that_is_given_twice_to_several_nodes(tmp_path: Path):
    """Which of its ways belongs to which place cannot be told: the first has the whole."""
    x = random(4, 4).requires_grad_()
    record = recorded(tmp_path, lambda: F.linear(x, x).square().sum().backward()).data["Functional.linear.0.backward"]
    assert_is(record["output"][0], x.grad)
    assert record["output"][1] is None
