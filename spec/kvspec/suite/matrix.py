"""The matrix: allocators by laws, with the verdicts and the counts; and the same as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvspec.rooms import LAWS
from kvspec.suite.report import LawResult, Report, Verdict
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


def matrix(reports: Sequence[Report], absent: Sequence[Absent] = ()) -> RenderableType:
    """Laws down, allocators across: the verdict, and bites found / steps where relevant."""
    table = Table(pad_edge=False, header_style="bold")
    table.add_column("law")
    for report in reports:
        table.add_column(report.allocator)
    capability = ""
    for law in sorted(LAWS, key=lambda law: _rank(law.capability)):
        if law.capability != capability:
            capability = law.capability
            table.add_section()
            claims = [
                Text("claimed" if capability in r.capabilities else "not claimed", style="dim")
                for r in reports
            ]
            table.add_row(Text(capability, style="bold"), *claims)
        table.add_row(f"  {law.id}", *(_cell(report.laws[law.id]) for report in reports))
    table.add_section()
    table.add_row("steps", *(str(report.steps) for report in reports))
    table.add_row("relaxations", *(_relaxations(report) for report in reports))
    parts: list[RenderableType] = [table]
    parts += [Text(f"{row.allocator}: not installed ({row.reason})", style="dim") for row in absent]
    parts.append(
        Text("held: bites found / steps where the law was relevant · - : not claimed", style="dim")
    )
    return Group(*parts)


def _rank(capability: str) -> int:
    return [law.capability for law in _BY_ROOM].index(capability)


_BY_ROOM = sorted(LAWS, key=lambda law: (law.capability != "core", law.capability))


def _relaxations(report: Report) -> str:
    relaxed = report.contract.relaxations()
    return f"{len(relaxed)}: {', '.join(relaxed)}" if relaxed else "0"


def as_data(reports: Sequence[Report], absent: Sequence[Absent] = ()) -> dict[str, Any]:
    """The reports as plain data, for `--json`."""
    return {
        "format": 1,
        "allocators": [_report_data(report) for report in reports],
        "not_installed": [{"allocator": a.allocator, "reason": a.reason} for a in absent],
    }


def _report_data(report: Report) -> Mapping[str, Any]:
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
    }
