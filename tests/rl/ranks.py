"""One recorded run as the ranks of a tensor parallel group would have recorded it: each tensor cut where Megatron cuts it."""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

COLUMN, ROW = ("linear_qkv", "linear_fc1"), ("linear_proj", "linear_fc2")


def split_over_ranks(folder: Path, out: Path, ranks: int, *, sequence_parallel: bool = False) -> Path:
    """Dumps of ``ranks`` ranks made of one of a single rank with task tensor. ``sequence_parallel``: norms and what the linears
    in front of the shards get are cut along the sequence."""
    return _split(
        folder, out, ranks, lambda x, name, section, rank: _part(x, name, section, rank, ranks, sequence_parallel)
    )


def _split(folder: Path, out: Path, ranks: int, part: Callable[[Tensor, str, str, int], Tensor]) -> Path:
    """The dump with every tensor replaced by ``part(tensor, record, section, rank)``, once for every rank."""
    [file] = folder.rglob("dump.json")
    source, content = file.parent, json.loads(file.read_text())
    for rank in range(ranks):
        place = out / "step0" / f"rank{rank}"
        (place / "dump_tensor_data").mkdir(parents=True)
        cut = json.loads(json.dumps(content))
        for name, record in cut["data"].items():
            for section, leaves in record.items():
                for leaf in leaves.values() if isinstance(leaves, dict) else leaves:
                    if isinstance(leaf, dict) and "data_name" in leaf:
                        whole = torch.load(source / "dump_tensor_data" / leaf["data_name"], weights_only=True).detach()
                        own = part(whole, name, section, rank).contiguous()
                        torch.save(own, place / "dump_tensor_data" / leaf["data_name"])
                        leaf.update(_figures(own))
        (place / "dump.json").write_text(json.dumps(cut))
    return out


def _part(x: Tensor, name: str, section: str, rank: int, ranks: int, sequence_parallel: bool) -> Tensor:
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
    y = x.double()
    four = {"Max": y.max(), "Min": y.min(), "Mean": y.mean(), "Norm": y.norm()}
    kind = float if x.is_floating_point() else lambda v: v if v % 1 else int(v)
    return {"shape": list(x.shape), **{k: kind(float(v)) for k, v in four.items()}}


def split_over_sequences(folder: Path, out: Path, ranks: int, length: int, *, zigzag: bool = True) -> Path:
    """As :func:`split_over_ranks`, of a context parallel group: everything that has tokens (a dimension of ``length``) is cut
    into two chunks a rank, the first and the last of which rank 0 has; or, not in ``zigzag``, into one."""

    def part(x: Tensor, name: str, section: str, rank: int) -> Tensor:
        if section == "parameters" or length not in x.shape:
            return x
        dim = x.shape.index(length)
        chunks = x.chunk(2 * ranks if zigzag else ranks, dim)
        return torch.cat([chunks[rank], chunks[-1 - rank]], dim) if zigzag else chunks[rank]

    return _split(folder, out, ranks, part)


def split_over_experts(folder: Path, out: Path, ranks: int, experts: int, *, grouped: bool = False) -> Path:
    """As :func:`split_over_ranks`, of an expert parallel group: every rank has some of the experts, and counts them from 0.

    ``grouped``: in one module with two weights, as Megatron's ``GroupedMLP``."""
    [file] = folder.rglob("dump.json")
    source, content = file.parent, json.loads(file.read_text())
    each = experts // ranks
    for rank in range(ranks):
        place = out / "step0" / f"rank{rank}"
        shutil.copytree(source / "dump_tensor_data", tensors := place / "dump_tensor_data")
        data: dict[str, Any] = {}
        weights: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for name, record in content["data"].items():
            expert = re.search(r"(.*)\.experts\.local_experts\.(\d+)\.?(.*)", name)
            if expert is None:
                data[name] = record
            elif int(expert.group(2)) // each == rank:
                layer, number, below = expert.group(1), int(expert.group(2)) % each, expert.group(3)
                if not grouped:
                    data[f"{layer}.experts.local_experts.{number}.{below}"] = record
                elif weight := record.get("parameters", {}).get("weight"):
                    weights.setdefault(layer, {}).setdefault(below.split(".")[0], []).append(weight)
        for layer, parts in weights.items():
            found = {}
            for key, linear in (("weight1", "linear_fc1"), ("weight2", "linear_fc2")):
                files = [source / "dump_tensor_data" / leaf["data_name"] for leaf in parts[linear]]
                stacked = torch.stack(
                    [torch.load(f, weights_only=True).detach().t() for f in files]
                )  # (e, columns, rows)
                columns, rows = stacked.shape[1:]
                flat = stacked.reshape((columns, -1) if key == "weight1" else (-1, rows)).contiguous()
                torch.save(flat, tensors / f"{layer}.{key}.pt")
                found[key] = {**parts[linear][0], **_figures(flat), "data_name": f"{layer}.{key}.pt"}
            block, grouped_mlp = f"{layer}.MoELayer.forward.0", f"{layer}.experts.GroupedMLP.forward.0"
            at = list(data).index(block)
            items = list(data.items())
            data = dict([*items[:at], (grouped_mlp, {**data[block], "parameters": found}), *items[at:]])
        (place / "dump.json").write_text(json.dumps({**content, "data": data}))
    return out


def split_over_stages(folder: Path, out: Path, *ends: int, chunks: int = 1, local: bool = True) -> Path:
    """The ranks of a dump as those of the first pipeline stage, as many of the second, and so on. ``ends``: the layers in front
    of which a new stage begins.

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
