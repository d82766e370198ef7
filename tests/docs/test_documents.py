"""The documents lead somewhere: links, anchors, commands and options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from numprobe.cli.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """Anchors of the headings as code hosts make them."""
    heads = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{document.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{document.name}: {target}"


def commands(document: Path) -> list[list[str]]:
    """The ``numprobe ...`` lines of the shell blocks, comments off."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", document.read_text(encoding="utf-8"), re.S):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "numprobe":
                found.append(words[1:])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_commands_and_options_exist(document: Path) -> None:
    group = typer.main.get_command(app)
    for words in commands(document):
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        if sub := getattr(command, "commands", {}):
            command = sub[words[1]]
        if command.context_settings.get("ignore_unknown_options"):  # skills run: its options are those of the skill
            continue
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for word in words[1:]:
            if word.startswith("-"):
                assert word.split("=")[0] in known, f"{document.name}: numprobe {' '.join(words)}"


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = (commands(ROOT / name) for name in ("README.md", "README.zh.md"))
    strip = [[w for w in words if w not in ("--lang", "zh")] for words in english]
    assert [[w for w in words if w not in ("--lang", "zh")] for words in chinese] == strip


def test_the_options_of_nan_are_all_documented() -> None:
    command = typer.main.get_command(app).commands["nan"]  # type: ignore[attr-defined]
    text = (ROOT / "docs" / "nan.md").read_text(encoding="utf-8")
    for parameter in command.params:
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
            assert any(name in text for name in parameter.opts), parameter.opts


def test_the_example_finds_the_fault(tmp_path: Path) -> None:
    script = ROOT / "examples" / "nan_root_cause.py"
    ran = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=True)
    found = re.search(r"^overflow_found: ranks (\[\d+\]), (\S+), kernel_fault", ran.stdout, re.M)
    truth = re.search(r"^the truth: ranks (\[\d+\]), (\S+)", ran.stdout, re.M)
    assert found
    assert truth
    assert found.groups() == truth.groups()


def test_every_error_code_is_documented() -> None:
    source = "".join(f.read_text(encoding="utf-8") for f in (ROOT / "src").rglob("*.py"))
    raised = set(re.findall(r'"(E-[A-Z]{3}-\d{3})"', source))
    documented = set(
        re.findall(r"^\| (E-[A-Z]{3}-\d{3}) \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M)
    )
    assert raised == documented
