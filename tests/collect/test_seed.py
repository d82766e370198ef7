"""Seeds, dropout and the record of random calls; and that nothing of it stays behind."""

from __future__ import annotations

import csv
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from numprobe.collect.pytorch import seed  # noqa: E402
from numprobe.collect.pytorch.apis import random_apis, resolve  # noqa: E402
from numprobe.collect.pytorch.seed import random_save, seed_all  # noqa: E402
from numprobe.record.errors import NumprobeError  # noqa: E402

PATCHED = [(owner, name) for _, owner, name in random_apis()] + [
    ("torch.nn.functional", name) for name in ("dropout", "dropout2d", "dropout3d")
]
NPU_VARIABLES = ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "CLOSE_MATMUL_K_SHIFT", "ATB_LLM_LCOC_ENABLE")
VARIABLES = (*NPU_VARIABLES, "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")


def in_place() -> list[tuple[str, str, Any, bool]]:
    return [(o, n, getattr(resolve(o), n), n in vars(resolve(o))) for o, n in PATCHED]


@pytest.fixture(autouse=True)
def nothing_stays():
    """Every test begins and ends with the program as it was."""
    before, states = in_place(), (random.getstate(), np.random.get_state())
    environment = {name: os.environ.get(name) for name in VARIABLES}
    yield
    seed._seeded.restore()
    after = in_place()
    assert [(o, n, own) for o, n, _, own in after] == [(o, n, own) for o, n, _, own in before]
    assert all(a[2] == b[2] for a, b in zip(after, before, strict=True))
    assert {name: os.environ.get(name) for name in VARIABLES} == environment
    assert not torch.are_deterministic_algorithms_enabled()
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_equal_seeds_give_equal_numbers():
    seed_all()
    first = [drawn(), drawn()]
    assert os.environ["PYTHONHASHSEED"] == "1234"
    seed_all(1234)
    assert [drawn(), drawn()] == first
    seed_all(seed=5)
    assert drawn() != first[0]
    random.seed(1234)
    np.random.seed(1234)
    torch.manual_seed(1234)
    assert drawn() == first[0]


def test_deterministic_algorithms():
    seed_all(mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    seed_all()  # of its own doing, seed_all takes back
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seed_all()  # what the program has chosen stays
        assert torch.are_deterministic_algorithms_enabled()
        with seed_all(mode=True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_without_dropout():
    layer, x = torch.nn.Dropout(0.9), torch.ones(1, 8, 4, 4)
    functional = torch.nn.functional
    with seed_all(rm_dropout=True):
        assert torch.equal(layer(x), x)  # of a module made before, too
        assert torch.equal(functional.dropout(x, p=0.5, training=True, inplace=False), x)
        assert torch.equal(functional.dropout2d(x), x)
        assert torch.equal(functional.dropout3d(x, 1.0), x)
    assert not torch.equal(layer(x), x)


def test_enhanced_every_call_starts_from_the_seed():
    with seed_all(7, is_enhanced=True):
        assert drawn() == drawn()
        assert torch.equal(torch.randn(3), torch.randn(3))
        assert torch.equal(torch.empty(3).normal_(), torch.empty(3).normal_())
        assert np.random.permutation(50).tolist() == np.random.permutation(50).tolist()
        assert random.sample(range(99), 5) == random.sample(range(99), 5)
        with pytest.raises(ValueError, match="empty range"):
            random.randint(3, 2)
        enhanced = drawn()
    assert drawn() != drawn()
    seed_all(7)
    assert drawn() == enhanced


def test_twice_enhanced_is_wrapped_once():
    original = torch.randn
    seed_all(is_enhanced=True, rm_dropout=True)
    first = torch.randn
    seed_all(is_enhanced=True)
    assert torch.randn is not first
    assert torch.randn.__wrapped__ is original


def test_a_wrapper_of_somebody_else_on_top_stays_and_works(monkeypatch: pytest.MonkeyPatch):
    functional = torch.nn.functional
    original = functional.dropout
    changes = seed_all(rm_dropout=True)
    ours = functional.dropout

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    functional.dropout = theirs
    changes.restore()
    changes.restore()
    assert functional.dropout is theirs
    assert functional.dropout(torch.ones(1000), 0.5).eq(0).any()
    functional.dropout = original


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    with seed_all(3):
        assert os.environ["PYTHONHASHSEED"] == "3"
    assert os.environ["PYTHONHASHSEED"] == "77"


def test_npu_variables_are_set_where_torch_npu_is(monkeypatch: pytest.MonkeyPatch):
    seed_all()
    assert not [name for name in NPU_VARIABLES if name in os.environ]
    monkeypatch.setattr(seed, "find_spec", lambda name: object())
    with seed_all():
        assert [os.environ[name] for name in NPU_VARIABLES] == ["True", "1", "1", "0"]
    assert not [name for name in NPU_VARIABLES if name in os.environ]


def test_on_gpus_cudnn_is_deterministic(monkeypatch: pytest.MonkeyPatch):
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cudnn.benchmark = True
    with seed_all():
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert (cudnn.deterministic, cudnn.benchmark) == (False, True)
    cudnn.benchmark = False


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": 2**32},
        {"seed": True},
        {"seed": 1.0},
        {"mode": 1},
        {"rm_dropout": None},
        {"is_enhanced": "yes"},
    ],
)
def test_arguments_of_the_wrong_kind(arguments: dict[str, Any]):
    with pytest.raises(NumprobeError, match="E-CFG-005") as caught:
        seed_all(**arguments)
    assert caught.value.what.startswith(next(iter(arguments)))


def rows(folder: Path) -> list[list[str]]:
    (file,) = folder.iterdir()
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


def test_random_calls_are_written_down(tmp_path: Path):
    with random_save(tmp_path / "out put"):
        torch.randn(2), torch.randn(3), np.random.rand(), random.random(), torch.empty(2).normal_()
        written = rows(tmp_path / "out put")  # while it runs
    torch.randn(2)
    assert rows(tmp_path / "out put") == written
    assert written[0] == ["api_name", "stack"]
    assert [row[0] for row in written[1:]] == [
        "torch_random.randn.0",
        "torch_random.randn.1",
        "numpy_random.rand.0",
        "python_random.random.0",
        "tensor_random.normal_.0",
    ]
    first = written[1][1].splitlines()
    assert first[0].startswith(f"File {__file__}, line ")
    assert first[0].endswith(", in test_random_calls_are_written_down, ")
    assert "torch.randn(2), torch.randn(3)" in first[1]
    (file,) = (tmp_path / "out put").iterdir()
    assert file.name.startswith(f"random_proc{os.getpid()}_")


def test_the_file_takes_the_rank_when_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with random_save(str(tmp_path)):
        torch.randn(2)
        monkeypatch.setattr(seed, "current_rank", lambda: 3)
        torch.randn(2)
        torch.randn(2)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("random_rank3_")
    assert len(rows(tmp_path)) == 4


def test_the_values_are_those_of_the_program(tmp_path: Path):
    seed_all()
    plain = drawn()
    seed_all()
    with random_save(tmp_path):
        assert drawn() == plain


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_write_nothing(tmp_path: Path):
    with random_save(tmp_path):
        child = multiprocessing.get_context("fork").Process(target=random.random)
        child.start()
        child.join()
        assert child.exitcode == 0
        random.random()
    assert [row[0] for row in rows(tmp_path)[1:]] == ["python_random.random.0"]


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(NumprobeError) as caught:
        random_save(tmp_path / "file")
    assert caught.value.code == "E-OUT-002"
    assert caught.value.where == str(tmp_path / "file")


def test_a_full_disk_does_not_stop_the_program(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with random_save(tmp_path):
        (file,) = tmp_path.iterdir()
        with full.open("w") as stream:
            os.dup2(
                stream.fileno(), next(int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.resolve() == file)
            )
        random.random()
        torch.randn(2)
    assert [record.message for record in caplog.records] == [
        f"numprobe: {file} ends before python_random.random.0: No space left on device"
    ]
