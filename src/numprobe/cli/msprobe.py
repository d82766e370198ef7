"""msProbe's command lines, so that an old one works with ``numprobe`` in the place of ``msprobe``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numprobe.record.errors import NumprobeError

# spelling of msProbe -> ours
_SAME = {
    "--output_path": "--out",
    "--data_mapping": "--data-mapping",
    "--cell_mapping": "--cell-mapping",
    "--api_mapping": "--api-mapping",
    "--layer_mapping": "--layer-mapping",
    "--diff_analyze": "--first-diff",
}
_SIDES = {"-tp": 0, "--target_path": 0, "-gp": 1, "--golden_path": 1}
_NOTHING_TO_DO = ("-fm", "--fuzzy_match", "-tensor_log", "--is_print_compare_log")  # calls are always aligned so
_VALUE_IF_BARE = {
    **dict.fromkeys(("-cm", "--cell-mapping", "-am", "--api-mapping", "-lm", "--layer-mapping"), "default"),
    **dict.fromkeys(("-o", "--out"), "./output"),
}
_OTHER_MODES = (
    *("-fr", "--fusion_rule_file", "-qfr", "--quant_fusion_rule_file", "-cfr", "--close_fusion_rule_file"),
    *("--input_data", "--input_shape", "--output_size", "--dym_shape_range", "-ofs", "--onnx_fusion_switch"),
)

_TRAINING = ("--consistent_check", "--backend")
_WITH_VALUE = frozenset((*_SAME, *_SIDES, *_VALUE_IF_BARE, *_OTHER_MODES, *_TRAINING, "-m", "--mode"))


def compare_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of ``compare`` as numprobe spells them.

    ``-tp`` and ``-gp`` become TARGET and GOLDEN, and what they bring with them is ``--compat msprobe``.

    Raises:
        NumprobeError: E-USE-010 an option that numprobe does not have, E-USE-011 only one of the two sides.
    """
    words = list(_split(args))
    sides: list[str | None] = [None, None]
    ours: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            ours += [word, *words]
            break
        word = _SAME.get(word, word)
        following = words[0] if words and not words[0].startswith("-") else None
        if word in _SIDES:
            if following is None:
                raise _side_missing(word)
            sides[_SIDES[word]] = words.pop(0)
        elif word in ("-m", "--mode"):
            _check_mode(words.pop(0) if following is not None else "")
        elif word in (*_OTHER_MODES, *_TRAINING):
            raise _unsupported(word)
        elif word not in _NOTHING_TO_DO:
            ours.append(word)
            if word in _VALUE_IF_BARE and following is None:
                ours.append(_VALUE_IF_BARE[word])
            elif word in _VALUE_IF_BARE:
                ours.append(words.pop(0))
    target, golden = sides
    if target is None and golden is None:
        return ours
    if target is None or golden is None:
        raise _side_missing("-tp" if target is None else "-gp")
    return [target, golden, "--compat", "msprobe", *ours]


def _split(args: Sequence[str]) -> Iterator[str]:
    """``--target_path=value`` as two words, for the options that are looked at here."""
    for arg in args:
        option, equals, value = arg.partition("=")
        if equals and option in _WITH_VALUE:
            yield from (option, value)
        else:
            yield arg


def _check_mode(mode: str) -> None:
    if mode != "auto":
        raise NumprobeError(
            "E-USE-010",
            "--mode {mode}: numprobe does not compare this kind of data",
            do="use msprobe for it; numprobe compares dumps of programs: dump.json and debug.json",
            mode=mode,
        )


def _unsupported(option: str) -> NumprobeError:
    if option in _TRAINING:
        return NumprobeError(
            "E-USE-010",
            "{option}: compare does not put the modules of a training and an inference framework together",
            do="leave it out for two runs of one framework; use msprobe for this comparison",
            option=option,
        )
    return NumprobeError(
        "E-USE-010",
        "{option} belongs to a mode of msprobe that numprobe does not have",
        do="use msprobe for it; numprobe compares dumps of programs: dump.json and debug.json",
        option=option,
    )


def _side_missing(option: str) -> NumprobeError:
    return NumprobeError(
        "E-USE-011",
        "{option} has no path",
        do="write -tp TARGET -gp GOLDEN, or just TARGET GOLDEN",
        option=option,
    )
