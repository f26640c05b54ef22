"""What was found in published engines, as it was recorded: one TOML file an engine.

Beside it, for each finding, lie its reduced trace (JSON) and a script that reproduces it with the
engine's package alone. This module reads them, for the page of findings and for its tests.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from attrs import field, frozen

from kvspec.traces.table import as_text
from kvspec.traces.trace import load

DOCS = Path(__file__).resolve().parent
FINDINGS = DOCS / "findings"
MEASURED = DOCS / "data" / "wild.json"
"""The report of `kvspec check --engines`, without its traces: one run over all targets.

It is written by `python docs/records.py build/wild/report.json` alone, after `make wild`.
"""

REACH = {
    "scheduler": "The engine's own scheduler or loop comes there: the script runs it.",
    "scheduler's calls": "The calls are those of the engine's scheduler or loop, in its order; as "
    "a whole that was not run into it.",
    "public API": "Through the public API: no code of the engine was seen to call it so.",
}
"""How a finding is reached, and what that means."""

WIDTH = 96
"""Columns of a trace on the page."""


@frozen
class Finding:
    """One fault: the target that shows it, with the contract given, and the law that breaks.

    `also` are targets in which the same law breaks by the same fault, each by its own contract. A
    finding that is `by_chance` hangs on the clock or on addresses, so that its trace need not
    break the law every time.
    """

    slug: str
    target: str
    contract: str
    law: str
    title: str
    reach: str
    why: str
    also: tuple[str, ...] = field(default=(), converter=tuple)
    by_chance: bool = False

    @property
    def by_default(self) -> tuple[str, ...]:
        """The targets in which the law breaks by their own contracts."""
        return self.also if self.contract else (self.target, *self.also)

    @property
    def script(self) -> Path:
        """The stand-alone reproduction."""
        return FINDINGS / f"{self.slug}.py"

    @property
    def trace(self) -> Path:
        """The reduced trace."""
        return FINDINGS / f"{self.slug}.json"


@frozen
class Engine:
    """One engine: what was run of it, what was read, and what was found."""

    engine: str
    version: str
    licence: str
    classes: tuple[str, ...]
    targets: tuple[str, ...]
    read: str
    findings: tuple[Finding, ...] = field(default=())


def engine_of(path: Path) -> Engine:
    """The record of one engine."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    findings = tuple(Finding(**finding) for finding in data.pop("finding", []))
    data |= {name: tuple(data[name]) for name in ("classes", "targets")}
    return Engine(**data, findings=findings)


def engines() -> tuple[Engine, ...]:
    """All records, in the order of the engines' names."""
    return tuple(engine_of(path) for path in sorted(FINDINGS.glob("*.toml")))


# ------------------------------------------------------------------------ the page


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def _finding(finding: Finding) -> str:
    command = f"kvspec check {finding.target}"
    command += f" --contract {finding.contract}" if finding.contract else ""
    also = f" So does {', '.join(f'`{name}`' for name in finding.also)}." if finding.also else ""
    told = as_text(load(finding.trace), width=WIDTH)
    script = f"findings/{finding.slug}.py"
    return "\n\n".join(
        (
            f"#### {finding.title}",
            f"`{command}` breaks **{finding.law}**.{also} {REACH[finding.reach]}",
            _paragraphs(finding.why),
            f"```text\n{told.rstrip()}\n```",
            f"Without kvspec: [`python docs/{script}`]({script})",
        )
    )


def findings_text() -> str:
    """Each engine with what was read and tried, and its findings with their traces."""
    parts = []
    for one in engines():
        count = len(one.findings)
        found = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
        parts += [f"### {one.engine} {one.version}: {found}"]
        classes = ", ".join(f"`{name}`" for name in one.classes)
        parts += [f"{classes}. Licence: {one.licence}.", _paragraphs(one.read)]
        parts += map(_finding, one.findings)
    return "\n\n".join(parts)


def engines_table() -> str:
    """What `make wild` found, as it was measured and committed."""
    data = json.loads(MEASURED.read_text(encoding="utf-8"))
    lines = ["| target | claims | relaxations | result |", "|---|---|---|---|"]
    known = {name for engine in engines() for one in engine.findings for name in one.by_default}
    lines += [_row(report, known) for report in data["allocators"]]
    absent = data["not_installed"] + data["not_checked"]
    lines += [f"| `{row['allocator']}` | | | {row['reason']} |" for row in absent]
    return "\n".join(lines)


def _row(report: dict[str, Any], known: set[str]) -> str:
    broken, vacuous = (
        [law for law, result in report["laws"].items() if result["verdict"] == verdict]
        for verdict in ("broken", "vacuous")
    )
    claims, relaxed = (", ".join(report[name]) for name in ("capabilities", "relaxations"))
    result = "all laws held"
    if broken:
        result = f"{broken[0]} broken"
    elif vacuous:
        result = f"vacuous: {', '.join(vacuous)}"
    if not broken and report["allocator"] in known:
        result += " at this seed: its finding was missed"
    return f"| `{report['allocator']}` | {claims} | {relaxed or 'none'} | {result} |"


def keep(report: Path) -> None:
    """Keep what a report of `kvspec check --engines --json` says, without its traces."""
    data = json.loads(report.read_text(encoding="utf-8"))
    for one in data["allocators"]:
        del one["trace"], one["coverage"]
    MEASURED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
