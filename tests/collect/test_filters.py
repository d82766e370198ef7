"""Which records are kept: scope, list, risk level, and what is said of names that nothing has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from numprobe.collect.pytorch.filters import NameFilter, Unmatched
from numprobe.collect.pytorch.settings import load_settings

A, B, INNER = "Module.a.A.forward.0", "Module.b.B.forward.0", "Module.a.inner.Inner.forward.0"
LINEAR, ADD = "Functional.linear.{}.forward", "Tensor.add.{}.forward"

# A small model: a holds inner, b comes after it; APIs stand where they are called
STEP = [
    ("api", "Torch.arange.0.forward"),
    ("enter", A),
    ("api", LINEAR.format(0)),
    ("enter", INNER),
    ("api", ADD.format(0)),
    ("leave", INNER),
    ("api", LINEAR.format(1)),
    ("leave", A),
    ("api", ADD.format(1)),
    ("enter", B),
    ("api", LINEAR.format(2)),
    ("leave", B),
    ("api", ADD.format(2)),
    ("api", "Tensor.add.2.backward"),
    ("enter", "Module.b.B.backward.0"),
    ("api", "Functional.linear.2.backward"),
    ("leave", "Module.b.B.backward.0"),
]


def kept(names: NameFilter, level: str) -> list[str]:
    """The records of one step, in the order in which they begin."""
    found = []
    for what, name in STEP:
        if what == "api":
            if level in ("L1", "mix") and names.api(name):
                found.append(name)
        elif level in ("L0", "mix"):
            if what == "enter":
                names.enter_module(name)
                if names.module(name):
                    found.append(name)
            else:
                names.leave_module(name)
    return found


def of(level: str, **settings: Any) -> NameFilter:
    return NameFilter(load_settings(level=level, **settings))


def test_everything():
    assert kept(of("mix", risk_level="ALL"), "mix") == [name for what, name in STEP if what != "leave"]
    assert kept(of("L0"), "L0") == [name for what, name in STEP if what == "enter"]


def test_risk_levels():
    everything = [name for what, name in STEP if what == "api"]
    assert kept(of("L1", risk_level="FOCUS"), "L1") == everything[1:]  # without arange, which only makes a tensor
    assert kept(of("L1", risk_level="CORE"), "L1") == [name for name in everything if "linear" in name]
    assert kept(of("L1", risk_level="CORE", compat=True), "L1") == []  # the reference's core lacks linear
    assert kept(of("mix", risk_level="CORE", compat=True), "mix") == [name for what, name in STEP if what == "enter"]


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    "given", [{"list": ["arange"]}, {"scope": ["Torch.arange.0.forward", "Torch.arange.0.forward"]}]
)
def test_a_list_or_a_scope_switches_the_risk_level_off(level: str, given: dict[str, Any]):
    assert kept(of(level, risk_level="CORE", **given), level) == ["Torch.arange.0.forward"]


def test_what_is_not_of_torch_itself_passes_every_risk_level():
    names = of("L1", risk_level="CORE")
    for name in (
        "Distributed.all_reduce.0.forward",
        "NPU.npu_rms_norm.0.forward",
        "mymod.to.0.forward",
        "my.mod.to.1.forward",
    ):
        assert names.api(name)


@pytest.mark.parametrize(
    ("level", "scope", "first", "last"),
    [
        ("L1", [LINEAR.format(1), ADD.format(1)], LINEAR.format(1), ADD.format(1)),
        ("L1", [ADD.format(2), "Functional.linear.2.backward"], ADD.format(2), "Functional.linear.2.backward"),
        ("L0", [A, A], A, INNER),
        ("L0", [INNER, B], INNER, B),
        ("mix", [A, A], A, LINEAR.format(1)),  # to the end of the module
        ("mix", [INNER, B], INNER, LINEAR.format(2)),
        ("mix", [ADD.format(0), B], ADD.format(0), LINEAR.format(2)),
        ("mix", [B, "Tensor.add.2.backward"], B, "Tensor.add.2.backward"),
    ],
)
def test_scope(level: str, scope: list[str], first: str, last: str):
    everything = kept(of(level, risk_level="ALL"), level)
    names = of(level, scope=scope)
    expected = everything[everything.index(first) : everything.index(last) + 1]
    assert kept(names, level) == expected
    names.end_step()
    assert kept(names, level) == expected  # names begin anew with every step
    assert names.unmatched() == ()


def test_a_scope_that_never_closes_goes_on():
    names = of("L1", scope=[LINEAR.format(2), "Functional.linear.9.forward"])
    assert kept(names, "L1")[0] == LINEAR.format(2)
    assert len(kept(names, "L1")) == 9
    assert names.unmatched() == (Unmatched("scope", "Functional.linear.9.forward", ("Functional.linear.2.backward",)),)


def test_list():
    assert kept(of("L1", list=["linear.1", "add"]), "L1") == [
        name for what, name in STEP if what == "api" and ("linear.1" in name or "add" in name)
    ]
    assert kept(of("L0", list=["inner"]), "L0") == [INNER]
    assert kept(of("L0", list=["Module.a"]), "L0") == [A, INNER]


def test_at_level_mix_a_listed_module_keeps_all_inside():
    assert kept(of("mix", list=["a.A.forward"]), "mix") == [A, LINEAR.format(0), INNER, ADD.format(0), LINEAR.format(1)]
    assert kept(of("mix", list=["inner", "arange"]), "mix") == ["Torch.arange.0.forward", INNER, ADD.format(0)]
    assert kept(of("mix", list=["B.backward"]), "mix") == ["Module.b.B.backward.0", "Functional.linear.2.backward"]


def test_scope_and_list_together():
    names = of("mix", scope=[INNER, B], list=["linear", "add.0"])
    assert kept(names, "mix") == [ADD.format(0), LINEAR.format(1), LINEAR.format(2)]


def test_a_module_that_an_exception_left_is_over_with_the_step():
    names = of("mix", list=["Module.a"])
    names.enter_module(A)
    assert names.api(ADD.format(0))
    names.end_step()
    assert not names.api(ADD.format(0))
    names.enter_module(A)
    names.enter_module(A)  # told twice, ended once
    names.leave_module(A)
    assert not names.api(ADD.format(0))
    names.leave_module(B)  # never told


def test_tensors():
    everything, listed, nothing = of("L1", task="tensor"), of("L1", tensor_list=["linear", "adn"]), of("L1")
    for what, name in STEP:
        if what == "api":
            assert everything.tensors(name)
            assert listed.tensors(name) == ("linear" in name)
            assert not nothing.tensors(name)
    assert listed.unmatched() == (Unmatched("tensor_list", "adn", ("add",)),)


@pytest.mark.parametrize(
    ("level", "given", "close"),
    [
        ("L1", {"scope": ["Functional.linaer.0.forward", LINEAR.format(0)]}, ["Functional.linear.2.backward"]),
        ("L1", {"scope": ["Functional.linear.7.forward", LINEAR.format(0)]}, ["Functional.linear.2.backward"]),
        ("L0", {"scope": ["Module.a.inner.Innr.forward.0", A]}, [INNER]),
        ("mix", {"list": ["Linear", "add"]}, ["linear"]),
        ("mix", {"list": ["a.iner", "add"]}, ["a.inner"]),
        ("mix", {"list": ["layers.77", "add"]}, []),
    ],
)
def test_names_that_nothing_has(level: str, given: dict[str, list[str]], close: list[str]):
    names = of(level, **given)
    kept(names, level)
    (key,) = given
    (found,) = names.unmatched()
    assert (found.key, found.entry, found.close[:1]) == (key, given[key][0], tuple(close))


def test_what_is_said_of_them():
    assert str(Unmatched("list", "linaer", ("linear",))) == "list: no record has the name linaer; did you mean linear?"
    assert str(Unmatched("scope", "a", ("b", "c"))) == "scope: no record has the name a; did you mean b or c?"
    assert str(Unmatched("list", "x", ())) == "list: no record has the name x"


def test_before_anything_ran_every_entry_is_unmatched():
    names = of("mix", scope=[A, B], list=["x"], tensor_list=["y"])
    assert [(one.key, one.entry) for one in names.unmatched()] == [
        ("scope", A),
        ("scope", B),
        ("list", "x"),
        ("tensor_list", "y"),
    ]


def test_the_reference_kept_the_same_under_its_default_risk_level():
    """dump.json has what FOCUS keeps, construct.json what ran at all."""
    folder = Path(__file__).parents[1] / "data" / "interop" / "pytorch" / "a_statistics_mix_2steps"
    for rank in sorted((folder / "dump" / "step0").iterdir()):
        data = json.loads((rank / "dump.json").read_text())["data"]
        ran = json.loads((rank / "construct.json").read_text())
        names = of("mix")
        apis = [name for name in ran if name.endswith("forward") and not name.startswith("Module")]
        assert len(apis) > 50
        assert [name for name in apis if names.api(name)] == [name for name in apis if name in data]
