"""One recorded run as the ranks of a tensor parallel group would have recorded it: each tensor cut where Megatron cuts it."""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_right
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

COLUMN, ROW = ("linear_qkv", "linear_fc1"), ("linear_proj", "linear_fc2")


def split_over_ranks(folder: Path, out: Path, ranks: int, *, sequence_parallel: bool = False) -> Path:
    """Dumps of ``ranks`` ranks made of one of a single rank with task tensor. ``sequence_parallel``: norms and what the linears
    in front of the shards get are cut along the sequence."""
    [source] = folder.rglob("dump.json")
    content = json.loads(source.read_text())
    for rank in range(ranks):
        place = out / "step0" / f"rank{rank}"
        (place / "dump_tensor_data").mkdir(parents=True)
        cut = json.loads(json.dumps(content))
        for name, record in cut["data"].items():
            for section, leaves in record.items():
                for key, leaf in leaves.items() if isinstance(leaves, dict) else enumerate(leaves):
                    if isinstance(leaf, dict) and "data_name" in leaf:
                        file = source.parent / "dump_tensor_data" / leaf["data_name"]
                        whole = torch.load(file, weights_only=True).detach()
                        part = _part(whole, name, section, str(key), rank, ranks, sequence_parallel).contiguous()
                        torch.save(part, place / "dump_tensor_data" / leaf["data_name"])
                        leaf.update(_figures(part))
        (place / "dump.json").write_text(json.dumps(cut))
    return out


def _part(x: Tensor, name: str, section: str, key: str, rank: int, ranks: int, sequence_parallel: bool) -> Tensor:
    if not name.startswith("Module.") or not x.is_floating_point():
        return x
    module = name.split(".")[-4]
    if module == "core_attention":
        return x.chunk(ranks, 2 if section.startswith("input") else -1)[rank]
    if module in COLUMN and section in ("output", "parameters"):
        dim = 0 if section == "parameters" else -1
        halves = x.chunk(2, dim) if module == "linear_fc1" else [x]
        return torch.cat([half.chunk(ranks, dim)[rank] for half in halves], dim)
    if module in ROW and section in ("input_args", "parameters"):
        return x.chunk(ranks, -1)[rank]
    if sequence_parallel and section != "parameters" and ("layernorm" in module or module in (*COLUMN, *ROW)):
        return x.chunk(ranks, 0)[rank]
    return x


def _figures(x: Tensor) -> dict[str, Any]:
    if not x.is_floating_point():
        return {"shape": list(x.shape)}
    y = x.double()
    four = {"Max": y.max(), "Min": y.min(), "Mean": y.mean(), "Norm": y.norm()}
    return {"shape": list(x.shape), **{k: float(v) for k, v in four.items()}}


def split_over_stages(folder: Path, out: Path, *ends: int, chunks: int = 1, local: bool = True) -> Path:
    """The ranks of a dump as those of the first pipeline stage, as many of the second, and so on. ``ends``: the layers in front of
    which a new stage begins.

    ``local``: each numbers its layers from 0. ``chunks``: every rank has so many stages, as a list of models; the first ones of
    all ranks come before the second ones."""
    sources = sorted(path.parent for path in folder.rglob("dump.json"))
    count = len(ends) + 1
    places = count // chunks
    for number, source in enumerate(sources):
        content = json.loads((source / "dump.json").read_text())
        ranks: list[dict[str, Any]] = [{} for _ in range(places)]
        for name, record in content["data"].items():
            if not name.startswith("Module."):
                continue
            layer = re.search(r"\blayers\.(\d+)\.", name)
            if layer:
                stage = bisect_right(ends, int(layer.group(1)))
                first = ends[stage - 1] if stage and local else 0
                name = name.replace(layer.group(0), f"layers.{int(layer.group(1)) - first}.")
            elif re.search("embed|norm|output_layer|lm_head", name):
                stage = 0 if "embed" in name else count - 1
            else:
                continue
            model = f"Module.{stage // places}." if chunks > 1 else "Module."
            ranks[stage % places][name.replace("Module.", model, 1)] = record
        for rank, data in enumerate(ranks):
            place = out / "step0" / f"rank{number + rank * len(sources)}"
            shutil.copytree(source / "dump_tensor_data", place / "dump_tensor_data")
            (place / "dump.json").write_text(json.dumps({**content, "data": data}))
    return out
