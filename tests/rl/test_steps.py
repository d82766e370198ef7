"""Chunks of prompts and steps of one token, joined to a forward pass over whole sequences by token ids and positions."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from numprobe.align.roles.steps import follow
from numprobe.cli.app import app
from numprobe.cli.common import guarded
from numprobe.diagnose.rl_consistency.result import RlResult
from numprobe.diagnose.rl_consistency.skill import RlOptions, analyse
from numprobe.synth.rl import Truth, simulate

Token = tuple[int, int]  # request, position


def schedule(draw: Random, lengths: list[int]) -> list[list[Token]]:
    """The calls of an engine: prompts in chunks, then a token each, requests coming and going, the batch in any order."""
    done, calls = [0] * len(lengths), []
    running: list[int] = []
    coming = list(range(len(lengths)))
    while coming or running:
        if coming and (not running or draw.random() < 0.5):
            running.insert(draw.randint(0, len(running)), coming.pop(0))
        call = []
        for request in running:
            prompt = lengths[request] // 2
            count = min(draw.randint(1, 6), prompt - done[request]) if done[request] < prompt else 1
            call += [(request, done[request] + n) for n in range(count)]
            done[request] += count
        calls.append(call)
        ended = [r for r in running if done[r] >= lengths[r]]
        for request in ended:  # the last one takes the place of one that has ended
            at, last = running.index(request), running.pop()
            if last != request:
                running[at] = last
    return calls


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("samples", [1, 4])
def test_every_token_is_found(seed: int, samples: int) -> None:
    """Also where several answers to one prompt are computed at once, as group-relative training has them."""
    draw = Random(seed)
    groups = [[draw.randrange(30_000) for _ in range(draw.randint(3, 15))] for _ in range(3)]
    train = [[*group, *(draw.randrange(30_000) for _ in range(len(group)))] for group in groups for _ in range(samples)]
    lengths = [len(s) - 1 for s in train]  # what is sampled last goes through no layer
    calls = schedule(draw, lengths)
    order = draw.sample(range(len(train)), len(train))  # training has the sequences in another order
    sequences = [np.array(train[r]) for r in order]
    firsts = np.cumsum([0, *map(len, sequences)])[:-1].tolist()
    flat = [token for call in calls for token in call]
    ids = np.array([train[r][p] for r, p in flat])
    found = follow(sequences, firsts, ids, np.array([p for _, p in flat]), [len(call) for call in calls])
    assert found is not None
    kept, at = found
    assert len(kept) == sum(lengths) == len(set(at.tolist()))
    assert (np.diff(kept) > 0).all()
    assert (np.concatenate(sequences)[kept] == ids[at]).all()
    where = {first + n: n for first, s in zip(firsts, sequences, strict=True) for n in range(len(s))}
    assert [where[k] for k in kept.tolist()] == [flat[a][1] for a in at.tolist()]
    owner = {first + n: r for r, first, s in zip(order, firsts, sequences, strict=True) for n in range(len(s))}
    swapped = {(owner[k], flat[a][0]) for k, a in zip(kept.tolist(), at.tolist(), strict=True)}
    for one, other in swapped:  # the request itself, or while two have read the same, either of them
        assert one == other or groups[one // samples] == groups[other // samples]
    assert len({one for one, _ in swapped}) == len(train)


def test_without_positions_calls_follow_each_other() -> None:
    one, other = np.array([5, 6, 7, 8, 9]), np.array([5, 6, 1, 2])
    ids = np.array([0, 0, 0, 5, 6, 7, 8, 5, 6, 1])  # a warm-up, then a request after the other
    found = follow([one, other], [0, 5], ids, None, [3, 3, 1, 2, 1])
    assert found is not None
    assert found[0].tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert found[1].tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "ids",
    [[1, 40, 41, 42, 43, 44], [3, 4, 5, 6, 7, 8], [9, 9, 9, 9, 9, 9]],
    ids=["only the first token", "shifted", "others"],
)
@pytest.mark.parametrize("positions", [True, False])
def test_other_tokens_are_not_joined(ids: list[int], positions: bool) -> None:
    train = np.array([1, 3, 4, 5, 6, 7, 8])
    told = np.arange(6) if positions else None
    assert follow([train], [0], np.array(ids), told, [4, 1, 1]) is None


def analysed(folder: Path) -> RlResult:
    return analyse(folder / "train", folder / "rollout", RlOptions(use_cache=False))


def tokens_of(truth: Truth) -> tuple[int, int]:
    model, rollout = truth.settings["model"], truth.settings["rollout"]
    assert isinstance(model, dict)
    assert isinstance(rollout, dict)
    return model["tokens"], sum(rollout["steps"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("scenario", ["steps_clean", "decode_clean", "decode_activation", "decode_weight"])
def test_steps_are_compared_element_by_element(tmp_path: Path, scenario: str, seed: int) -> None:
    truth = simulate(scenario, tmp_path, seed=seed, tensors=True)
    result = analysed(tmp_path)
    assert result.verdict in truth.verdicts
    classes = [f.clazz for f in result.findings]
    assert classes == list(truth.tensors.classes)
    assert result.coverage > 0.9
    places = {name for place in truth.tensors.places for side in truth.places[place].values() for name in side}
    for f in result.findings:
        assert {f.suspect.train, f.suspect.rollout} - {None} <= places
    train, rollout = tokens_of(truth)
    assert result.steps is not None
    assert (result.steps.train_tokens, result.steps.rollout_tokens, result.steps.tokens) == (train, rollout, rollout)
    assert result.steps.train_calls == 1
    embed = next(pair for pair in result.mapping if pair.place == "embed")
    assert result.steps.rollout_calls == len(embed.rollout) >= 3
    assert result.tensors == result.counts["pass"] + result.counts["warning"] + result.counts["error"]


@pytest.mark.parametrize("seed", range(4))
def test_figures_join_where_sizes_add_up(tmp_path: Path, seed: int) -> None:
    simulate("steps_clean", tmp_path, seed=seed)
    result = analysed(tmp_path)
    assert result.verdict == "no_difference"
    assert result.steps is not None
    assert (result.steps.tokens, result.steps.rollout_calls >= 3) == (None, True)


@pytest.mark.parametrize("scenario", ["decode_clean", "decode_activation"])
def test_figures_cannot_be_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    """It is said, with what to do, and nobody is blamed."""
    simulate(scenario, tmp_path / "pair", seed=2)
    result = analysed(tmp_path / "pair")
    assert (result.verdict, result.reason, result.findings, result.steps) == ("premise_broken", "steps", [], None)
    for lang, words in (("en", ("task tensor", "without its last token")), ("zh", ("task tensor", "逐 token"))):
        command = ["rl", str(tmp_path / "pair" / "train"), str(tmp_path / "pair" / "rollout"), "--no-cache"]
        out = tmp_path / lang
        assert guarded(lambda c=command, o=out, s=lang, **k: app([*c, "-o", str(o), "--lang", s], **k)) == 3
        told = [capsys.readouterr().out, (out / "report.md").read_text(), (out / "report.html").read_text()]
        for text in told:
            assert all(word in text.replace("\u2060", "") for word in words)


def test_the_figures_are_of_the_tokens_that_are_compared(tmp_path: Path) -> None:
    """Not of the whole tensor of training, whose last token the engine never saw."""
    simulate("decode_activation", tmp_path, seed=1, tensors=True)
    (found,) = analysed(tmp_path).findings
    anchor = next(f for f in found.anchor_figures if f.slot == "output.0")
    for one, other in zip(anchor.train, anchor.rollout, strict=True):
        assert one == pytest.approx(other, rel=0.02, abs=1e-3)
    data = json.loads(next((tmp_path / "train").rglob("dump.json")).read_text())["data"]
    assert found.anchor is not None
    recorded = data[found.anchor.train]["output"][0]
    assert anchor.train[3] is not None
    assert anchor.train[3] < recorded["Norm"]


def test_the_result_and_the_pages_say_what_was_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = simulate("decode_clean", tmp_path / "pair", seed=3, tensors=True)
    train, rollout = tokens_of(truth)
    command = ["rl", str(tmp_path / "pair" / "train"), str(tmp_path / "pair" / "rollout"), "--no-cache", "-o"]
    assert guarded(lambda **k: app([*command, str(tmp_path / "a")], **k)) == 0
    wanted = f"{rollout} of {train} tokens of training and {rollout} of rollout are in both"
    told = [capsys.readouterr().out, (tmp_path / "a" / "report.md").read_text()]
    told.append((tmp_path / "a" / "report.html").read_text())
    assert all(wanted in " ".join(text.split()) for text in told)
    assert guarded(lambda **k: app([*command, str(tmp_path / "b"), "--json"], **k)) == 0
    assert json.loads(capsys.readouterr().out)["steps"]["tokens"] == rollout
