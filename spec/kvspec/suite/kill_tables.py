"""A kill table as it is shown: for the terminal, and in Markdown."""

import re

from rich.table import Table
from rich.text import Text

from kvspec.suite.killing import KillTable, Row

SURVIVED = "survived"

UNEXPECTED = "(!) A law that is neither expected nor explained in the catalogue."

_COLUMNS = ("source", "law expected", "law that broke", "operations", "killed", "steps", "minimum")


def heading(table: KillTable) -> str:
    """What was run: the exhibits, the seeds, and how much was tried."""
    last = table.seed + table.seeds - 1
    seeds = f"seed {last}" if table.seeds == 1 else f"{table.seeds} seeds ({table.seed} to {last})"
    effort = f"profile {table.profile}" if table.profile else f"{table.seconds:g} s each"
    count = len(table.exhibits)
    return f"{count} exhibit{'s' * (count != 1)}, {seeds} of the {table.engine}, {effort}"


def summary(table: KillTable) -> str:
    """How many were killed on every seed, which were not, and how many stories are minimal."""
    killed = len(table.exhibits) - len(table.survivors)
    text = f"{heading(table)}: all killed on every seed."
    if table.survivors:
        names = ", ".join(f"{row.name} ({_killed(row)})" for row in table.survivors)
        text = f"{heading(table)}: {killed} killed on every seed. Not on every seed: {names}."
    minimal, known = table.minimal
    if known:
        text += f" Of {known} stories whose true minimum is known, {minimal} are as short."
        if unknown := sum(row.minimum is None for row in table.exhibits):
            text += f" Of {unknown} exhibits it is not known."
    return text


def unexpected(table: KillTable) -> bool:
    """Whether an exhibit broke a law by which it may not be reported."""
    return any(law not in row.laws for row in table.exhibits for law in row.broke)


def for_terminal(table: KillTable) -> Table:
    """The kill table for a terminal: a row for each exhibit, survivors in bold."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.add_column("fault", overflow="fold")
    for name in _COLUMNS:
        numbers = name in ("operations", "killed", "steps", "minimum")
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in table.exhibits:
        cells = (row.name, "\n".join(row.sources) or "-", *_figures(row))
        grid.add_row(*map(Text, cells), style="bold" if row.survived else "")
    return grid


def as_markdown(table: KillTable) -> str:
    """The kill table in Markdown: a summary, and a row for each exhibit, with what is wrong."""
    lines = [summary(table), ""]
    lines.append(f"| fault | {' | '.join(_COLUMNS)} |")
    lines.append("|---|---|---|---|---:|---:|---:|---:|")
    for row in table.exhibits:
        fault = f"`{row.name}`" + (f": {row.fault}" if row.fault else "")
        sources = ", ".join(map(linked, row.sources)) or "none known"
        cells = (fault, sources, *_figures(row))
        lines.append(f"| {' | '.join(_escaped(cell) for cell in cells)} |")
    if unexpected(table):
        lines += ["", UNEXPECTED]
    return "\n".join(lines)


def longest(table: KillTable, count: int) -> str:
    """In Markdown, so many exhibits that took most operations to find."""
    lines = [f"| longest in the {table.engine} | killed | operations, median | most |"]
    lines.append("|---|---|---:|---:|")
    for row in sorted(table.exhibits, key=lambda row: -(row.operations or 0))[:count]:
        most = _number(max((kill.operations for kill in row.kills), default=None))
        lines.append(f"| `{row.name}` | {_killed(row)} | {_number(row.operations)} | {most} |")
    return "\n".join(lines)


def _figures(row: Row) -> tuple[str, ...]:
    broke = [
        law + " (!)" * (law not in row.laws) + (f" {count}" if len(row.broke) > 1 else "")
        for law, count in row.broke.items()
    ]
    shown = (", ".join(broke) or SURVIVED, _number(row.operations), _killed(row))
    return (row.law, *shown, _number(row.length), _number(row.minimum))


def _killed(row: Row) -> str:
    return f"{len(row.kills)} of {row.seeds}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def linked(source: str) -> str:
    """A source in Markdown, with its issues as links."""
    return re.sub(r"([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", source)
