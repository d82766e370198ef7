"""Record the two cases of ``numprobe demo`` in ``numprobe chat``, in Chinese and English, as a terminal shows them.

``python benchmarks/record_chat.py DEMO DEMO_RL OUT`` writes ``OUT/<case>_<lang>.txt``: what tmux has on a screen of 80 columns,
with what had scrolled away. Needs tmux. The time from the sentence to the first progress is measured, and must be below 1 s.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS, ROWS = 80, 40
LONGEST = 180.0  # seconds that an answer may take
CASES = {
    "nan_en": (
        "en",
        [
            "loss is NaN on the first step of 512 ranks, dump in demo/first_step_nan",
            "why not rank 40?",
            "show npu_grouped_matmul on rank 168",
            "what is the call stack",
            "how sure are you",
            "what would confirm it",
        ],
    ),
    "nan_zh": (
        "zh",
        [
            "512 卡训练首步 loss 为 NaN，数据在 demo/first_step_nan",
            "为什么不是 40 号卡？",
            "看 168 号卡的 npu_grouped_matmul",
            "调用栈是什么",
            "有多大把握",
            "怎么确认",
        ],
    ),
    "rl_en": (
        "en",
        [
            "train and rollout do not agree: demo_rl/train and demo_rl/rollout",
            "show layer 0 fc2",
            "why is q_proj not the cause?",
            "compare only attention",
            "which modules have no partner",
            "what is the evidence",
        ],
    ),
    "rl_zh": (
        "zh",
        [
            "训推不一致，训练在 demo_rl/train，推理在 demo_rl/rollout",
            "看第 0 层 fc2",
            "为什么排除 q_proj",
            "只比较注意力",
            "哪些模块没有对应",
            "证据是什么",
        ],
    ),
}


class Terminal:
    """A tmux session of its own server."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.socket = str(folder / "tmux")
        shell = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
        start = ["new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-s", "chat", "-c", str(folder)]
        self.tmux("-f", "/dev/null", *start, f"env {shell} PS1='$ ' bash --norc --noprofile")
        self.tmux("set-option", "-g", "history-limit", "20000")

    def tmux(self, *arguments: str) -> str:
        ran = subprocess.run(["tmux", "-u", "-S", self.socket, *arguments], check=True, capture_output=True, text=True)
        return ran.stdout

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-t", "chat", "-l", text)
        self.tmux("send-keys", "-t", "chat", "Enter")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "chat", "-S", "-").rstrip("\n")

    def wait(self, until: re.Pattern[str], longest: float = LONGEST) -> float:
        """Seconds until the screen has what is waited for."""
        begun = time.monotonic()
        while not until.search(self.screen()):
            if time.monotonic() - begun > longest:
                raise TimeoutError(f"{until.pattern} did not appear:\n{self.screen()}")
            time.sleep(0.02)
        return time.monotonic() - begun


def record(demo: Path, demo_rl: Path, case: str, out: Path) -> float:
    """Play one case; seconds until the first progress."""
    lang, lines = CASES[case]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "demo").symlink_to(demo.resolve())
        (folder / "demo_rl").symlink_to(demo_rl.resolve())
        program = Path(sys.executable).parent
        environ = {
            "PATH": f"{program}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": name,
            "XDG_CACHE_HOME": f"{name}/.cache",
            "XDG_STATE_HOME": f"{name}/.state",
        }
        terminal = Terminal(folder, environ)
        try:
            terminal.wait(re.compile(r"^\$ *$", re.MULTILINE))
            terminal.type(f"numprobe chat --lang {lang}")
            terminal.wait(re.compile(r"^> *$", re.MULTILINE))
            first = 0.0
            for n, line in enumerate(lines):
                before = len(terminal.screen())
                terminal.type(line)
                if n == 0:
                    first = terminal.wait(re.compile(r"1/5"))
                begun = time.monotonic()
                while True:  # an answer is there when an empty prompt follows it
                    screen = terminal.screen()
                    if len(screen) > before + len(line) and re.search(r"\n>\s*\n[^\n]*\Z|\n> *\Z", screen):
                        break
                    if time.monotonic() - begun > LONGEST:
                        raise TimeoutError(screen)
                    time.sleep(0.1)
            terminal.type("/exit")
            terminal.wait(re.compile(r"\n\$ *\Z"))
            text = re.sub(r"\n\$ *\Z", "", terminal.screen())
        finally:
            terminal.tmux("kill-server")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{case}.txt").write_text(text + "\n", encoding="utf-8")
    return first


def main() -> None:
    if len(sys.argv) < 4 or not shutil.which("tmux"):
        sys.exit(__doc__)
    demo, demo_rl, out = map(Path, sys.argv[1:4])
    for case in sys.argv[4:] or CASES:
        seconds = record(demo, demo_rl, case, out)
        print(f"{case}: first progress after {seconds:.2f} s")
        if seconds > 1:
            sys.exit("the first progress came too late")


if __name__ == "__main__":
    main()
