"""`kvspec walk`: a soak of one allocator, up to the first violation.

Exit codes as for `kvspec check`: 0 all claimed laws held, 1 a law was broken, 2 the command could
not be carried out, 3 a claimed law never bit.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvspec import doors
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import TargetError
from kvspec.engines.walk import Walk
from kvspec.suite.matrix import matrix
from kvspec.suite.situations import situations
from kvspec.suite.walking import WalkReport, walk_named
from kvspec.traces import table


@click.command("walk")
@click.argument("target")
@doors.CONTRACT
@click.option(
    "--seconds",
    type=float,
    callback=doors.seconds,
    default=60.0,
    show_default=True,
    help="How long to walk.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Walk just so many operations, however long they take.",
)
@doors.SEED
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many walks at once, each in a process of its own, from a seed of its own.",
)
@click.option("--coverage", is_flag=True, help="Show which operation was tried in which situation.")
@doors.JSON
@doors.SAVE_TRACES
@doors.DEVICE
@doors.TIMEOUT
def walk(
    target: str,
    contract: str | None,
    seconds: float,
    steps: int | None,
    seed: int,
    processes: int,
    coverage: bool,
    json_file: Path | None,
    save_traces: Path | None,
    call_timeout: float,
) -> None:
    """Try operations on TARGET at random until a law breaks or the time is over.

    There is no Hypothesis in the loop, so that much more is tried in the same time than by check.
    The same seed gives the same walk. Each of several --processes makes the walk of a seed of its
    own: --seconds are for each of them, --steps for all.
    """
    doors.writable(json_file)
    try:
        with _live() as progress:
            done = walk_named(
                target,
                processes=processes,
                contract=contract,
                seconds=None if steps is not None else seconds,
                steps=steps,
                seed=seed,
                timeout=call_timeout,
                coverage=coverage,
                progress=progress,
            )
    except (TargetError, NotBuilt) as error:
        raise doors.Stop(str(error)) from None
    report = done.report
    if report.trace is not None:
        doors.put(table.render(report.trace, report.reproduced, report.replays), "")
    doors.put(matrix([report]))
    if coverage:
        doors.put("", situations(report))
    click.echo(_summary(done))
    if save_traces is not None and report.trace is not None:
        doors.keep([report.trace], save_traces)
    if json_file is not None:
        doors.write(json_file, json.dumps(done.as_data(), indent=1) + "\n")
    raise SystemExit(int(report.exit_code))


def _summary(done: WalkReport) -> str:
    operations = done.report.steps
    rate = operations / done.seconds if done.seconds else 0.0
    at_once = ""
    if done.processes > 1:
        at_once = f" in {done.processes:,} processes"
        if done.report.trace is not None:
            at_once = f" of the walk with seed {done.report.seed}, one of {done.processes:,}"
    return (
        f"{operations:,} operation{'s' * (operations != 1)} in {done.episodes:,} "
        f"episode{'s' * (done.episodes != 1)}{at_once}, {rate:,.0f} a second; "
        f"about {done.states:,} different states"
    )


@contextmanager
def _live() -> Iterator[Callable[[Walk], None]]:
    """A line on the terminal that says how far the walk has come; none where there is none."""
    if not sys.stderr.isatty():
        yield lambda walk: None
        return
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        yield lambda walk: live.update(Text(line(walk)), refresh=True)


def line(walk: Walk) -> str:
    """How far a walk has come, on one line."""
    bites, ledger = walk.ledger.bites, walk.ledger
    silent = sum(1 for law in ledger.evaluations if not bites[law])
    return (
        f"{walk.seconds:,.0f} s · {ledger.steps:,} operations · {walk.rate:,.0f}/s · "
        f"{walk.states.count:,} states · {len(+bites)} laws bit, {bites.total():,} times"
        + (f", {silent} not yet" if silent else "")
    )
