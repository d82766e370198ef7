"""What the collector writes, of values that are there rank by rank: dump.json, construct.json, stack.json, tensors."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from numprobe.synth.rl.arithmetic import Array, to_bf16

Spread: TypeAlias = "list[Array]"  # a tensor, rank by rank
Value: TypeAlias = "Spread | None"
Result = TypeVar("Result")  # a tensor or a tuple of them
TORCH = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}


class Recorder:
    """Records of one side. ``places`` says which leaf modules fill which place of the model: the truth about the mapping."""

    def __init__(self, world: int, dtype: str, level: str, code: str, *, tensors: bool, short: bool) -> None:
        self.world, self.dtype, self.level, self.code, self.tensors = world, dtype, level, code, tensors
        self.short = short and dtype == "bf16"
        self.places: dict[str, list[str]] = defaultdict(list)
        self._data: list[dict[str, Any]] = [{} for _ in range(world)]
        self._files: list[dict[str, Array]] = [{} for _ in range(world)]
        self._parents: dict[str, str | None] = {}
        self._open: list[str] = []
        self._calls: dict[str, int] = defaultdict(int)

    def call(
        self,
        path: str,
        cls: str,
        inputs: tuple[Value, ...],
        run: Callable[[], Result],
        *,
        place: str | tuple[str, ...] = (),
        kwargs: Mapping[str, Value] | None = None,
        parameters: Mapping[str, Spread] | None = None,
    ) -> Result:
        """What ``run`` returns, after a record of the call of a module."""
        name = self._name(f"Module.{path}.{cls}.forward")
        self._enter(name)
        outputs = run()
        self._open.pop()
        self._add(name, inputs, kwargs or {}, outputs, parameters or {})
        for one in (place,) if isinstance(place, str) else place:
            self.places[one].append(name)
        return outputs

    def api(self, name: str, inputs: tuple[Value, ...], outputs: Spread) -> Spread:
        """``outputs``, after a record of the API, at level mix only."""
        if self.level == "mix":
            full = f"{self._name(name)}.forward"
            self._enter(full)
            self._open.pop()
            self._add(full, inputs, {}, outputs, None)
        return outputs

    def _name(self, name: str) -> str:
        number = self._calls[name]
        self._calls[name] += 1
        return f"{name}.{number}"

    def _enter(self, name: str) -> None:
        self._parents[name] = self._open[-1] if self._open else None
        self._open.append(name)

    def _add(
        self,
        name: str,
        inputs: tuple[Value, ...],
        kwargs: Mapping[str, Value],
        outputs: Any,
        parameters: Mapping[str, Spread] | None,
    ) -> None:
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        for rank in range(self.world):
            record: dict[str, Any] = {
                "input_args": [self._leaf(rank, v, f"{name}.input.{i}") for i, v in enumerate(inputs)],
                "input_kwargs": {k: self._leaf(rank, v, f"{name}.kwargs.{k}") for k, v in kwargs.items()},
                "output": [self._leaf(rank, v, f"{name}.output.{i}") for i, v in enumerate(several)],
            }
            if parameters is not None:
                record["parameters"] = {k: self._leaf(rank, v, f"{name}.parameters.{k}") for k, v in parameters.items()}
            self._data[rank][name] = record

    def _leaf(self, rank: int, value: Value, name: str) -> dict[str, Any] | None:
        if value is None:
            return None
        x = value[rank]
        floating = x.dtype == np.float32
        leaf: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": TORCH[self.dtype] if floating else "torch.int64",
            "shape": list(x.shape),
        }
        with np.errstate(invalid="ignore"):
            figures = [x.max(), x.min()] if x.size else [None, None]
            if floating and x.size:
                wide = x.astype(np.float64)
                sums = np.array([wide.mean(), np.sqrt((wide * wide).sum())], np.float32)
                figures += list(to_bf16(sums) if self.short else sums)
        kinds = dict(zip(("Max", "Min", "Mean", "Norm"), [*figures, None, None], strict=False))
        leaf |= {k: None if v is None else v.item() for k, v in kinds.items()} | {"requires_grad": floating}
        if self.tensors:
            leaf["data_name"] = f"{name}.npy"
            self._files[rank][f"{name}.npy"] = x
        return leaf

    def figures(self, place: str, role: str) -> tuple[float, float, float]:
        """Max, Min and Norm of the first slot of a role (``input_args``, ``output``, ``parameters``) of what fills a place, over
        all modules and ranks that have another part of it."""
        found = dict.fromkeys(
            tuple(float(leaf[k]) for k in ("Max", "Min", "Norm"))
            for name in self.places[place]
            for record in (data[name][role] for data in self._data)
            for leaf in [record["weight"] if role == "parameters" else record[0]]
        )
        return max(f[0] for f in found), min(f[1] for f in found), math.sqrt(sum(f[2] ** 2 for f in found))

    def elements(self, place: str, role: str) -> Array:
        """Those of the first slot, one after the other, on the first rank."""
        [name] = self.places[place]
        return self._files[0][self._data[0][name][role][0]["data_name"]].ravel()

    def write(self, step: Path) -> None:
        """One folder a rank below ``step``; tensors as ``.npy``, bfloat16 as two opaque bytes."""
        stacks = {str(n): [[name], list(self._frames(name))] for n, name in enumerate(self._parents)}
        for rank in range(self.world):
            folder = step / f"rank{rank}"
            folder.mkdir(parents=True)
            head = {
                "task": "tensor" if self.tensors else "statistics",
                "level": self.level,
                "framework": "pytorch",
                "dump_data_dir": "dump_tensor_data" if self.tensors else None,
            }
            _write(folder / "dump.json", head | {"data": self._data[rank]})
            _write(folder / "construct.json", self._parents)
            _write(folder / "stack.json", stacks)
            if self.tensors:
                (folder / "dump_tensor_data").mkdir()
            for name, x in self._files[rank].items():
                half = self.dtype == "bf16" and x.dtype == np.float32
                stored = (x.view(np.uint32) >> 16).astype(np.uint16).view("V2") if half else x
                np.save(folder / "dump_tensor_data" / name, stored)

    def _frames(self, name: str) -> Iterator[str]:
        """Where a call comes from: the code of the modules around it."""
        inner = name
        while (outer := self._parents[inner]) is not None:
            path, _, cls = outer.rpartition(".forward")[0].rpartition(".")
            line = 40 + 7 * (sum(map(ord, inner.split(".forward")[0])) % 50)
            what = inner.split(".forward")[0].split(".")
            called = f"self.{what[-2]}(x)" if inner.startswith("Module.") else f"{what[-2]}(x)"
            yield f"File {self.code}/{path.rpartition('.')[2]}.py, line {line}, in forward, \n y = {called}  # {cls}"
            inner = outer


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")
