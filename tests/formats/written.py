"""Dump files as they might be written: JSON with every freedom that a writer has, and some that none should take."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

INTEROP = Path(__file__).parent.parent / "data" / "interop"
GLOO = Path(__file__).parent.parent / "data" / "gloo"


@dataclass(frozen=True)
class Token:
    """Written as it stands: ``NaN``, ``1e400``, ``NaN5``."""

    text: str


@dataclass(frozen=True)
class Pairs:
    """An object whose keys may repeat."""

    pairs: list[tuple[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """How a file is written. ``indent`` None: on one line."""

    indent: int | None = 1
    comma: str = ","
    colon: str = ": "
    ascii_only: bool = True
    newline: str = "\n"
    bom: bool = False

    def write(self, item: object) -> bytes:
        text = self._text(item, 0)
        return (b"\xef\xbb\xbf" if self.bom else b"") + text.encode("utf-8", "surrogatepass")

    def _text(self, item: object, depth: int) -> str:
        if isinstance(item, Token):
            return item.text
        if isinstance(item, dict):
            item = Pairs(list(item.items()))
        if isinstance(item, Pairs):
            parts = [self._string(k) + self.colon + self._text(v, depth + 1) for k, v in item.pairs]
            return self._wrap("{", parts, "}", depth)
        if isinstance(item, (list, tuple)):
            return self._wrap("[", [self._text(v, depth + 1) for v in item], "]", depth)
        if isinstance(item, str):
            return self._string(item)
        return json.dumps(item)

    def _string(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=self.ascii_only)

    def _wrap(self, opening: str, parts: list[str], closing: str, depth: int) -> str:
        if not parts:
            return opening + closing
        if self.indent is None:
            return opening + (self.comma + " ").join(parts) + closing
        inner = self.newline + " " * (self.indent * (depth + 1))
        outer = self.newline + " " * (self.indent * depth)
        return opening + inner + (self.comma + inner).join(parts) + outer + closing


def tensor(maximum: object = 1.5, minimum: object = -2.0, **more: object) -> dict[str, object]:
    """A tensor's record, as msProbe writes it."""
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [4, 8],
        "Max": maximum,
        "Min": minimum,
        "Mean": 0.01,
        "Norm": 7.3,
        "requires_grad": True,
        **more,
    }


def dump(data: object, **header: object) -> dict[str, object]:
    return {
        "task": "statistics",
        "level": "mix",
        "framework": "pytorch",
        "dump_data_dir": None,
        **header,
        "data": data,
    }


# --- what hypothesis draws ---------------------------------------------------------------------------------------

_SPECIAL = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1E+999", "-0.0", "1e-400", "123456789012345678901234567890"),
    *("3.4028234663852886e+38", "1e308", "1e0400", "1e309", "null", "true", "false", "0", "9" * 400, "9" * 250 + "e99"),
    *("-" + "9" * 5000, "0." + "0" * 400 + "1", "1" * 320 + ".5"),
)
_WORDS = (
    *(
        "nan",
        "NaN",
        "-nan",
        "inf",
        "-inf",
        "Infinity",
        "-INFINITY",
        "inf\t",
        "-inf\t",
        " nan ",
        "1e400",
        "1.5",
        "",
        "info",
    ),
    *(
        '": NaN,',
        '"Max": NaN',
        '\\"Max": NaN,',
        '{"Max": -Infinity}',
        "NaN",
        "nanometre",
        "torch.isinf",
        "e100",
        "12e34567",
    ),
    *(
        "\\",
        '"',
        "a\\",
        "\\u006ean",
        "x: NaN, y",
        "[{",
        "}]",
        ', "a.0.forward": {',
        "é",
        "名字",
        "\U0001f600",
        "\ud800",
    ),
    *("\x00", "\n", "9" * 400, "1e４００", "1_0e4_00", "İNF", "１e400", ".forward", "\u2028"),
)
special = st.sampled_from(_SPECIAL).map(Token)
words = st.sampled_from(_WORDS) | st.text(max_size=6)
figures = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70),
    special,
    special,
    words,
    st.sampled_from([True, False, None]),
)
_STATISTICS = ("Max", "Min", "Mean", "Norm")
keys = st.sampled_from(
    (
        "Max",
        "Min",
        "Mean",
        "Norm",
        "value",
        "type",
        "output",
        "a",
        "NaN",
        "info",
        'q"Max',
        "\\Max",
        "mAx",
        "",
        "键",
        "é",
    )
)
shapes = st.lists(st.integers(0, 5) | st.sampled_from([10**30, -1, None]), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> object:
    pairs: list[tuple[str, object]] = [("type", "torch.Tensor"), ("dtype", "torch.float32"), ("shape", draw(shapes))]
    pairs += [(name, draw(figures)) for name in _STATISTICS]
    if draw(st.integers(0, 9)) == 0:
        pairs.append((draw(keys), draw(leaves)))
    if draw(st.integers(0, 9)) == 0:
        pairs = draw(st.permutations(pairs))
    if draw(st.integers(0, 9)) == 0:
        del pairs[draw(st.integers(0, len(pairs) - 1))]
    return Pairs(pairs)


scalars = st.builds(lambda kind, value: Pairs([("type", kind), ("value", value)]), words, figures)
leaves = st.deferred(lambda: tensors() | tensors() | scalars | figures | nested)
nested = st.deferred(
    lambda: st.one_of(
        st.lists(leaves, max_size=3),
        st.builds(Pairs, st.lists(st.tuples(keys, leaves), max_size=3)),
        st.builds(
            lambda t, rest: Pairs([("class_type", "P2POp"), ("tensor", t), *rest]),
            leaves,
            st.lists(st.tuples(keys, leaves), max_size=1),
        ),
    )
)
sections = st.sampled_from(
    ("input_args", "input_kwargs", "output", "parameters", "input", "weight", "info", "NaN", "é")
)
plain_members = st.builds(
    lambda i, k, o: Pairs([("input_args", i), ("input_kwargs", Pairs(k)), ("output", o)]),
    st.lists(leaves, max_size=2),
    st.lists(st.tuples(keys, leaves), max_size=2),
    st.lists(leaves, max_size=2),
)
odd_members = st.builds(Pairs, st.lists(st.tuples(sections, leaves), max_size=4))
members = plain_members | plain_members | odd_members | leaves
_NAMES = (
    *("Torch.log.0.forward", "Functional.linear.12.backward", "Tensor.__add__.12.backward", "Torch.isinf.0.forward"),
    *("Torch.nan_to_num.1.forward", "Module.layers.0.mlp.MLP.forward.0", "Module.a.Linear.parameters_grad.0"),
    *(
        "Cell.net.Dense.backward.3",
        "Primitive.matmul.MatMul.0.forward",
        "x.0.debug",
        "weight_grad.3.debug",
        "NaN.0.forward",
    ),
    *(
        "Module.Infinity.X.forward.1",
        "odd",
        "",
        'a"b.0.forward',
        "模块.层.0.forward",
        "a\\.0.forward",
        "é.0.forward",
        "x.forward",
    ),
    *("Torch.\ud800.0.forward", "Torch.log." + "9" * 5000 + ".forward", "Module.x.Y.forward.0_rank1", "x.9.forward\t"),
)
names = st.sampled_from(_NAMES) | st.builds(lambda t, i: f"{t}.{i}.forward", words, st.integers(0, 999))
layouts = st.one_of(
    st.just(Layout()),
    st.builds(
        Layout,
        st.sampled_from([None, 0, 1, 1, 1, 2, 4]),
        st.sampled_from([",", ",", ",", " ,", ", "]),
        st.sampled_from([": ", ": ", ":", " : ", ":  ", ":\t"]),
        st.booleans(),
        st.sampled_from(["\n", "\n", "\r\n"]),
        st.booleans(),
    ),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """A whole, undamaged file."""
    data = Pairs(draw(st.lists(st.tuples(names, members), max_size=6)))
    top: list[tuple[str, object]] = [("task", "statistics"), ("level", draw(st.sampled_from(["L0", "mix"])))]
    top.append(("data", data))
    if draw(st.integers(0, 7)) == 0:
        top.append((draw(keys), draw(leaves)))
    return draw(layouts).write(Pairs(top))


@st.composite
def regular(draw: st.DrawFn) -> bytes:
    """A file as a collector writes it, but for its figures: what the byte scanner should never have to give up on."""
    data: dict[str, object] = {}
    ordinary = st.floats(-1e3, 1e3) | st.integers(-9, 9)
    figure = ordinary | ordinary | st.sampled_from(_SPECIAL[:14]).map(Token) | st.sampled_from(_WORDS[:13])
    one = st.builds(lambda *f: tensor(f[0], f[1], Mean=f[2], Norm=f[3]), figure, figure, figure, figure)
    slot = (
        one | one | st.none() | st.lists(one, max_size=2) | st.builds(lambda v: {"type": "float", "value": v}, figure)
    )
    for i in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["forward", "forward", "backward", "module", "gradient"]))
        if kind == "gradient":
            data[f"Module.a.Linear.parameters_grad.{i}"] = {
                k: [draw(one)] for k in draw(st.sampled_from([["weight"], ["weight", "bias"]]))
            }
        elif kind == "backward":
            data[f"Torch.isinf.{i}.backward"] = {"input": [draw(slot)], "output": [draw(slot)]}
        else:
            record: dict[str, object] = {"input_args": [draw(slot)], "input_kwargs": {}, "output": [draw(slot)]}
            if kind == "module":
                record["parameters"] = draw(st.dictionaries(st.sampled_from(["weight", "bias"]), one))
            data[f"Module.a.NaNny.forward.{i}" if kind == "module" else f"Torch.log.{i}.forward"] = record
    layout = Layout(draw(st.sampled_from([None, 0, 1, 1, 2])), colon=draw(st.sampled_from([": ", ": ", ":"])))
    return layout.write(dump(data))


_PIECES = (
    b"NaN",
    b"Infinity",
    b"NaN5",
    b"-NaN",
    b"-Infinity",
    b"}",
    b"{",
    b"]",
    b"[",
    b",",
    b'"',
    b"\\",
    b":",
    b"1e400",
    b"\xff",
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A file with up to three faults: cut short, bytes lost, changed or inserted, numbers replaced."""
    content = draw(contents())
    for _ in range(draw(st.integers(1, 3))):
        if not content:
            break
        at = draw(st.integers(0, len(content) - 1))
        kind = draw(st.sampled_from(["cut", "delete", "insert", "flip", "replace"]))
        if kind == "cut":
            content = content[:at]
        elif kind == "delete":
            content = content[:at] + content[at + draw(st.integers(1, 12)) :]
        elif kind == "insert":
            content = content[:at] + draw(st.sampled_from(_PIECES)) + content[at:]
        elif kind == "flip":
            content = content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
        else:
            content = _replace_number(content, at, draw(st.sampled_from(_PIECES)))
    return content


def _replace_number(content: bytes, at: int, piece: bytes) -> bytes:
    digits = b"0123456789.+-e"
    low = at
    while low < len(content) and content[low] not in digits:
        low += 1
    high = low
    while high < len(content) and content[high] in digits:
        high += 1
    return content[:low] + piece + content[high:]
