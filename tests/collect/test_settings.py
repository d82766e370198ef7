"""The configuration: msProbe's own files, every key, every slip and every error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numprobe.collect.pytorch.settings import LoadSettings, Settings, SliceRule, load_settings, slices_of
from numprobe.record.errors import NumprobeError

INTEROP = Path(__file__).parents[1] / "data" / "interop" / "pytorch"
CONFIGS = sorted(INTEROP.glob("*/config.json"))


def written(folder: Path, document: Any, name: str = "config.json") -> Path:
    file = folder / name
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return file


def error_of(file: Path | None = None, **overrides: Any) -> NumprobeError:
    with pytest.raises(NumprobeError) as caught:
        load_settings(file, **overrides)
    return caught.value


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", CONFIGS, ids=[file.parent.name for file in CONFIGS])
def test_configurations_of_the_reference(file: Path):
    document = json.loads(file.read_text())
    settings = load_settings(file)
    assert (settings.task, settings.level) == (document["task"], document["level"])
    assert settings.dump_path == Path("./dump")
    assert settings.config_path == file
    assert settings.warnings == ()
    assert settings.data_mode == {"forward", "backward", "input", "output"}
    options = document.get(document["task"], {})
    assert settings.summary_mode == options.get("summary_mode", "statistics")
    assert settings.request_id == options.get("request_id")
    assert settings.tensor_list == tuple(options.get("tensor_list", ()))
    assert settings.risk_level == document.get("risk_level", "FOCUS")


def test_defaults_without_a_file():
    assert load_settings() == Settings()
    assert (Settings().task, Settings().level, Settings().risk_level) == ("statistics", "L1", "FOCUS")
    assert Settings().custom_op_namespaces == ("_C_ascend",)


def test_every_key_of_the_file(tmp_path: Path):
    (tmp_path / "older").mkdir()
    document = {
        "task": "tensor",
        "level": "mix",
        "dump_path": "/数据/my dump",
        "rank": [0, "2-3"],
        "step": ["7", 1],
        "async_dump": True,
        "precision": "high",
        "risk_level": "ALL",
        "extra_info": False,
        "custom_op_namespaces": ["mine"],
        "dump_enable": False,
        "format": "parquet",
        "tensor_format": "safetensors",
        "compat": True,
        "overwrite": True,
        "load": {
            "path": str(tmp_path / "older"),
            "modules": ["Module.layers.0.mlp.MLP.forward.0"],
            "step": [1],
            "rank": ["0-1"],
            "dump_after_load": True,
        },
        "tensor": {
            "scope": ["Module.a.A.forward.0", "Functional.linear.3.backward"],
            "list": ["linear"],
            "data_mode": ["forward", "output"],
            "summary_mode": "hash",
            "slice": [{"dim": 1, "size": 5, "end": 3}, {"begin": -2}],
            "request_id": "req-b",
            "diff_nums": -1,
        },
        "statistics": {"list": ["not looked at"], "nonsense": 1},
    }
    file = written(tmp_path, document)
    assert load_settings(file) == Settings(
        task="tensor",
        level="mix",
        dump_path=Path("/数据/my dump"),
        ranks=frozenset({0, 2, 3}),
        steps=frozenset({1, 7}),
        async_dump=True,
        precision="high",
        risk_level="ALL",
        extra_info=False,
        custom_op_namespaces=("mine",),
        dump_enable=False,
        format="parquet",
        tensor_format="safetensors",
        compat=True,
        overwrite=True,
        load=LoadSettings(
            tmp_path / "older", ("Module.layers.0.mlp.MLP.forward.0",), frozenset({1}), frozenset({0, 1}), True
        ),
        scope=("Module.a.A.forward.0", "Functional.linear.3.backward"),
        list=("linear",),
        data_mode=frozenset({"forward", "output"}),
        summary_mode="hash",
        slice=(SliceRule(1, 5, 0, 3), SliceRule(begin=-2)),
        request_id="req-b",
        diff_nums=-1,
        config_path=file,
    )


def test_arguments_win_and_none_is_not_given(tmp_path: Path):
    file = written(
        tmp_path, {"task": "statistics", "dump_path": "a", "level": "L0", "step": [1], "tensor": {"list": ["x"]}}
    )
    settings = load_settings(file, task="tensor", dump_path=tmp_path, level=None, step=[4], summary_mode="md5")
    assert (settings.task, settings.dump_path, settings.level, settings.steps) == ("tensor", tmp_path, "L0", {4})
    assert (settings.list, settings.summary_mode) == (("x",), "md5")  # of the section of the task that won


def test_null_means_absent(tmp_path: Path):
    document = {"task": "statistics", "dump_path": "a", "risk_level": None, "dump_enable": None, "statistics": None}
    settings = load_settings(written(tmp_path, document))
    assert (settings.risk_level, settings.dump_enable, settings.warnings) == ("FOCUS", None, ())


def test_yaml(tmp_path: Path):
    pytest.importorskip("yaml")
    text = "task: tensor\ndump_path: ./dump\nstep: 3-5\nrank: [0, '2-3']\ntensor:\n  list: [linear]\n  slcie: []\n"
    settings = load_settings(written(tmp_path, text, "config.yaml"))
    assert (settings.task, settings.steps, settings.ranks, settings.list) == (
        "tensor",
        {3, 4, 5},
        {0, 2, 3},
        ("linear",),
    )
    assert settings.warnings == (
        f"{tmp_path}/config.yaml: unknown key 'tensor.slcie' is ignored; did you mean 'slice'?",
    )


def test_yaml_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    error = error_of(written(tmp_path, "task: tensor", "config.yml"))
    assert error.code == "E-CFG-003"
    assert "numprobe[yaml]" in error.lines()[-1][1]


@pytest.mark.parametrize(
    ("text", "name", "code", "what"),
    [
        (None, "config.json", "E-CFG-001", "the configuration cannot be read: No such file or directory"),
        (
            "",
            "config.json",
            "E-CFG-002",
            "the configuration cannot be understood: Expecting value: line 1 column 1 (char 0)",
        ),
        ('{"task": "tensor",}', "config.json", "E-CFG-002", "line 1 column 1"),
        ("[" * 100_000, "config.json", "E-CFG-002", "the configuration cannot be understood"),
        ("[1]", "config.json", "E-CFG-002", "the configuration is no object of keys and values"),
        ("a: [1", "config.yaml", "E-CFG-002", "the configuration cannot be understood: while parsing"),
        ("!!python/object/apply:os.getcwd []", "config.yaml", "E-CFG-002", "could not determine a constructor"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str | None, name: str, code: str, what: str):
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    file = tmp_path / name if text is None else written(tmp_path, text, name)
    error = error_of(file)
    assert (error.code, error.where) == (code, str(file))
    assert what in error.what
    assert "\n" not in error.what


def test_a_file_in_another_encoding(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_bytes(b'{"dump_path": "\xff"}')
    assert error_of(file).code == "E-CFG-001"
    file.write_text('{"dump_path": "d"}', encoding="utf-8-sig")  # as editors on Windows write it
    assert load_settings(file).dump_path == Path("d")


# --- slips -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "warning"),
    [
        ({"dump_pth": "a"}, "unknown key 'dump_pth' is ignored; did you mean 'dump_path'?"),
        ({"zzz": 1}, "unknown key 'zzz' is ignored"),
        ({"summary_mode": "md5"}, "'summary_mode' is ignored: it belongs into the section of the task"),
        ({"statistics": {"level": "L0"}}, "'statistics.level' is ignored: it belongs to the top level"),
        (
            {"statistics": {"tensorlist": []}},
            "unknown key 'statistics.tensorlist' is ignored; did you mean 'tensor_list'?",
        ),
        (
            {"statistics": {"slice": [{"dims": 1}]}},
            "unknown key 'statistics.slice[0].dims' is ignored; did you mean 'dim'?",
        ),
        ({"statistics": {"bench_path": "/"}}, "'bench_path' has no effect with task statistics at level L1"),
        (
            {"level": "debug", "statistics": {"tensor_list": ["a"]}},
            "'tensor_list' has no effect with task statistics at level debug",
        ),
        (
            {"task": "structure", "level": "L1"},
            "task structure needs modules: level mix is taken instead of L1",
        ),
    ],
)
def test_what_is_ignored_is_said(tmp_path: Path, document: dict[str, Any], warning: str):
    file = written(tmp_path, {"dump_path": "d", **document})
    assert load_settings(file).warnings == (f"{file}: {warning}",)


def test_what_is_ignored_has_no_effect(tmp_path: Path):
    settings = load_settings(
        written(
            tmp_path, {"dump_path": "d", "level": "debug", "tensor": {"list": ["a"], "scope": ["b"], "slice": [{}]}}
        ),
        task="tensor",
    )
    assert (settings.list, settings.scope, settings.slice, len(settings.warnings)) == ((), (), (), 3)
    assert load_settings(task="structure", level="L0").level == "L0"


def test_options_of_the_default_value_are_no_slip(tmp_path: Path):
    document = {"dump_path": "d", "task": "structure", "level": "mix", "structure": {"scope": [], "data_mode": ["all"]}}
    assert load_settings(written(tmp_path, document)).warnings == ()


# --- values that cannot work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dump_path", 3),
        ("dump_path", ""),
        ("async_dump", "true"),
        ("async_dump", 1),
        ("extra_info", 0),
        ("dump_enable", "yes"),
        ("compat", []),
        ("overwrite", "no"),
        ("custom_op_namespaces", "mine"),
        ("custom_op_namespaces", [1]),
        ("scope", "Module.a.A.forward.0"),
        ("list", [None]),
        ("tensor_list", {}),
        ("data_mode", "all"),
        ("data_mode", ["all", "input"]),
        ("slice", {"dim": 1}),
        ("slice", ["0"]),
        ("slice", [{"dim": -1}]),
        ("slice", [{"size": -1}]),
        ("slice", [{"begin": 1.0}]),
        ("slice", [{"end": True}]),
        ("request_id", 7),
        ("request_id", ""),
        ("diff_nums", 0),
        ("diff_nums", -2),
        ("diff_nums", True),
        ("white_list", "conv2d"),
        ("load", []),
        ("load", "x" * 500),
    ],
)
def test_values_of_the_wrong_kind(key: str, value: Any):
    error = error_of(task="tensor", **{key: value})
    assert error.code == "E-CFG-005"
    assert error.what.startswith(key)
    assert error.lines()[0][1].startswith("write for example ")
    assert len(error.what) < 130  # a huge value is not quoted whole


@pytest.mark.parametrize(
    ("key", "value", "do"),
    [
        ("task", "tensors", "one of: statistics, tensor, structure, acc_check, nan_check, exception_dump"),
        ("task", ["tensor"], "one of: statistics, tensor, structure, acc_check, nan_check, exception_dump"),
        ("task", "free_benchmark", "one of: statistics, tensor, structure, acc_check, nan_check, exception_dump"),
        ("task", "overflow_check", "write statistics, and run numprobe nan on the dump"),
        ("task", "diff_check", "write tensor, with bench_path and summary_mode md5"),
        ("level", "l1", "one of: L0, L1, mix, debug"),
        ("precision", "medium", "one of: low, high"),
        ("risk_level", "LOW", "one of: ALL, CORE, FOCUS"),
        ("format", "csv", "one of: json, parquet"),
        ("tensor_format", "npy", "one of: pt, safetensors"),
        ("summary_mode", "crc32", "one of: statistics, md5, xor, hash"),
        ("data_mode", ["forwards"], "one of: all, backward, forward, input, output"),
    ],
)
def test_values_that_there_are_not(tmp_path: Path, key: str, value: Any, do: str):
    error = error_of(**{key: value})
    assert (error.code, error.where, error.lines()) == ("E-CFG-006", "", [("do", do)])
    top = key not in ("summary_mode", "data_mode")
    file = written(tmp_path, {"dump_path": "d", **({key: value} if top else {"statistics": {key: value}})})
    error = error_of(file)
    assert error.where == str(file)
    assert error.what.startswith(f"{key}:" if top else f"statistics.{key}:")


def test_a_section_that_is_no_object(tmp_path: Path):
    error = error_of(written(tmp_path, {"dump_path": "d", "statistics": ["linear"]}))
    assert (error.code, error.what) == ("E-CFG-005", "statistics: ['linear'] is not what belongs there")


def test_an_unknown_argument():
    error = error_of(dump_pth="a")
    assert (error.code, error.what) == ("E-CFG-004", "dump_pth is no setting")
    assert error.lines()[0][1].startswith("did you mean dump_path? There are: task, level, dump_path, step")
    assert error_of(zzz=None).lines()[0][1].startswith("there are: task")


def test_kernel_dumps_need_an_npu():
    error = error_of(level="L2")
    assert (error.code, error.what) == (
        "E-CFG-009",
        "level L2 dumps the kernels of an NPU, which only its own tools can",
    )


def test_a_file_without_dump_path(tmp_path: Path):
    file = written(tmp_path, {"task": "statistics"})
    error = error_of(file)
    assert (error.code, error.what, error.where) == ("E-CFG-010", "dump_path is missing", str(file))
    assert load_settings(file, dump_path="d").dump_path == Path("d")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"level": "debug", "task": "nan_check"}, "level debug does not go with task nan_check"),
        ({"level": "L0", "task": "acc_check"}, "task acc_check needs APIs, and level L0 records none"),
        (
            {"async_dump": True, "summary_mode": "md5"},
            "async_dump leaves tensors on the device, and summary_mode md5 is computed on the host",
        ),
        (
            {"async_dump": True, "task": "tensor"},
            "async_dump with task tensor holds every tensor of a step in memory",
        ),
        ({"task": "tensor", "bench_path": "."}, "bench_path compares checksums, and summary_mode is statistics"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], what: str):
    error = error_of(**given)
    assert (error.code, error.what) == ("E-CFG-009", what)
    assert error.lines()


def test_what_does_go_together():
    assert load_settings(async_dump=True, task="tensor", level="debug").async_dump
    assert load_settings(async_dump=True, task="tensor", list=["linear"]).async_dump
    assert load_settings(async_dump=True, summary_mode="xor").async_dump
    assert load_settings(task="tensor", bench_path=".", summary_mode="md5").bench_path == Path()


# --- steps and ranks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ([], set()),
        ([3], {3}),
        (["3"], {3}),
        (["3-5", 4, 9], {3, 4, 5, 9}),
        (["0,3,8-9"], {0, 3, 8, 9}),
        ([1_000_000], {1_000_000}),
        (range(2, 4), {2, 3}),
        ({5}, {5}),
        (7, {7}),
        ("2-3", {2, 3}),
    ],
)
def test_steps(value: Any, chosen: set[int]):
    assert load_settings(step=value).steps == load_settings(rank=value).ranks == chosen


@pytest.mark.parametrize(
    "value",
    [
        [-1],
        [1_000_001],
        [True],
        [1.0],
        ["5-3"],
        ["a"],
        [""],
        [None],
        [[1]],
        {"a": 1},
        2.5,
        ["0-1000000"],
        ["9999999999999999"],
    ],
)
def test_what_is_no_step(tmp_path: Path, value: Any):
    for key in ("step", "rank"):
        error = error_of(written(tmp_path, {"dump_path": "d", key: value}))
        assert error.code == "E-CFG-007"
        assert error.what.startswith(f"{key}: ")
        assert error.what.endswith(" is no list of numbers and ranges from 0 to 1000000")


@given(st.lists(st.one_of(st.integers(0, 50), st.tuples(st.integers(0, 50), st.integers(0, 9))), max_size=8))
def test_steps_are_those_listed(parts: list[int | tuple[int, int]]):
    value = [part if isinstance(part, int) else f"{part[0]}-{part[0] + part[1]}" for part in parts]
    listed = {n for part in parts for n in ([part] if isinstance(part, int) else range(part[0], part[0] + part[1] + 1))}
    settings = load_settings(step=value, rank=value)
    assert settings.last_step == (max(listed) if listed else None)
    for number in range(62):
        assert settings.wants_step(number) == settings.wants_rank(number) == (not listed or number in listed)
    assert settings.wants_rank(None) == (not listed)


# --- names, slices, loading ------------------------------------------------------------------------------------------

API, MODULE = "Functional.linear.0.forward", "Module.layers.0.mlp.MLP.forward.0"


@pytest.mark.parametrize(
    ("level", "scope"),
    [
        ("L1", [API, "Tensor.add.3.backward"]),
        ("L1", ["mymod.compute.0.forward", API]),  # of a function that the user has registered
        ("L0", [MODULE, "Module.layers.1.mlp.MLP.backward.0"]),
        ("mix", [API, MODULE]),
        ("mix", [MODULE, MODULE]),
    ],
)
def test_scope(level: str, scope: list[str]):
    assert load_settings(level=level, scope=scope).scope == tuple(scope)


@pytest.mark.parametrize(
    ("level", "scope"),
    [
        ("L1", [API]),
        ("L1", [API, API, API]),
        ("L1", [API, MODULE]),
        ("L0", [API, MODULE]),
        ("mix", [API, "linear"]),
        ("mix", [API, "Functional.linear.forward"]),
        ("mix", [MODULE, "Module.layers.0.mlp.MLP.parameters_grad.0"]),
    ],
)
def test_what_is_no_scope(level: str, scope: list[str]):
    error = error_of(level=level, scope=scope)
    assert error.code == "E-CFG-008"
    assert error.what.endswith(f" are not two full names of records that level {level} has")


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (["all"], {"forward", "backward", "input", "output"}),
        ([], {"forward", "backward", "input", "output"}),
        (["forward"], {"forward", "input", "output"}),
        (["input"], {"forward", "backward", "input"}),
        (["backward", "output"], {"backward", "output"}),
        (["forward", "backward", "input", "output"], {"forward", "backward", "input", "output"}),
    ],
)
def test_data_mode(value: list[str], chosen: set[str]):
    assert load_settings(data_mode=value).data_mode == chosen


def test_apis_of_the_pre_check():
    settings = load_settings(task="acc_check", white_list=["conv2d", "linalg.inv"], black_list=["npu_rms_norm"])
    assert (settings.white_list, settings.black_list) == (("conv2d", "linalg.inv"), ("npu_rms_norm",))
    error = error_of(task="acc_check", white_list=["conv2"])
    assert (error.code, error.what) == ("E-CFG-008", "white_list: conv2 is no API that is recorded")
    assert error.lines() == [("do", "did you mean conv2d?")]
    assert error_of(task="acc_check", black_list=["?"]).lines()[0][1] == "write names such as conv2d or linalg.inv"


@pytest.mark.parametrize(("task", "key"), [("tensor", "bench_path"), ("acc_check", "error_data_path")])
def test_folders_that_have_to_be_there(task: str, key: str):
    error = error_of(task=task, **{key: "/no/such"})
    assert (error.code, error.what) == ("E-CFG-011", f"{key} /no/such is no folder")


@pytest.mark.parametrize(
    ("rules", "shape", "index"),
    [
        ([], (4, 5), None),
        ([SliceRule(begin=-2)], (4, 5), (slice(-2, None),)),
        ([SliceRule(1, 5, 0, 3)], (4, 5), (slice(None), slice(0, 3))),
        ([SliceRule(1, 5, 0, 3)], (4, 6), None),
        ([SliceRule(2)], (4, 5), None),
        ([SliceRule(0, None, 1, 2), SliceRule(0, 4, 3)], (4, 5), (slice(3, None),)),
        ([SliceRule(0, None, 1, 2), SliceRule(0, 9, 3)], (4, 5), (slice(1, 2),)),
        ([SliceRule()], (), None),
    ],
)
def test_slices(rules: list[SliceRule], shape: tuple[int, ...], index: tuple[slice, ...] | None):
    assert slices_of(rules, shape) == index


def test_loading_alone_needs_no_dump_path(tmp_path: Path):
    load = {"path": str(tmp_path), "modules": [MODULE]}
    assert load_settings(written(tmp_path, {"load": load})).dump_path == tmp_path
    file = written(tmp_path, {"load": {**load, "dump_after_load": True}})
    assert error_of(file).what == "dump_path is missing"


@pytest.mark.parametrize(
    ("change", "code", "what"),
    [
        ({"path": None}, "E-CFG-010", "load.path is missing"),
        ({"modules": None}, "E-CFG-010", "load.modules is missing"),
        ({"modules": []}, "E-CFG-010", "load.modules is missing"),
        ({"path": "/no/such"}, "E-CFG-011", "load.path /no/such is no folder"),
        ({"modules": MODULE}, "E-CFG-005", f"load.modules: {MODULE!r} is not what belongs there"),
        ({"modules": [API]}, "E-CFG-008", f"load.modules: {API} is no forward call of a module, or stands there twice"),
        (
            {"modules": [MODULE, MODULE]},
            "E-CFG-008",
            f"load.modules: {MODULE} is no forward call of a module, or stands there twice",
        ),
        (
            {"modules": ["Module.a.A.backward.0"]},
            "E-CFG-008",
            "load.modules: Module.a.A.backward.0 is no forward call of a module, or stands there twice",
        ),
        ({"dump_after_load": 1}, "E-CFG-005", "load.dump_after_load: 1 is not what belongs there"),
        ({"step": ["b"]}, "E-CFG-007", "load.step: 'b' is no list of numbers and ranges from 0 to 1000000"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, change: dict[str, Any], code: str, what: str):
    load = {"path": str(tmp_path), "modules": [MODULE], **change}
    error = error_of(written(tmp_path, {"dump_path": "d", "load": load}))
    assert (error.code, error.what) == (code, what)


def test_settings_can_be_read_again_with_another_task(tmp_path: Path):
    """A running job reads its file again when it changes; the arguments stay in force (CFG-8)."""
    file = written(tmp_path, {"task": "statistics", "dump_path": "d", "dump_enable": False})
    before = load_settings(file, level="L0")
    written(tmp_path, {"task": "tensor", "dump_path": "d", "dump_enable": True})
    after = load_settings(before.config_path, level="L0")
    assert (before.dump_enable, after.dump_enable, after.task, after.level) == (False, True, "tensor", "L0")
