"""Print a dump the way one reads it by hand: every record of a rank with the state of its slots, or only the dirty ones.

    python tests/gloo/show.py tests/data/gloo/moe_all_to_all/step0 [--rank 1] [--first N] [--comm]

Needs the standard library only and shares no code with numprobe, so that it can serve as a second opinion.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROLES = ("input_args", "input_kwargs", "input", "output", "parameters")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, tensor record) of every tensor below value."""
    if isinstance(value, dict):
        if "shape" in value and "dtype" in value:
            yield path, value
            return
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")


def is_dirty(tensor: dict[str, Any]) -> bool:
    """Max or Min is NaN or infinite; Mean and Norm can overflow on finite tensors and do not count."""
    return any(isinstance(tensor.get(key), float) and not math.isfinite(tensor[key]) for key in ("Max", "Min"))


def dirty_slots(record: dict[str, Any]) -> list[str]:
    return [path for role, value in record.items() for path, tensor in leaves(value, role) if is_dirty(tensor)]


def read(rank_folder: Path) -> dict[str, dict[str, Any]]:
    return json.loads((rank_folder / "dump.json").read_text())["data"]


def describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        if "shape" in value and "dtype" in value:
            low, high = value.get("Min"), value.get("Max")
            return f"{value['dtype'].removeprefix('torch.')}{value['shape']}[{short(low)}..{short(high)}]"
        if "value" in value:
            return f"{value['value']}"
        return "{" + ", ".join(f"{key}={describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    return repr(value)


def short(number: Any) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type=Path, help="a step folder")
    parser.add_argument("--rank", action="append", help="folder name or number; default all")
    parser.add_argument("--first", type=int, metavar="N", help="only up to the N-th dirty record of each rank")
    parser.add_argument("--dirty", action="store_true", help="only dirty records")
    parser.add_argument("--comm", action="store_true", help="only communication records")
    args = parser.parse_args()
    for folder in sorted(args.step.iterdir()):
        if not folder.is_dir() or (args.rank and folder.name.removeprefix("rank") not in args.rank):
            continue
        print(f"-- {folder.name}")
        seen = 0
        for index, (name, record) in enumerate(read(folder).items()):
            dirty = dirty_slots(record)
            seen += bool(dirty)
            if (not args.dirty or dirty) and (not args.comm or name.startswith("Distributed.")):
                body = "  ".join(f"{role}: {describe(value)}" for role, value in record.items() if value)
                print(f"{index:4} {'!' if dirty else ' '} {name}  {body}")
            if args.first and seen == args.first:
                break


if __name__ == "__main__":
    main()
