"""How often ``compare`` is right: bf16 against fp32 of three small decoders, clean and with one fault, over many seeds.

    python benchmarks/score_compare.py [--seeds 100] [--jobs 2]

Every seed draws the decoder, the layer that is faulty and the level of the dumps. Clean pairs must have no finding; a pair with
a fault exactly one finding of the right cause at the right place. Statistics alone cannot show swapped heads or one wrong element
in a large tensor: there these faults are not scored.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CASES = {  # fault -> modes in which it must be found
    "clean": ("statistics", "tensor", "digest"),
    "weight_scale": ("statistics", "tensor", "digest"),
    "softmax_scale": ("statistics", "tensor", "digest"),
    "nan": ("statistics", "tensor", "digest"),
    "swapped_heads": ("tensor", "digest"),
    "one_element": ("tensor", "digest"),
}
CAUSES = {
    "weight_scale": "parameter",
    "softmax_scale": "introduced",
    "nan": "nonfinite",
    "swapped_heads": "introduced",
    "one_element": "introduced",
}
PLACES = {
    "weight_scale": "up_proj",
    "softmax_scale": "self_attn",
    "swapped_heads": "self_attn",
    "nan": "mlp",
    "one_element": "mlp",
}


@dataclass(frozen=True)
class Outcome:
    seed: int
    case: str
    mode: str
    level: str
    shape: str
    right: bool
    said: str


def score_seed(seed: int) -> list[Outcome]:
    """All cases of one seed."""
    import torch

    from compare.models import SHAPES, dump

    torch.set_num_threads(1)
    draw = random.Random(seed)
    shape = draw.choice(list(SHAPES))
    layer = draw.randrange(SHAPES[shape].layers)
    level = draw.choices(["mix", "L0", "L1"], [6, 2, 2])[0]
    folder = Path(tempfile.mkdtemp(prefix="score-"))
    outcomes: list[Outcome] = []
    try:
        for mode, dtypes, config in (
            ("tensor", (torch.bfloat16, torch.float32), {"task": "tensor"}),
            ("digest", (torch.float32, torch.float32), {"summary_mode": "md5"}),
        ):
            golden = dump(folder / "golden", shape, dtypes[1], seed, level=level, **config)
            for case, modes in CASES.items():
                fault = "" if case == "clean" else case
                target = dump(folder / "target", shape, dtypes[0], seed, fault, layer, level=level, **config)
                for by in ("statistics", "tensor") if mode == "tensor" else ("digest",):
                    if by in modes:
                        right, said = judge(target, golden, by, case, layer, level)
                        outcomes.append(Outcome(seed, case, by, level, shape, right, said))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def judge(target: Path, golden: Path, by: str, case: str, layer: int, level: str) -> tuple[bool, str]:
    from numprobe.compare.run import CompareOptions, compare

    options = CompareOptions(by="auto" if by == "digest" else by, jobs=1, use_cache=False)
    result = compare(target, golden, options).result
    wrong = [f for f in result.findings if f.severity == "error"]
    said = "; ".join(f"{f.cause}/{f.reason} {f.op} {f.slot} {f.parameter}" for f in wrong[:3])
    if case == "clean":
        return not wrong and result.verdict == "pass", said or result.premise
    if len(wrong) != 1 or wrong[0].cause != CAUSES[case]:
        return False, said or f"nothing, {len(result.findings)} smaller"
    if level == "L1":  # no record says in which layer a call ran
        return True, said
    around = " ".join([wrong[0].op or "", *wrong[0].inside])
    return f"layers.{layer}." in around and PLACES[case] in around, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="list what was wrong")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        outcomes = [o for found in pool.map(score_seed, range(asked.first, asked.first + asked.seeds)) for o in found]
    right, total = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for o in outcomes:
        total[o.case, o.mode] += 1
        right[o.case, o.mode] += o.right
        if asked.verbose and not o.right:
            print(f"  seed {o.seed} {o.shape} {o.level} {o.case} {o.mode}: {o.said}")
    modes = ("statistics", "tensor", "digest")
    print(f"{'case':16}" + "".join(f"{m:>14}" for m in modes))
    for case in CASES:
        cells = [f"{right[case, m]}/{total[case, m]}" if total[case, m] else "-" for m in modes]
        print(f"{case:16}" + "".join(f"{c:>14}" for c in cells))
    print(f"all: {sum(right.values())} of {sum(total.values())} right")


if __name__ == "__main__":
    main()
