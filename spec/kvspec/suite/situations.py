"""The table of situations: operations down, situations across, with the counts."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvspec.suite.coverage import ANSWERS, BLOCKS, Situation
from kvspec.suite.matrix import ruled
from kvspec.suite.report import Report


def situations(report: Report) -> RenderableType:
    """How often each operation was called, and in which situations; nothing without coverage."""
    if report.coverage is None:
        return Text()
    return Group(
        Text(f"{report.allocator}: calls by situation", style="bold"),
        _table(report, ANSWERS),
        Text(),
        _table(report, BLOCKS),
    )


def _table(report: Report, columns: Sequence[Situation]) -> Table:
    table = ruled()
    table.add_column("operation", no_wrap=True)
    table.add_column("calls", justify="right")
    for situation in columns:
        width = max(len(word) for word in situation.name.split())
        table.add_column(situation.name, justify="right", max_width=max(width, 7))
    for method, counts in (report.coverage or {}).items():
        cells = [_count(counts[situation.name]) for situation in columns]
        table.add_row(method, _count(counts["calls"]), *cells)
    return table


def _count(number: int) -> Text:
    return Text(str(number)) if number else Text(".", style="dim")
