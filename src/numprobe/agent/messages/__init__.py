"""The agent's sentences, over the generic ones."""

from __future__ import annotations

from pathlib import Path

from numprobe.report.messages import GENERIC, Catalogue

CATALOGUE = Catalogue((Path(__file__).parent, *GENERIC.folders))
say = CATALOGUE.say
