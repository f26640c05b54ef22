"""`kvspec symbolic`: what holds for all inputs, as CrossHair and z3 say it.

Exit codes: 0 all is confirmed or proved, and all broken twins are refuted; 1 something is not, or
the fast tier took too long; 2 a tool is not installed, or the results cannot be written.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import click
from rich.console import Console

from kvspec import doors
from kvspec.kernel.names import plural
from kvspec.symbolic import arithmetic_twins, operations_twins, steps_twins, wide
from kvspec.symbolic.results import Result, as_data, tables, twins_of
from kvspec.symbolic.tiers import FAST, SLOW, Tier

TOOLS = {"crosshair": ("crosshair", "crosshair-tool"), "z3": ("z3", "z3-solver")}
"""The modules of the tools, and the distributions that they come with."""


@click.command("symbolic")
@click.option("--only", type=click.Choice(list(TOOLS)), help="One of the tools alone.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this file as well, with all counterexamples.",
)
@click.option(
    "--slow",
    is_flag=True,
    help="Larger shapes as well: more blocks a sequence, and a larger small world for z3.",
)
@click.option(
    "--timeout",
    type=float,
    callback=doors.seconds,
    help="Seconds that CrossHair may take for one function [default: 60; 600 with --slow].",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=64),
    default=2,
    show_default=True,
    help="Processes in which CrossHair runs.",
)
def symbolic(
    only: str | None, json_file: Path | None, slow: bool, timeout: float | None, workers: int
) -> None:
    """Confirm and prove what holds for all inputs, and refute the broken twins.

    CrossHair executes the arithmetic and single operations with symbolic integers; z3 proves the
    laws of a model with any number of blocks and sequences. All that must be done in 60 seconds of
    CPU; --slow has no such bound.
    """
    used = [only] if only else list(TOOLS)
    for tool in used:
        module, distribution = TOOLS[tool]
        if find_spec(module) is None:
            raise doors.Stop(f"{distribution} is not installed: pip install 'kvspec[symbolic]'")
    doors.writable(json_file)
    tier = SLOW if slow else FAST
    start, busy = perf_counter(), _busy()
    results: list[Result] = []
    with _progress() as say:
        if "crosshair" in used:
            results += _confirmed(tier, timeout or tier.timeout, workers, say)
        if "z3" in used:
            results += _proved(tier, say)
    seconds, busy = perf_counter() - start, _busy() - busy
    late = tier.budget is not None and busy > tier.budget
    for title, table in tables(results).items():
        doors.put(title, table, "")
    wrong = [result for result in results if result.problem]
    refuted = plural(sum(len(result.twins) for result in results), "refutation")
    twins = plural(twins_of(as_data(results)), "broken twin")
    took = f"({seconds:.0f} s, {busy:.0f} s of CPU)"
    if wrong:
        click.echo(f"{len(wrong)} of {len(results)} obligations show nothing {took}")
        for result in wrong:
            click.echo(f"  {result.name}: {result.problem}")
    else:
        click.echo(f"{plural(len(results), 'obligation')}, {refuted} by {twins} {took}")
    if late:
        click.echo(f"the fast tier may take {tier.budget:.0f} s of CPU: move something to --slow")
    if json_file is not None:
        versions = {d: version(d) for _, d in (TOOLS[tool] for tool in used)}
        data = {
            "tools": versions,
            "tier": tier.name,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(busy, 2),
            "results": as_data(results),
        }
        doors.write(json_file, json.dumps(data, indent=1) + "\n")
    raise SystemExit(1 if wrong or late else 0)


def _busy() -> float:
    """Seconds of CPU of this process, and of those that it has ended."""
    return sum(os.times()[:4])


def _confirmed(
    tier: Tier, timeout: float, workers: int, say: Callable[[str], None]
) -> list[Result]:
    from kvspec.symbolic.confirm import Part, confirm

    parts = [
        Part.of("arithmetic", "kvspec.symbolic.arithmetic", arithmetic_twins.TWINS),
        Part.of("steps", "kvspec.symbolic.steps", steps_twins.TWINS),
    ]
    if tier is SLOW:
        parts.append(Part.of("wide", "kvspec.symbolic.steps", steps_twins.TWINS, wide.INSTEAD))
    return confirm(parts, workers=workers, timeout=timeout, say=say)


def _proved(tier: Tier, say: Callable[[str], None]) -> list[Result]:
    # Importing it imports z3, which need not be there.
    from kvspec.symbolic.prove import prove

    return prove(operations_twins.TWINS, size=tier.small, say=say)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is done at the moment, for those who watch."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("CrossHair is starting") as status:
        yield lambda name: status.update(f"done: {name}")
