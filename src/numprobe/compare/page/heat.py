"""The heat map of a comparison: modules of a layer down, layers across, one map a phase."""

from __future__ import annotations

from collections.abc import Iterable

from numprobe.compare.rank import place_in_layer
from numprobe.compare.result import CompareResult, Finding
from numprobe.record.names import parse_name
from numprobe.report.html import heat
from numprobe.report.html.heat import HeatCell, HeatMap, Place

HANDED_ON = "propagated"


def heat_maps(result: CompareResult) -> list[HeatMap]:
    """One map a phase, in the order of execution."""
    cells = [
        HeatCell(cell.part, cell.layer, cell.phase, cell.verdict, cell.status == HANDED_ON, cell.rho)
        for cell in result.heat
    ]
    return heat.heat_maps(cells, _marks(result.findings))


def _marks(findings: Iterable[Finding]) -> dict[Place, int]:
    """Place -> number of the first finding there."""
    marks: dict[Place, int] = {}
    for number, finding in enumerate(findings, 1):
        names = (finding.op or finding.golden_op or "", *finding.inside[:1])
        module = next((op for name in names if (op := parse_name(name)).is_module), None)
        if module is not None:
            layer, part = place_in_layer(module)
            marks.setdefault((finding.phase, part, layer), number)
    return marks
