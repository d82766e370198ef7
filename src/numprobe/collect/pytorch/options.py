"""What each key of a configuration may hold, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from numprobe.collect.pytorch import checks
from numprobe.collect.pytorch.apis import Everything, Mask, known_names
from numprobe.collect.pytorch.checks import Given
from numprobe.collect.pytorch.config_file import read_config
from numprobe.record.errors import NumprobeError
from numprobe.record.names import FORWARD, parse_name

Task = Literal["statistics", "tensor", "structure", "acc_check", "nan_check", "exception_dump"]
Level = Literal["L0", "L1", "mix", "debug"]
SummaryMode = Literal["statistics", "md5", "xor", "hash"]
RiskLevel = Literal["ALL", "CORE", "FOCUS"]
Precision = Literal["low", "high"]
FileFormat = Literal["json", "parquet"]
TensorFormat = Literal["pt", "safetensors"]

DIRECTIONS = frozenset(("forward", "backward"))
ROLES = frozenset(("input", "output"))


@dataclass(frozen=True)
class SliceRule:
    """One item of ``slice``: keep ``[begin:end]`` of dimension ``dim``, if that has ``size`` elements or ``size`` is None."""

    dim: int = 0
    size: int | None = None
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True)
class LoadSettings:
    """Section ``load``: give the calls ``modules`` of this run the inputs that the tensor dump ``path`` holds (LOD-1).

    ``steps`` and ``ranks`` say when, empty means always; without ``dump_after_load`` nothing is recorded.
    """

    path: Path
    modules: tuple[str, ...]
    steps: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    dump_after_load: bool = False


def parse_task(given: Given) -> str:
    if given.value == "overflow_check":
        raise NumprobeError(
            "E-CFG-006",
            "{key}: there is no overflow_check any more",
            where=given.where,
            do="write statistics, and run numprobe nan on the dump",
            key=given.key,
        )
    if given.value == "diff_check":
        raise NumprobeError(
            "E-CFG-006",
            "{key}: diff_check is a kind of tensor dump",
            where=given.where,
            do="write tensor, with bench_path and summary_mode md5",
            key=given.key,
        )
    return checks.choice(*get_args(Task))(given)


def _level(given: Given) -> str:
    if given.value == "L2":
        raise NumprobeError(
            "E-CFG-009",
            "level L2 dumps the kernels of an NPU, which only its own tools can",
            where=given.where,
            do="write mix, the level with the most detail here",
        )
    return checks.choice(*get_args(Level))(given)


def _data_mode(given: Given) -> frozenset[str]:
    """``all`` alone, or some of the four; of a pair that is not mentioned both count."""
    modes = frozenset(
        checks.choice("all", *sorted(DIRECTIONS | ROLES))(given.at("", one)) for one in checks.texts(given)
    )
    if "all" in modes and len(modes) > 1:
        raise given.wrong('["all"] | ["forward", "input"]')
    chosen = modes - {"all"}
    return (chosen & DIRECTIONS or DIRECTIONS) | (chosen & ROLES or ROLES)


def _slice(given: Given) -> tuple[SliceRule, ...]:
    if not isinstance(given.value, (list, tuple)):
        raise given.wrong('[{"dim": 0, "begin": 0, "end": 2}]')
    return tuple(_slice_rule(given.at(f"[{i}]", one)) for i, one in enumerate(given.value))


def _slice_rule(given: Given) -> SliceRule:
    if not isinstance(given.value, dict):
        raise given.wrong('{"dim": 0, "begin": 0, "end": 2}')
    found = checks.members(given, ("dim", "size", "begin", "end"), (), "", ())
    least = {"dim": 0, "size": 0}
    return SliceRule(**{key: checks.integer(one, least.get(key)) for key, one in found.items()})


def _diff_nums(given: Given) -> int:
    number = checks.integer(given, -1)
    if number == 0:
        raise given.wrong("-1, 1, 2, ...")
    return number


def _apis(given: Given) -> tuple[str, ...]:
    names = checks.texts(given)
    for name in names:
        if name not in known_names():
            near = checks.nearest(name, known_names())
            raise NumprobeError(
                "E-CFG-008",
                "{key}: {name} is no API that is recorded",
                where=given.where,
                do="did you mean {near}?" if near else "write names such as conv2d or linalg.inv",
                key=given.key,
                name=name,
                near=near,
            )
    return names


def _load(given: Given) -> LoadSettings:
    if not isinstance(given.value, dict):
        raise given.wrong('{"path": "./dump", "modules": ["Module.layers.0.mlp.MLP.forward.0"]}')
    found = checks.members(given, ("path", "modules", "step", "rank", "dump_after_load"), (), "", ())
    for key in ("path", "modules"):
        if key not in found or not found[key].value:
            raise NumprobeError(
                "E-CFG-010",
                "{key} is missing",
                where=given.where,
                do="write the folder of a tensor dump (path) and names of module calls (modules)",
                key=f"{given.key}.{key}",
            )
    modules = checks.texts(found["modules"])
    for name in modules:
        op = parse_name(name)
        if op.kind != "module" or op.direction != FORWARD or op.prefix != "Module" or modules.count(name) > 1:
            raise NumprobeError(
                "E-CFG-008",
                "{key}: {name} is no forward call of a module, or stands there twice",
                where=given.where,
                do="write names such as Module.layers.0.mlp.MLP.forward.0, each once",
                key=found["modules"].key,
                name=name,
            )
    return LoadSettings(
        checks.folder(found["path"]),
        modules,
        checks.numbers(found["step"]) if "step" in found else frozenset(),
        checks.numbers(found["rank"]) if "rank" in found else frozenset(),
        checks.flag(found["dump_after_load"]) if "dump_after_load" in found else False,
    )


def _object(given: Given, example: str) -> dict[str, Given]:
    """The members of an object, or of the file whose path stands there: JSON or YAML, beside the configuration or as it is."""
    value, where = given.value, given.where
    if isinstance(value, (str, Path)):
        beside = Path(given.where).parent / value
        file = beside if given.where and beside.exists() else Path(value)
        value, where = read_config(file), str(file)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise given.wrong(example)
    holder = replace(given, where=where)
    return {key: holder.at(f".{key}", member) for key, member in value.items()}


def _wrap_apis(given: Given) -> dict[str, tuple[str, ...]]:
    """``{"module.path": ["function", "Class.method"]}``; msProbe's custom_wrap_ops.yaml has this form."""
    example = '{"my_package.ops": ["fused_norm"]}'
    found = {path: checks.texts(names) for path, names in _object(given, example).items()}
    if not all(
        part.isidentifier() for path, names in found.items() for name in (path, *names) for part in name.split(".")
    ):
        raise given.wrong(example)
    return found


def _ignore_arguments(given: Given) -> dict[str, Mask]:
    """``{"Prefix": {"api": {"input": [0, "name"] | "all", "output": [0] | "all"}}}``, as in builtin_ignore_ops.yaml."""
    example = '{"Distributed": {"recv": {"input": [0], "output": "all"}}}'
    masks: dict[str, Mask] = {}
    for prefix, apis in _object(given, example).items():
        for api, mask in _object(apis, example).items():
            sides = _object(mask, example)
            if not sides.keys() <= {"input", "output"}:
                raise mask.wrong(example)
            places = {side: _places(part, example) for side, part in sides.items()}
            masks[f"{prefix}.{api}"] = Mask(places.get("input", frozenset()), places.get("output", frozenset()))
    return masks


def _places(given: Given, example: str) -> Container[int | str]:
    if given.value == "all":
        return Everything()
    if not isinstance(given.value, list) or not all(type(one) in (int, str) for one in given.value):
        raise given.wrong(example)
    return frozenset(given.value)


COMMON: dict[str, Callable[[Given], Any]] = {
    "task": parse_task,
    "level": _level,
    "dump_path": checks.path,
    "step": checks.numbers,
    "rank": checks.numbers,
    "async_dump": checks.flag,
    "precision": checks.choice(*get_args(Precision)),
    "risk_level": checks.choice(*get_args(RiskLevel)),
    "extra_info": checks.flag,
    "custom_op_namespaces": checks.texts,
    "wrap_apis": _wrap_apis,
    "ignore_arguments": _ignore_arguments,
    "dump_enable": checks.flag,
    "load": _load,
    "format": checks.choice(*get_args(FileFormat)),
    "tensor_format": checks.choice(*get_args(TensorFormat)),
    "compat": checks.flag,
    "overwrite": checks.flag,
}
OPTIONS: dict[str, Callable[[Given], Any]] = {
    "scope": checks.texts,
    "list": checks.texts,
    "tensor_list": checks.texts,
    "data_mode": _data_mode,
    "summary_mode": checks.choice(*get_args(SummaryMode)),
    "slice": _slice,
    "request_id": checks.text,
    "bench_path": checks.folder,
    "diff_nums": _diff_nums,
    "white_list": _apis,
    "black_list": _apis,
    "error_data_path": checks.folder,
    "real_data": checks.flag,
}
