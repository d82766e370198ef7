"""What to record: ``config.json`` as msProbe has it (CFG-1 to CFG-10), checked when it is read, and what numprobe adds.

Old configurations work: what msProbe ignores silently is a warning here, with the name that was probably meant; a value that
cannot work is an error that names file, key, value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from numprobe.collect.pytorch import checks
from numprobe.collect.pytorch.apis import Mask
from numprobe.collect.pytorch.checks import Given
from numprobe.collect.pytorch.config_file import read_config
from numprobe.collect.pytorch.options import (
    COMMON,
    DIRECTIONS,
    OPTIONS,
    ROLES,
    FileFormat,
    Level,
    LoadSettings,
    Precision,
    RiskLevel,
    SliceRule,
    SummaryMode,
    Task,
    TensorFormat,
    parse_task,
)
from numprobe.record.errors import NumprobeError
from numprobe.record.names import parse_name

__all__ = ["LoadSettings", "Settings", "SliceRule", "load_settings", "slices_of"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that a configuration says. Made by :func:`load_settings`, which checks it.

    Attributes:
        task: what is recorded: figures, tensors too, the structure alone, what a pre-check needs, counts of non-finite values,
            or figures that are kept only when the program ends in an exception.
        level: modules (L0), APIs (L1), both (mix), or only what ``save`` is given (debug).
        dump_path: folder of ``step{N}/rank{R}``.
        steps, ranks: those to record, empty for all; ask :meth:`wants_step` and :meth:`wants_rank`.
        scope: full names of the first and the last record, or empty.
        list: parts of names; a record is kept if it has one of them. Empty for all.
        tensor_list: parts of the names of records whose tensors are saved as well.
        data_mode: of forward and backward, input and output, those to record; always some of either pair.
        summary_mode: figures, CRC-32 (md5), XOR of the 64-bit words, or a 64-bit hash that minds the order.
        slice: parts of tensors to record instead of the whole; see :func:`slices_of`.
        request_id: the request of a batch whose rows are recorded (INF-2).
        async_dump: figures and tensors stay on the device until ``stop``.
        precision: ``high`` computes Mean and Norm in a wider format.
        risk_level: which APIs are worth a record at L1 and mix (CFG-6); not in force with ``scope`` or ``list``.
        extra_info: write stack.json and construct.json.
        custom_op_namespaces: namespaces of ``torch.ops`` whose operators are recorded.
        wrap_apis: further functions to record, by the path of their module, which is their prefix: ``{"pkg.ops": ("fused",)}``.
        ignore_arguments: arguments and outputs that hold nothing and are recorded as null, by ``{prefix}.{api}``.
        dump_enable: the switch for a running job; None where the configuration is not read again.
        load: module inputs to take from an older dump, or None.
        bench_path: dump with checksums to compare with; tensors are saved of calls alone that were given the same and gave
            something else, until ``diff_nums`` did (-1: to the end).
        white_list, black_list: names of APIs that the pre-check runs or leaves out; no others are recorded for it.
        error_data_path: folder where the pre-check saves what failed.
        real_data: the pre-check runs on the recorded inputs themselves, not on random ones of the same extremes.
        format: ``parquet`` writes the values as a table too, at the end of each step (needs ``numprobe[sql]``).
        tensor_format: one .pt a tensor, or safetensors files of many.
        compat: figures and gradients as the reference defines them, in its keys (refinement 27).
        overwrite: write into a dump folder that holds files already.
        config_path: the file that was read, or None.
        warnings: what was ignored, and what was probably meant; for the log and the summary.
    """

    task: Task = "statistics"
    level: Level = "L1"
    dump_path: Path = Path("./dump_path")
    steps: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    scope: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: frozenset[str] = DIRECTIONS | ROLES
    summary_mode: SummaryMode = "statistics"
    slice: tuple[SliceRule, ...] = ()
    request_id: str | None = None
    async_dump: bool = False
    precision: Precision = "low"
    risk_level: RiskLevel = "FOCUS"
    extra_info: bool = True
    custom_op_namespaces: tuple[str, ...] = ("_C_ascend",)
    wrap_apis: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignore_arguments: Mapping[str, Mask] = field(default_factory=dict)
    dump_enable: bool | None = None
    load: LoadSettings | None = None
    bench_path: Path | None = None
    diff_nums: int = 1
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path = Path("./")
    real_data: bool = False
    format: FileFormat = "json"
    tensor_format: TensorFormat = "pt"
    compat: bool = False
    overwrite: bool = False
    config_path: Path | None = None
    warnings: tuple[str, ...] = ()

    def wants_step(self, step: int) -> bool:
        return not self.steps or step in self.steps

    def wants_rank(self, rank: int | None) -> bool:
        """A process without a rank (None) is in no list of ranks."""
        return not self.ranks or rank in self.ranks

    @property
    def saves_tensors(self) -> bool:
        """Of all records, or of some."""
        return self.task == "tensor" or bool(self.tensor_list) or self.real_data

    @cached_property
    def last_step(self) -> int | None:
        """After this step nothing more is recorded; None if that never comes."""
        return max(self.steps, default=None)


def load_settings(config_path: str | Path | None = None, **overrides: Any) -> Settings:
    """The settings of a JSON or YAML file, or the defaults; ``overrides`` win over them.

    Args:
        config_path: .yaml and .yml files are read as YAML (needs ``numprobe[yaml]``), others as JSON.
        overrides: any key of the file by its name there (``step``, ``rank``), options of the task without its section; None
            means not given.

    Raises:
        NumprobeError: E-CFG-001 to 011, for what cannot work. What can be ignored is in ``warnings``.
    """
    warnings: list[str] = []
    file = None if config_path is None else Path(config_path)
    document = Given("", {} if file is None else read_config(file), str(file or ""), warnings)
    given = _arguments(overrides, warnings)
    common = checks.members(document, COMMON, _SECTIONS, "it belongs into the section of the task", OPTIONS)
    task = parse_task(given.get("task") or common.get("task") or Given("task", Settings.task))
    section = document.at(task, document.value.get(task) or {})
    if not isinstance(section.value, dict):
        raise section.wrong('{"list": []}')
    options = checks.members(section, OPTIONS, (), "it belongs to the top level", COMMON)
    found = {**common, **options, **given}
    values = {_FIELDS.get(key, key): parse(found[key]) for key, parse in _PARSERS.items() if key in found}
    if file is not None and "dump_path" not in values:
        values["dump_path"] = _path_of_load(values.get("load"), file)
    settings = Settings(**values, config_path=file)
    settings = _fit(settings, document)
    _check_scope(settings, found)
    _check_pairs(settings, document.where)
    return replace(settings, warnings=tuple(warnings))


def slices_of(rules: Iterable[SliceRule], shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """The index that the rules make of a tensor of this shape; None if none applies. Of two for one dimension the last wins."""
    chosen: dict[int, slice] = {}
    for rule in rules:
        if rule.dim < len(shape) and rule.size in (None, shape[rule.dim]):
            chosen[rule.dim] = slice(rule.begin, rule.end)
    if not chosen:
        return None
    return tuple(chosen.get(dim, slice(None)) for dim in range(max(chosen) + 1))


def _arguments(overrides: Mapping[str, Any], warnings: list[str]) -> dict[str, Given]:
    for key in overrides:
        if key not in _PARSERS:
            near = checks.nearest(key, _PARSERS)
            raise NumprobeError(
                "E-CFG-004",
                "{key} is no setting",
                do="did you mean {near}? There are: {known}" if near else "there are: {known}",
                key=key,
                near=near,
                known=", ".join(_PARSERS),
            )
    return {key: Given(key, value, "", warnings) for key, value in overrides.items() if value is not None}


def _path_of_load(load: LoadSettings | None, file: Path) -> Path:
    """A run that only loads writes nothing, and so needs no folder of its own."""
    if load is not None and not load.dump_after_load:
        return load.path
    raise NumprobeError(
        "E-CFG-010",
        "{key} is missing",
        where=str(file),
        do="write the folder that the dump goes to",
        key="dump_path",
    )


def _fit(settings: Settings, document: Given) -> Settings:
    """The settings without what task and level make nothing of, which is said unless it is the default anyway."""
    if settings.task == "structure" and settings.level not in ("L0", "mix"):
        document.warn(f"task structure needs modules: level mix is taken instead of {settings.level}")
        settings = replace(settings, level="mix")
    useless = OPTIONS.keys() - _OPTIONS_OF[settings.task]
    if settings.level == "debug":
        useless |= {"scope", "list", "tensor_list", "slice", "request_id", "data_mode"}
    defaults = Settings()
    for key in sorted(useless):
        if getattr(settings, key) != getattr(defaults, key):
            document.warn(f"{key!r} has no effect with task {settings.task} at level {settings.level}")
            settings = replace(settings, **{key: getattr(defaults, key)})
    return settings


def _check_scope(settings: Settings, found: Mapping[str, Given]) -> None:
    """CFG-5: two full names, of modules at L0 and of APIs at L1."""
    if not settings.scope:
        return
    wanted = {"L0": ("module",), "L1": ("api",)}.get(settings.level, ("module", "api"))
    if len(settings.scope) != 2 or any(parse_name(name).kind not in wanted for name in settings.scope):
        raise NumprobeError(
            "E-CFG-008",
            "{key}: {value} are not two full names of records that level {level} has",
            where=found["scope"].where,
            do="write two such as Functional.linear.0.forward (L1, mix) or Module.layers.0.Block.forward.0 (L0, mix)",
            key=found["scope"].key,
            value=found["scope"].shown,
            level=settings.level,
        )


def _check_pairs(settings: Settings, where: str) -> None:
    """What does not go together."""
    if settings.level == "debug" and settings.task not in ("statistics", "tensor"):
        raise NumprobeError(
            "E-CFG-009",
            "level debug does not go with task {task}",
            where=where,
            do="write task statistics or tensor",
            task=settings.task,
        )
    if settings.task == "acc_check" and settings.level == "L0":
        raise NumprobeError(
            "E-CFG-009",
            "task acc_check needs APIs, and level L0 records none",
            where=where,
            do="write level L1 or mix",
        )
    if settings.async_dump and settings.summary_mode == "md5":
        raise NumprobeError(
            "E-CFG-009",
            "async_dump leaves tensors on the device, and summary_mode md5 is computed on the host",
            where=where,
            do="write summary_mode hash or xor, or async_dump false",
        )
    if settings.async_dump and settings.task == "tensor" and not settings.list and settings.level != "debug":
        raise NumprobeError(
            "E-CFG-009",
            "async_dump with task tensor holds every tensor of a step in memory",
            where=where,
            do="name those to save in list, or write async_dump false",
        )
    if settings.bench_path is not None and settings.summary_mode == "statistics":
        raise NumprobeError(
            "E-CFG-009",
            "bench_path compares checksums, and summary_mode is {mode}",
            where=where,
            do="write the summary_mode of that dump: md5, hash or xor",
            mode=settings.summary_mode,
        )
    if settings.bench_path is not None and settings.async_dump:
        raise NumprobeError(
            "E-CFG-009",
            "bench_path compares every call as it ends, and async_dump fetches nothing before stop",
            where=where,
            do="write async_dump false",
        )


_PARSERS = {**COMMON, **OPTIONS}
_FIELDS = {"step": "steps", "rank": "ranks"}
_SECTIONS = (*get_args(Task), "diff_check", "overflow_check", "free_benchmark")  # of other tasks: not looked into
_FILTERS = frozenset(("scope", "list", "data_mode"))
_OPTIONS_OF: dict[str, frozenset[str]] = {
    "statistics": _FILTERS | {"tensor_list", "summary_mode", "slice", "request_id"},
    "tensor": _FILTERS | {"summary_mode", "slice", "request_id", "bench_path", "diff_nums"},
    "structure": frozenset(),
    "acc_check": _FILTERS | {"white_list", "black_list", "error_data_path", "real_data"},
    "nan_check": _FILTERS | {"tensor_list"},
    "exception_dump": _FILTERS | {"tensor_list", "summary_mode", "slice", "request_id"},
}
