"""A model's Markdown on a terminal: drawn, whole, and unable to drive it."""

from __future__ import annotations

import re
import sys
from io import StringIO

import pytest

from numprobe.cli.spoken import Spoken, finished
from numprobe.report.terminal import Style

TEXT = """Rank **6** made it, not <tensor> & co.

| rank | Max |
|---|---:|
| 6 | NaN |
| 17 | 0.018 |

1. one
2. [two](http://else.where/x)

```
code | here

still code
```

last \x1b]0;title\x07 \u202eline"""


class Screen:
    """What a terminal shows of lines that are drawn anew: cursor up and erase are all that rich uses."""

    def __init__(self, text: str) -> None:
        self.lines, self.at = [""], 0
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
            if part == "\n":
                self.at += 1
                self.lines += [""] * (self.at + 1 - len(self.lines))
            elif part == "\r":
                self.column = 0
            elif part.endswith("A") and part.startswith("\x1b["):
                self.at -= int(part[2:-1] or 1)
            elif part == "\x1b[2K":
                self.lines[self.at] = ""
            elif not part.startswith("\x1b["):
                self.lines[self.at] += part


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_pieces_of_any_size_are_drawn_as_the_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := StringIO())
    spoken = Spoken(Style(live=True, width=60))
    for begin in range(0, len(TEXT), size):
        spoken.say(TEXT[begin : begin + size])
    spoken.stop()
    lines = [line.rstrip() for line in Screen(out.getvalue()).lines]
    text = "\n".join(lines)
    assert "Rank 6 made it, not <tensor> & co." in lines
    assert [line.split() for line in lines if "NaN" in line or "0.018" in line] == [["6", "NaN"], ["17", "0.018"]]
    assert "|" not in text.replace("code | here", "")
    assert "http://else.where/x" in text
    assert text.count("still code") == text.count("made it") == 1
    assert "\x1b" not in text
    assert "\\x1b]0;title\\x07 \\u202eline" in text


def test_nothing_is_said_twice_and_what_follows_a_tool_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := StringIO())
    spoken = Spoken(Style(live=True, width=60))
    spoken.say("a remark")
    spoken.stop()
    spoken.stop()
    print("a tool")
    spoken.say("the answer")
    spoken.stop()
    shown = [line.strip() for line in Screen(out.getvalue()).lines if line.strip()]
    assert shown == ["a remark", "a tool", "the answer"]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("a\nb", ""),
        ("a\n\nb", "a\n\n"),
        ("a\n\n\n", "a\n\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("~~~~\n```\n\n~~~\n\n~~~~\n\nc", "~~~~\n```\n\n~~~\n\n~~~~\n\n"),
        ("a\n ", ""),
    ],
)
def test_blocks_end_at_blank_lines_outside_of_code(text: str, whole: str) -> None:
    assert text[: finished(text)] == whole
