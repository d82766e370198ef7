"""What a sentence says: its language, the paths in it, ranks, steps, and the words that are left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from numprobe.record.errors import NumprobeError
from numprobe.record.ranges import parse_ranges

_HAN = re.compile(r"[\u3400-\u9fff]")
LONGEST = 20_000  # characters of a sentence; what is more is a log, and every word of it is looked at for a path
_QUOTED = re.compile(  # no opening mark inside: a row of them would be read to the end for each one
    r"\"([^\"\n]+)\"|'([^'\n]+)'|`([^`\n]+)`|“([^“”\n]+)”|‘([^‘’\n]+)’|「([^「」\n]+)」|《([^《》\n]+)》"
)
_RUN = re.compile(r"(?:[A-Za-z]:[\\/])?[^\s\"'`“”‘’「」《》（）()，。；：？！、,;?!|<>]+")
_ASCII_RUN = re.compile(r"[A-Za-z0-9_.~/\\:@%+=#-]+")
_START = re.compile(r"(?:[A-Za-z]:[\\/]|~?/|\.{1,2}/|[A-Za-z0-9_.-]+[/\\])")
_TRAILING = ".,:;!?"
_MOST_ENTRIES = 10_000  # of a folder that an ordinary word names
_LONGEST_RUN = 160  # characters without a space in which paths are looked for inside of Chinese text
# words with a slash that name two sides or two kinds, no folder
_PAIRS = re.compile(
    r"(?:train(?:ing)?|rollout|infer(?:ence)?|nan|[+-]?inf|overflow|forward|backward|fwd|bwd|fp32|fp16|bf16|fp8|float32|float16"
    r"|bfloat16|tp|pp|dp|ep|cp|sp|gpu|npu|cpu|cuda|and|or|md5|crc32|loss|grad|input|output|target|golden|max|min|mean|norm"
    r"|megatron|fsdp|vllm|sglang|verl|msprobe|q|k|v|gate|up|down|yes|no|on|off|n|a)",
    re.IGNORECASE,
)
_DIGITS = r"(?<![0-9])[0-9]{1,18}(?![0-9])"  # a whole number; what has more digits is none that counts anything
_AND = r"(?:[,、和与及]|\band\b|&)"
_ONE = rf"{_DIGITS}(?:\s*[-~到至]\s*{_DIGITS})?"
_RANGE = rf"({_ONE}(?:\s*{_AND}\s*(?:ranks?\s*)?{_ONE}){{0,99}})"
_RANKS = (
    re.compile(rf"\branks?\s*[:=#]?\s*{_RANGE}", re.IGNORECASE),
    re.compile(rf"{_RANGE}\s*号?\s*(?:卡|rank)(?!\s*[0-9训])", re.IGNORECASE),
    re.compile(rf"卡\s*{_RANGE}"),
)
# how many there are: "64 卡跑", "8 卡 loss"; which one is "8 号卡", or "8 卡" with a word that speaks of it
_COUNT = re.compile(
    rf"{_DIGITS}\s*张?卡(?!\s*(?:的(?!训练|任务)|上(?!训)|[是有为出报先呢吗?？,，。]|$))|{_DIGITS}[- ](?:rank|card|gpu|npu)s?\b",
    re.IGNORECASE,
)
_STEPS = (
    re.compile(rf"\bsteps?\s*[:=#]?\s*{_RANGE}", re.IGNORECASE),
    re.compile(rf"第\s*{_RANGE}\s*(?:个\s*)?(?:步|step|迭代)", re.IGNORECASE),
)


@dataclass(frozen=True)
class Sentence:
    """A sentence taken apart. ``rest`` is the text with every path replaced by ``\ufffc``, ``words`` the same in lower case.

    ``places`` are the positions of the paths in ``words``, in their order; of paths given apart from the sentence there is none.
    """

    text: str
    lang: str
    rest: str
    paths: tuple[str, ...]
    places: tuple[int, ...]
    ranks: str = ""
    steps: str = ""

    @property
    def words(self) -> str:
        return self.rest.lower()


def language_of(text: str) -> str:
    """zh where a Han character stands outside of what is quoted as a path, else en."""
    return "zh" if _HAN.search(text) else "en"


def read_sentence(text: str, paths: Sequence[str] = ()) -> Sentence:
    """Take a sentence apart. ``paths`` are those given as arguments of their own; they come first.

    Raises:
        NumprobeError: E-AGT-011 it is longer than :data:`LONGEST`.
    """
    if len(text) > LONGEST:
        raise NumprobeError(
            "E-AGT-011",
            "a sentence of {length} characters is too long",
            do="say it in one sentence, of {most} characters at most; what lies in files is named by its path",
            length=len(text),
            most=LONGEST,
        )
    found = _paths_in(text, given=bool(paths))
    rest, places, at = "", [], 0
    for start, end, _ in found:
        rest += text[at:start]
        places.append(len(rest))
        rest += "\ufffc"
        at = end
    rest += text[at:]
    words = rest.lower()
    inside = [path for _, _, path in found]
    together = (*paths, *(p for p in inside if p not in paths))
    if paths:
        places = []
    return Sentence(
        text,
        language_of(words) if words.strip("\ufffc \t") else language_of(text),
        rest,
        together,
        tuple(places),
        _numbers(words, _RANKS),
        _numbers(words, _STEPS),
    )


def _paths_in(text: str, *, given: bool) -> list[tuple[int, int, str]]:
    """Start, end and path: what is quoted and looks like one or exists; then runs of characters.

    An ordinary word that is the name of a folder here too (``dump``) counts where there is no other path; ``given``: there is.
    """
    taken: list[tuple[int, int, str]] = []
    for quoted in _QUOTED.finditer(text):
        inner = next(group for group in quoted.groups() if group is not None)
        if there(inner) or (_path_like(inner) and " " not in inner.strip()):
            taken.append((quoted.start(), quoted.end(), inner))
    words: list[tuple[int, int, str]] = []
    known: dict[str, list[tuple[int, str]]] = {}  # a word that is said often is looked up once
    for run in _RUN.finditer(text):
        if any(start < run.end() and run.start() < end for start, end, _ in taken):
            continue
        if run.group() not in known:
            known[run.group()] = list(_paths_in_run(run.group()))
        for start, path in known[run.group()]:
            place = (run.start() + start, run.start() + start + len(path), path)
            (taken if re.search(r"[/\\.]", path) else words).append(place)
    ordinary = [word for word in words if re.fullmatch(r"[a-z]+|[\u3400-\u9fff]+", word[2])]
    if given or taken or len(ordinary) < len(words):
        words = [word for word in words if word not in ordinary]
    else:
        words = list({word[2]: word for word in words}.values())  # "dump in dump": once
    return sorted([*taken, *words])


def _paths_in_run(run: str) -> Iterator[tuple[int, str]]:
    """Paths in text without spaces, which in Chinese may be a whole clause: ``训练在rl/train里，推理在rl/rollout``."""
    if len(run) > _LONGEST_RUN or not (_HAN.search(run) and re.search(r"[/\\~.]", run)):
        bare = run.rstrip(_TRAILING)
        if _is_bare(bare) or _whole(bare):
            yield 0, bare
        elif not _HAN.search(run):
            return
    begin = 0
    if _HAN.search(run) and re.search(r"[/\\~.]", run) and len(run) <= _LONGEST_RUN:
        while begin < len(run):
            longest = _longest_existing(run, begin)
            if longest:
                yield begin, longest
                begin += len(longest)
                continue
            part = _ASCII_RUN.match(run, begin) if begin == 0 or not _ASCII_RUN.match(run[begin - 1]) else None
            bare = part.group().rstrip(_TRAILING) if part else ""
            if _path_like(bare):  # nothing of it exists, but it reads like a path
                yield begin, bare
                begin += len(bare)
            else:
                begin += 1


def _whole(text: str) -> bool:
    return (bool(_START.match(text)) and there(text)) or _path_like(text)


def _longest_existing(run: str, begin: int) -> str:
    """The longest path from here on that exists, has more than one part or an extension, and ends where a path may end."""
    before = run[begin - 1] if begin else ""
    if re.match(r"[A-Za-z0-9_./\\~-]", before):
        return ""
    for end in range(len(run), begin, -1):
        part = run[begin:end]
        after = run[end : end + 1]
        if part[-1] in _TRAILING + "/\\" or re.match(r"[A-Za-z0-9_-]", after):
            continue
        if re.search(r"[/\\]", part) and not (
            after in ("/", "\\") and after and run[end + 1 : end + 2].isascii() and run[end + 1 : end + 2]
        ):
            if there(part):
                return part
        elif "." in part and _is_bare(part):
            return part
    return ""


def _is_bare(word: str) -> bool:
    """A single word that names a folder or a file with an extension here: ``dump``, ``result.csv``; never a number."""
    if len(word) < 2 or word.isdecimal() or word.startswith("-") or not there(word):
        return False
    place = Path(word)
    return place.is_file() if "." in word.strip(".") else place.is_dir() and _holds_data(place)


def _holds_data(folder: Path) -> bool:
    """A folder of this name may be meant by an ordinary word: only where it holds what numprobe reads."""
    try:
        names = {entry.name for entry in islice(folder.iterdir(), _MOST_ENTRIES)}
    except OSError:
        return False
    return any(re.fullmatch(r"(?:step|rank|proc)_?[0-9]*|(?:dump|run|debug)\.json", name) for name in names) or any(
        (folder / name / inner).exists() for name in list(names)[:16] for inner in ("step0", "rank0", "dump.json")
    )


def _path_like(text: str) -> bool:
    """Does it read like a path, though nothing is there? ``train/rollout`` does not, ``dump/step0`` does."""
    if re.match(r"https?:", text):
        return False
    if re.match(r"(?:[A-Za-z]:[\\/]|~/|\.{1,2}/|/[^/\s]+)", text):
        return True
    parts = [p for p in re.split(r"[/\\]", text) if p]
    if len(parts) < 2:
        return bool(re.fullmatch(r"[\w.-]+\.(?:json|csv|xlsx|pt|npy|db)", text))
    return not all(_PAIRS.fullmatch(p) for p in parts) and not all(re.fullmatch(r"[0-9.]+", p) for p in parts)


def there(path: str) -> bool:
    """Does something lie at a path? Of what can be no path: no."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _numbers(words: str, patterns: Sequence[re.Pattern[str]]) -> str:
    """Ranges as options take them (``0,3,8-15``), or nothing. ``512 卡训练`` says how many there are, not which."""
    counted = _COUNT.sub(" ", words)
    for pattern in patterns:
        found = pattern.search(counted)
        if found:
            text = re.sub(r"\s+", "", found.group(1))
            text = re.sub(rf"{_AND}(?:ranks?)?|and(?:ranks?)?", ",", re.sub("[~到至]", "-", text), flags=re.IGNORECASE)
            try:
                parse_ranges(text, "")
            except NumprobeError:
                continue
            return text
    return ""
