"""The mapping files of msProbe's ``compare``, in every form that it takes."""

from __future__ import annotations

from pathlib import Path

from numprobe.align.items import INPUT, OUTPUT, PARAMETERS
from numprobe.align.layers import Children
from numprobe.align.mapping import NO_PARTNER, ApiRule, Mapping, Pairs
from numprobe.align.yaml_file import Node, read_yaml
from numprobe.record.names import PARAMETERS_GRAD

DEFAULT = "default"  # instead of a file: what is built in, no more
_SUFFIXES = (".pt", ".npy")

# examples of what is expected, for errors
_ITEMS = "Mint.add.0.forward.input.0: Torch.add.0.forward.input.1"
_CELLS = "net.fc1.Dense: model.fc1.Linear"
_LAYERS = "Net: {attention: self_attn}"
_APIS = "- {ms_api: Mint.add, pt_api: Torch.add, ms_args: [0, 1], pt_args: [1, 0]}"
_NAME = "Mint.add"
_SLOTS = "[0, 1]"
# the key without ms_ and pt_ -> what it is about; msProbe itself takes one spelling, its documents have the other
_KEYS = {
    "arg": INPUT,
    "args": INPUT,
    "output": OUTPUT,
    "outputs": OUTPUT,
    "parameter": PARAMETERS,
    "parameters": PARAMETERS,
    "parameter_grad": PARAMETERS_GRAD,
    "parameters_grad": PARAMETERS_GRAD,
}


def read_mapping(
    data: str | None = None, cell: str | None = None, api: str | None = None, layer: str | None = None
) -> Mapping:
    """The mapping that these files (or :data:`DEFAULT`) say together.

    Raises:
        NumprobeError: E-CMP-010 to E-CMP-013, with file, line and what was expected there.
    """
    return Mapping(
        read_items(read_yaml(Path(data))) if data else {},
        read_cells(read_yaml(Path(cell))) if cell and cell != DEFAULT else (),
        read_apis(read_yaml(Path(api))) if api and api != DEFAULT else (),
        read_layers(read_yaml(Path(layer))) if layer and layer != DEFAULT else {} if layer else None,
    )


def read_items(node: Node) -> dict[str, str]:
    """``--data-mapping``: leaf -> leaf, or record -> record."""
    return {_plain(one): _plain(other.text(_ITEMS)) for one, other in node.items(_ITEMS)}


def _plain(name: str) -> str:
    """Without the suffix of a file."""
    return next((name[: -len(s)] for s in _SUFFIXES if name.endswith(s)), name) if name != NO_PARTNER else name


def read_cells(node: Node) -> Pairs:
    """``--cell-mapping``: ``path.Class``, or a part of it, on both sides."""
    return tuple((old, new.text(_CELLS)) for old, new in node.items(_CELLS))


def read_layers(node: Node) -> dict[str, Children]:
    """``--layer-mapping``: class -> its children. What stands in brackets behind a name does not count."""
    return {
        kind: tuple((child, _before_bracket(new.text(_LAYERS))) for child, new in of.items(_LAYERS))
        for kind, of in node.items(_LAYERS)
        if not of.is_empty
    }


def _before_bracket(name: str) -> str:
    return name.partition("(")[0].strip()


def read_apis(node: Node) -> tuple[ApiRule, ...]:
    """``--api-mapping``: one API, or a list of them."""
    return tuple(map(_api, node.elements(_APIS) if node.is_list else [node]))


def _api(node: Node) -> ApiRule:
    names: dict[str, tuple[str, str]] = {}
    lists: dict[tuple[str, str], list[str]] = {}
    for key, value in node.items(_APIS):
        side, _, about = key.partition("_")
        if side in ("ms", "pt") and about == "api":
            prefix, _, name = value.text(_NAME).partition(".")
            names[side] = (prefix, name) if prefix and name else value.fail(_NAME)
        elif side in ("ms", "pt") and about in _KEYS:
            lists[side, _KEYS[about]] = [] if value.is_empty else [one.text(_SLOTS) for one in value.elements(_SLOTS)]
        else:
            value.fail(_APIS, found=key)
    if len(names) < 2:
        node.fail(_APIS)
    slots: dict[str, Pairs] = {}
    for about in dict.fromkeys(about for _, about in lists):
        one, other = lists.get(("ms", about), []), lists.get(("pt", about), [])
        if len(one) != len(other):
            node.fail(_APIS, found=f"{len(one)} of ms_{about}, {len(other)} of pt_{about}")
        slots[about] = tuple(zip(one, other, strict=True))
    return ApiRule(names["ms"], names["pt"], slots)
