"""How an error looks: what, where, what to do; a stable code; never a traceback."""

from __future__ import annotations

from numprobe.record.errors import NumprobeError
from numprobe.report.messages import say
from numprobe.report.terminal import Style, columns, pad, printable, wrap


def render_error(error: NumprobeError, lang: str, style: Style) -> str:
    """The lines for stderr, without a line break at the end."""
    head = f"{style.symbol('error')} {error.code}  "
    lines = wrap(printable(error.what), style.width, head, " " * columns(head))
    labelled = [(say(lang, f"error.{label}"), printable(text)) for label, text in error.lines()]
    width = max((columns(label) for label, _ in labelled), default=0)
    for label, text in labelled:
        lines += wrap(text, style.width, f"  {pad(label, width)}  ", " " * (width + 4))
    return "\n".join(lines)
