"""The matrix: allocators by laws, with the verdicts and the counts; and the same as JSON."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvspec.rooms import LAWS
from kvspec.suite.report import ExitCode, LawResult, Report, Verdict
from kvspec.traces.trace import CONVERTER

_STYLE = {
    Verdict.HELD: "green",
    Verdict.BROKEN: "bold red",
    Verdict.VACUOUS: "bold yellow",
    Verdict.NOT_CLAIMED: "dim",
    Verdict.NOT_JUDGED: "dim",
}


@frozen
class Absent:
    """A registered allocator that could not be checked, and why."""

    allocator: str
    reason: str


def _cell(result: LawResult) -> Text:
    style = _STYLE[result.verdict]
    match result.verdict:
        case Verdict.HELD:
            return Text(f"held {result.bites}/{result.evaluations}", style=style)
        case Verdict.BROKEN:
            return Text("BROKEN", style=style)
        case Verdict.VACUOUS:
            return Text(f"VACUOUS 0/{result.evaluations}", style=style)
        case Verdict.NOT_CLAIMED:
            return Text("-", style=style)
        case Verdict.NOT_JUDGED:
            return Text("not judged", style=style)


_LEGEND = {
    Verdict.HELD: "held: bites found / steps where the law was relevant",
    Verdict.VACUOUS: "VACUOUS: it never bit, so nothing is known of it",
    Verdict.NOT_CLAIMED: "- : not claimed",
    Verdict.NOT_JUDGED: "not judged: the run ended at the broken law",
}


def matrix(
    reports: Sequence[Report],
    absent: Sequence[Absent] = (),
    failed: Sequence[Absent] = (),
) -> RenderableType:
    """Laws down, allocators across: the verdict, and bites found / steps where relevant.

    Allocators for which the width has no room come in further bands below. `absent` are those
    that are not installed, `failed` those whose check could not be carried out.
    """
    parts: list[RenderableType] = [_Bands(reports)] if reports else []
    parts += [Text(f"{row.allocator}: not installed ({row.reason})", style="dim") for row in absent]
    parts += [Text(f"{row.allocator}: not checked ({row.reason})", style="bold") for row in failed]
    verdicts = {result.verdict for report in reports for result in report.laws.values()}
    legend = [text for verdict, text in _LEGEND.items() if verdict in verdicts]
    if legend:
        parts.append(Text(" · ".join(legend), style="dim"))
    if len(reports) > 1:
        parts.append(Text(_summary(reports)))
    return Group(*parts)


def _summary(reports: Sequence[Report]) -> str:
    """How many held all that they claim, and which did not."""
    held = sum(report.exit_code is ExitCode.HELD for report in reports)
    parts = [f"{held} of {len(reports)} allocators held every law that they claim"]
    for code, word in ((ExitCode.BROKEN, "broken"), (ExitCode.VACUOUS, "vacuous")):
        names = [report.allocator for report in reports if report.exit_code is code]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    return "; ".join(parts)


@frozen
class _Bands:
    """The matrix in as many bands of columns as the width asks for."""

    reports: Sequence[Report]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [_Column.of(report, options.max_width) for report in self.reports]
        if _width(columns) > options.max_width:
            columns = [_Column.of(report, _NARROW) for report in self.reports]
        band: list[_Column] = []
        for column in columns:
            if band and _width([*band, column]) > options.max_width:
                yield _table(band)
                yield Text()
                band = []
            band.append(column)
        yield _table(band)


@frozen
class _Column:
    """One allocator's column: its name in lines, the cells, and the last rows."""

    report: Report
    name: str
    relaxations: str
    width: int

    @classmethod
    def of(cls, report: Report, most: int) -> "_Column":
        """The column of a report, at most so wide, unless its cells are wider."""
        most = max(most, *(_cell(result).cell_len for result in report.laws.values()))
        name = _name_lines(report.allocator, most)
        relaxed = report.contract.relaxations()
        words = [f"{len(relaxed)}: " if relaxed else "0", *(f"{word}, " for word in relaxed)]
        words[-1] = words[-1].removesuffix(", ")
        relaxations = _lines(words, most)
        cells = [_cell(result).plain for result in report.laws.values()]
        lines = [*name, *relaxations, *cells, "not claimed"]
        width = max(cell_len(line.rstrip()) for line in lines)
        return cls(report, "\n".join(name), "\n".join(relaxations), width)


_NARROW = 18
"""Columns for an allocator where not all of them fit side by side."""

_LAW_COLUMN = max(len("relaxations"), *(len(f"  {law.id}") for law in LAWS))


def _width(columns: Sequence[_Column]) -> int:
    return _LAW_COLUMN + sum(column.width + 2 for column in columns)


def _name_lines(name: str, most: int) -> list[str]:
    """A name in lines: whole if it fits, else cut after its colon and between its words."""
    if cell_len(name) <= most:
        return [name]
    place, colon, attribute = name.rpartition(":")
    return [line for part in (place + colon, attribute) if part for line in _cut(part, most)]


def _cut(text: str, most: int) -> list[str]:
    words = r"[A-Z]*[^A-Z:/\\._-]*[:/\\._-]|[A-Z]+[^A-Z:/\\._-]*|[^A-Z:/\\._-]+"
    return _lines(re.findall(words, text), most)


def _lines(pieces: Sequence[str], most: int) -> list[str]:
    """The pieces in lines of at most `most` columns; a longer piece is cut."""
    lines = [""]
    for piece in pieces:
        if cell_len(lines[-1] + piece.rstrip()) > most and lines[-1]:
            lines.append("")
        while cell_len(piece.rstrip()) > most:
            lines[-1] = chop_cells(piece, most)[0]
            piece = piece.removeprefix(lines[-1])
            lines.append("")
        lines[-1] += piece
    return lines


def ruled() -> Table:
    """An empty table with a line below its heading, in the style of all reports."""
    return Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )


def _table(columns: Sequence[_Column]) -> Table:
    table = ruled()
    table.add_column("law", no_wrap=True, min_width=_LAW_COLUMN)
    for column in columns:
        table.add_column(Text(column.name), min_width=column.width, overflow="fold")
    capability = ""
    for law in sorted(LAWS, key=lambda law: _rank(law.capability)):
        if law.capability != capability:
            capability = law.capability
            claims = [
                Text(
                    "claimed" if capability in column.report.capabilities else "not claimed",
                    style="dim",
                )
                for column in columns
            ]
            table.add_row(Text(capability, style="bold"), *claims)
        table.add_row(f"  {law.id}", *(_cell(column.report.laws[law.id]) for column in columns))
    table.add_row("steps", *(str(column.report.steps) for column in columns))
    table.add_row("relaxations", *(Text(column.relaxations) for column in columns))
    return table


def _rank(capability: str) -> int:
    return [law.capability for law in _BY_ROOM].index(capability)


_BY_ROOM = sorted(LAWS, key=lambda law: (law.capability != "core", law.capability))


def as_data(
    reports: Sequence[Report], absent: Sequence[Absent] = (), failed: Sequence[Absent] = ()
) -> dict[str, Any]:
    """The reports as plain data, for `--json`."""
    return {
        "format": 1,
        "exit_code": int(exit_code(reports, failed)),
        "allocators": [report_data(report) for report in reports],
        "not_installed": [{"allocator": a.allocator, "reason": a.reason} for a in absent],
        "not_checked": [{"allocator": a.allocator, "reason": a.reason} for a in failed],
    }


def exit_code(reports: Sequence[Report], failed: Sequence[Absent] = ()) -> ExitCode:
    """The exit code of all together: 2 before 1 before 3."""
    codes = {report.exit_code for report in reports}
    if failed:
        codes.add(ExitCode.NOT_CARRIED_OUT)
    order = (ExitCode.NOT_CARRIED_OUT, ExitCode.BROKEN, ExitCode.VACUOUS)
    return next((code for code in order if code in codes), ExitCode.HELD)


def report_data(report: Report) -> Mapping[str, Any]:
    """One report as plain data."""
    return {
        "allocator": report.allocator,
        "exit_code": int(report.exit_code),
        "capabilities": list(report.capabilities),
        "contract": CONVERTER.unstructure(report.contract),
        "relaxations": list(report.contract.relaxations()),
        "profile": report.profile,
        "seed": report.seed,
        "steps": report.steps,
        "laws": {
            id_: {
                "verdict": result.verdict.value,
                "evaluations": result.evaluations,
                "bites": result.bites,
            }
            for id_, result in report.laws.items()
        },
        "trace": None if report.trace is None else CONVERTER.unstructure(report.trace),
        "reproduced": report.reproduced,
        "replays": report.replays,
        "coverage": report.coverage,
    }
