"""Pairs of a trainer and an engine: what is said to agree agrees element by element, and the truth is where they first do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from numprobe.synth.rl import SCENARIOS, Truth, simulate
from numprobe.synth.rl.model import Model, make_weights
from numprobe.synth.rl.side import Side
from numprobe.synth.rl.simulate import run

Leaf = dict[str, object]
CLEAN = [name for name in SCENARIOS if name.startswith("clean")]
ORDER = (
    "attn_norm",
    "qkv_a",
    "q_a_norm",
    "kv_a_norm",
    "q_b",
    "kv_b",
    "qkv",
    "core",
    "out",
    "mlp_norm",
    "gate_up",
    "act",
    "down",
)


def records(folder: Path, side: str) -> list[dict[str, dict[str, list[Leaf]]]]:
    """Of every rank."""
    found = sorted((folder / side / "step0").glob("rank*/dump.json"))
    return [json.loads(path.read_text())["data"] for path in found]


def norm(ranks: list[dict[str, dict[str, list[Leaf]]]], names: list[str], role: str) -> float:
    """Of the first slot of a role, over the parts of it: those of a split module, and ranks whose parts are not the same."""
    total = 0.0
    for name in names:
        each = [record[name][role] for record in ranks]
        leaves = [next(iter(one.values())) if isinstance(one, dict) else one[0] for one in each]
        norms = [float(str(leaf["Norm"])) for leaf in leaves]
        same = len({json.dumps(leaf["Norm"]) for leaf in leaves}) == 1 and role != "parameters"
        total += norms[0] ** 2 if same else sum(n * n for n in norms)
    return float(np.sqrt(total))


def apart(folder: Path, truth: Truth, place: str, role: str) -> float:
    names = truth.places[place]
    one, other = (norm(records(folder, side), names[side], role) for side in ("train", "rollout"))
    return abs(one - other) / max(one, other)


def fine_pair(scenario: str, folder: Path, layers: int | None = None) -> tuple[Path, Truth]:
    """A pair that shows what is wrong: figures are not rounded to the dtype of their tensors, norms are modules."""
    for seed in range(1, 100):
        truth = simulate(scenario, folder / f"{seed}", seed=seed, layers=layers)
        sides = [truth.settings[side] for side in ("train", "rollout")]
        odd = any(word in str(side) for side in sides for word in ("short_figures", "fused_norm"))
        if not odd and len(truth.verdicts) == 1:
            return folder / f"{seed}", truth
    raise AssertionError(scenario)


@pytest.mark.parametrize("scenario", CLEAN)
def test_clean_pairs_agree_everywhere(scenario: str, tmp_path: Path) -> None:
    tmp_path, truth = fine_pair(scenario, tmp_path, 3)
    assert truth.verdicts == ("no_difference",)
    both = [place for place, names in truth.places.items() if names["train"] and names["rollout"]]
    assert {"embed", "norm", "layers.0.out", "layers.2.down"} <= set(both)
    for place in both:
        if place != "head" and not place.endswith("act"):  # of the last token only; of the gate or of the product
            assert apart(tmp_path, truth, place, "output") < 0.01, place


@pytest.mark.parametrize("latent", [False, True])
def test_layouts_hold_the_same_elements(latent: bool, tmp_path: Path) -> None:
    """Rows of the grouped ``linear_qkv`` are those of the stacked ``qkv_proj``; layers give the same, element by element."""
    seeds = (s for s in range(40) if _model(tmp_path / f"{s}", s)["latent"] == latent)
    folder = tmp_path / f"{next(seeds)}"
    settings = json.loads((folder / "truth.json").read_text())["settings"]
    model, tolerance = settings["model"], 0.05
    ends = {"train": "embedding.word_embeddings.VocabParallelEmbedding.forward.0.output.0.npy"}
    paths = {side: folder / side / "step0" / "rank0" / "dump_tensor_data" for side in ("train", "rollout")}
    found = {side: {p.name: p for p in path.iterdir()} for side, path in paths.items()}
    call = next(n for n in found["rollout"] if n.startswith("Module.model.norm.AscendRMSNorm.forward")).split(".")[5]
    call = "1" if settings["rollout"].get("warm_up") else call
    one = _load(found["train"]["Module.module.module.decoder.final_layernorm.RMSNorm.forward.0.output.0.npy"])
    other = _load(found["rollout"][f"Module.model.norm.AscendRMSNorm.forward.{call}.output.0.npy"])
    assert ends["train"]
    assert one.shape == (model["tokens"], 1, model["hidden"])
    assert np.linalg.norm(one[:, 0] - other) < tolerance * np.linalg.norm(other)
    if not latent:
        grouped = _load(
            next(
                p
                for n, p in found["train"].items()
                if "layers.0.self_attention.linear_qkv" in n and n.endswith("parameters.weight.npy")
            )
        )
        stacked = _load(
            next(
                p
                for n, p in found["rollout"].items()
                if "layers.0.self_attn.qkv_proj" in n and n.endswith("parameters.weight.npy")
            )
        )
        head, groups = model["hidden"] // model["heads"], model["groups"]
        first_key = grouped.reshape(groups, -1, head, model["hidden"])[:, -2].reshape(-1, model["hidden"])
        assert np.array_equal(first_key, stacked[model["hidden"] : model["hidden"] + groups * head])


def _model(folder: Path, seed: int) -> dict[str, object]:
    simulate("clean", folder, seed=seed, tensors=True, layers=2)
    model: dict[str, object] = json.loads((folder / "truth.json").read_text())["settings"]["model"]
    return model


def _load(path: Path) -> np.ndarray:
    x = np.load(path)
    return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if x.dtype.kind == "V" else x


STEPPED = [name for name in SCENARIOS if name.startswith(("steps", "decode"))]
FAULTS = [n for n in SCENARIOS if n not in (*CLEAN, *STEPPED, "prompt_shifted", "embedding_nan", "activation_hidden")]


@pytest.mark.parametrize("scenario", FAULTS)
def test_the_truth_is_where_the_sides_part(scenario: str, tmp_path: Path) -> None:
    """Its inputs, weights or outputs are the first whose figures differ: the order of rows shows behind it."""
    tmp_path, truth = fine_pair(scenario, tmp_path)
    where = truth.figures.places[0]
    layer = int(where.split(".")[1]) if "." in where else -1
    before = [f"layers.{i}.{role}" for i in range(max(layer, 0)) for role in ORDER]
    before += (
        [f"layers.{layer}.{role}" for role in ORDER[: ORDER.index(where.rsplit(".", 1)[-1])]] if layer >= 0 else []
    )
    known = [p for p in before if truth.places.get(p, {}).get("train") and truth.places[p]["rollout"]]
    clean = max((apart(tmp_path, truth, p, "output") for p in known if p not in truth.figures.places), default=0.0)
    roles = ("parameters",) if truth.figures.classes == ("parameter_difference",) else ("output",)
    if where.endswith("down"):
        roles = ("input_args",)
    places = [p for p in truth.figures.places if truth.places.get(p, {}).get("train") and truth.places[p]["rollout"]]
    fault = max(apart(tmp_path, truth, p, role) for p in places for role in roles)
    assert clean < 0.006, clean
    assert fault > 3 * max(clean, 1e-4), (fault, clean)


@pytest.mark.parametrize("latent", [False, True])
def test_steps_compute_what_one_call_computes(latent: bool) -> None:
    """Of an engine that keeps keys and values: the same elements, token by token."""
    model = Model(layers=2, tokens=11, latent=latent)
    weights, ids = make_weights(model, np.random.default_rng(3)), np.arange(40, 52)
    whole, stepped = (
        run(model, Side("engine", dtype="fp32", world=2, steps=steps), weights, ids, "", tensors=True)
        for steps in ((), (5, 3, 1, 1, 1))
    )
    for place in ("embed", "layers.0.core", "layers.1.out", "layers.1.down", "norm"):
        (name,), names = whole.places[place], stepped.places[place]
        assert len(names) == 5
        for rank in range(2):
            wanted = whole._files[rank][f"{name}.output.0.npy"]
            found = np.concatenate([stepped._files[rank][f"{n}.output.0.npy"] for n in names])
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simulate("activation_tp2", tmp_path / name, seed=5, tensors=True)
    one, other = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in "ab"
    )
    assert one == other
    assert len(one) > 100
