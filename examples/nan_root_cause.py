"""The NaN skill from Python: simulate a small job with a known fault, find it, read the answer.

python examples/nan_root_cause.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from numprobe.diagnose import nan_overflow
from numprobe.synth.nan import simulate


def main(folder: Path) -> None:
    dump, out = folder / "dump", folder / "report"
    truth = simulate("grouped_matmul_nan", dump, seed=3)  # 16 ranks: msProbe's files, one faulty kernel

    found = nan_overflow.run(dump, out=out)

    first = found.first
    assert first is not None
    print(f"{found.verdict}: ranks {found.source_ranks}, {first.op_name}, {found.clazz}, {found.confidence:.2f}")
    for slot in first.slots:
        if slot.shape is not None:
            print(f"  {slot.slot}  {list(slot.shape)}  Max {slot.max}  Min {slot.min}  {slot.state}")
    for term in first.terms:
        print(f"  {term.value:+.2f}  {term.message.key}")
    print(f"the truth: ranks {list(truth.source_ranks)}, {truth.first_op}")
    print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
