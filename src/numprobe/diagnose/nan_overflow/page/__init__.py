"""The conclusion of the NaN-overflow skill as a page, as Markdown and as terminal text."""

from __future__ import annotations

from numprobe.diagnose.nan_overflow.page.html import render_html
from numprobe.diagnose.nan_overflow.page.markdown import render_markdown
from numprobe.diagnose.nan_overflow.page.screen import render_json_line, render_rank_map, render_terminal

__all__ = ["render_html", "render_json_line", "render_markdown", "render_rank_map", "render_terminal"]
