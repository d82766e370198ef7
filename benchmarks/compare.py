"""Speed and memory of ``numprobe compare``, beside msProbe's on the same folders, as ratios of one run.

    python benchmarks/compare.py [--msprobe-venv DIR] [--records 20000] [--gigabytes 1] [--curve]

Pairs of dumps are made first: decoder layers, the target with relative noise of 1e-3 on every figure (or element), so that no
row is equal. Both tools read them warm from the page cache and write csv. msProbe runs as released, from a venv of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import MB, NUMPROBE, Ran, machine, median, run, warm

CURVE = (10_000, 100_000, 300_000, 1_000_000)  # records a side
SHAPE = [512, 2, 1024]
OPS = ("layer_norm", "linear", "silu", "linear", "__add__")


def write_pair(folder: Path, records: int, *, digests: bool = False) -> tuple[Path, Path]:
    """Two dumps of ``records`` records a side; returns their dump.json files."""
    files = []
    for side in ("target", "golden"):
        place = folder / side / "step0" / "rank0"
        place.mkdir(parents=True)
        noise = random.Random(side)
        with (place / "dump.json").open("w") as out, (place / "construct.json").open("w") as tree:
            header = '{\n "task": "statistics",\n "level": "mix",\n "framework": "pytorch",\n "dump_data_dir": null,\n'
            header += ' "data": {\n'
            out.write(header)
            tree.write("{\n")
            separator = ""
            for name, parent, body in _records(records, noise, digests):
                out.write(f'{separator}  "{name}": {json.dumps(body, indent=1)}')
                tree.write(f'{separator} "{name}": {json.dumps(parent)}')
                separator = ",\n"
            out.write("\n }\n}")
            tree.write("\n}")
        (place / "stack.json").write_text("{}")
        files.append(place / "dump.json")
    return files[0], files[1]


def _records(count: int, noise: random.Random, digests: bool) -> Iterator[tuple[str, str | None, dict[str, object]]]:
    values = random.Random(0)
    calls: dict[str, int] = {}
    x = _leaf(values, noise, digests)
    for number in range(count):
        layer, at = divmod(number, len(OPS) + 1)
        module = f"Module.layers.{layer}.mlp.MLP.forward.0"
        if at == len(OPS):
            yield module, None, {"input_args": [x], "input_kwargs": {}, "output": [x]}
            continue
        api = OPS[at]
        prefix = "Tensor" if api.startswith("_") else "Functional"
        calls[api] = calls.get(api, -1) + 1
        y = _leaf(values, noise, digests)
        inputs = [x, _leaf(values, noise, digests, [1024, 1024])] if api == "linear" else [x]
        yield f"{prefix}.{api}.{calls[api]}.forward", module, {"input_args": inputs, "input_kwargs": {}, "output": [y]}
        x = y


def _leaf(
    values: random.Random, noise: random.Random, digests: bool, shape: list[int] | None = None
) -> dict[str, object]:
    def near(figure: float) -> float:
        return figure * (1 + noise.gauss(0, 1e-3))

    leaf: dict[str, object] = {
        "type": "torch.Tensor",
        "dtype": "torch.bfloat16",
        "shape": shape or SHAPE,
        "Max": near(values.uniform(3, 5)),
        "Min": near(-values.uniform(3, 5)),
        "Mean": near(values.gauss(0, 0.01)),
        "Norm": near(values.uniform(900, 1100)),
        "requires_grad": True,
    }
    return leaf | {"md5": f"{noise.getrandbits(32):08x}"} if digests else leaf


def write_tensors(folder: Path, gigabytes: float) -> tuple[Path, Path]:
    """Two tensor dumps of about this size a side, 16 MB a tensor."""
    import torch

    torch.manual_seed(0)
    pairs = max(int(gigabytes * 1000 / 16 / 2), 1)
    data: dict[str, dict[str, object]] = {"target": {}, "golden": {}}
    for call in range(pairs):
        for slot, section in (("input.0", "input_args"), ("output.0", "output")):
            golden = torch.randn(2000, 2000)
            for side, tensor in (("target", golden * (1 + 1e-3 * torch.randn(2000, 2000))), ("golden", golden)):
                place = folder / side / "step0" / "rank0" / "dump_tensor_data"
                place.mkdir(parents=True, exist_ok=True)
                name = f"Functional.silu.{call}.forward.{slot}.pt"
                torch.save(tensor, place / name)
                leaf = {
                    "type": "torch.Tensor",
                    "dtype": "torch.float32",
                    "shape": [2000, 2000],
                    "Max": tensor.max().item(),
                    "Min": tensor.min().item(),
                    "Mean": tensor.mean().item(),
                    "Norm": tensor.norm().item(),
                    "requires_grad": False,
                    "data_name": name,
                }
                entry = data[side].setdefault(
                    f"Functional.silu.{call}.forward", {"input_args": [], "input_kwargs": {}, "output": []}
                )
                entry[section].append(leaf)  # type: ignore[index]
    files = []
    for side in ("target", "golden"):
        place = folder / side / "step0" / "rank0"
        head = {
            "task": "tensor",
            "level": "L1",
            "framework": "pytorch",
            "dump_data_dir": str(place / "dump_tensor_data"),
        }
        (place / "dump.json").write_text(json.dumps({**head, "data": data[side]}, indent=1))
        (place / "construct.json").write_text("{}")
        (place / "stack.json").write_text("{}")
        files.append(place / "dump.json")
    return files[0], files[1]


def compare(tool: list[str], pair: tuple[Path, Path], out: Path) -> Ran:
    shutil.rmtree(out, ignore_errors=True)
    paths = (
        ["-tp", str(pair[0]), "-gp", str(pair[1])]
        if "msprobe" in tool[0]
        else [str(pair[0]), str(pair[1]), "--no-cache"]
    )
    extra = [] if "msprobe" in tool[0] else ["--table", "csv"]
    return run([*tool, "compare", *paths, "-o", str(out), *extra], sample_memory=True, accept=(0, 1, 3))


def measured(
    name: str, tool: list[str], start: float, pair: tuple[Path, Path], out: Path, repeat: int
) -> tuple[float, float, float, float]:
    """Median seconds, the same without the tool's start, the processor time, and the largest memory in MB."""
    before = processor()
    runs = [compare(tool, pair, out) for _ in range(repeat)]
    cpu = (processor() - before) / repeat
    seconds = median(iter([r.seconds for r in runs]).__next__, repeat)
    peak = max(r.peak_uss or 0 for r in runs) / MB
    without = max(seconds - start, 0)
    print(
        f"  {name:10} {seconds:8.2f} s   {without:8.2f} s without its start   {cpu:8.2f} s CPU   {peak:8.0f} MB",
        flush=True,
    )
    return seconds, max(without, 1e-3), cpu, peak


def processor() -> float:
    """Processor time of all commands so far, with their descendants: beside other work it says more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--msprobe-venv", type=Path, help="venv with the released mindstudio-probe")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--curve", action="store_true", help="also 10,000 to 1,000,000 records a side, numprobe alone")
    asked = parser.parse_args()
    print(machine())
    tools = {"numprobe": [NUMPROBE]}
    starts = {"numprobe": median(lambda: run([NUMPROBE, "--version"]).seconds, 3)}
    if asked.msprobe_venv:
        tools["msProbe"] = [str(asked.msprobe_venv / "bin" / "msprobe")]
        starts["msProbe"] = median(lambda: run([*tools["msProbe"], "--help"]).seconds, 3)
    print("start: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in starts.items()))
    with tempfile.TemporaryDirectory(prefix="numprobe-bench-") as scratch:
        root = Path(scratch)
        cases = {
            f"statistics, {asked.records:,} records": lambda f: write_pair(f, asked.records),
            f"md5, {asked.records:,} records": lambda f: write_pair(f, asked.records, digests=True),
            f"tensor, {asked.gigabytes} GB a side": lambda f: write_tensors(f, asked.gigabytes),
        }
        for title, make in cases.items():
            folder = root / "pair"
            pair = make(folder)
            warm(folder)
            print(title)
            found = {
                name: measured(name, tool, starts[name], pair, root / "out", asked.repeat if name == "numprobe" else 1)
                for name, tool in tools.items()
            }
            if len(found) == 2:
                (a, b, c, d), (w, x, y, z) = found["numprobe"], found["msProbe"]
                print(
                    f"  {'ratio':10} {w / a:8.1f} x   {x / b:8.1f} x                       {y / c:8.1f} x       {d / z:8.2f} x"
                )
            shutil.rmtree(folder)
        for records in CURVE if asked.curve else ():
            pair = write_pair(root / "curve", records)
            print(f"{records:,} records")
            measured("numprobe", tools["numprobe"], starts["numprobe"], pair, root / "out", 1)
            shutil.rmtree(root / "curve")


if __name__ == "__main__":
    main()
