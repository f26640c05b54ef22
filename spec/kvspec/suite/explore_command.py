"""`kvspec explore`: everything that may happen in a small scope.

Exit codes: 0 no law is broken, whether or not the search came to its end, which the report says; 1
a law is broken; 2 the command could not be carried out.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvspec import doors
from kvspec.contract import Contract
from kvspec.driver.making import NotBuilt
from kvspec.driver.target import TargetError
from kvspec.engines.exploration import Exploration, Progress, untold
from kvspec.geometry import Geometry
from kvspec.suite.contracts import parse_contract, resolve
from kvspec.suite.exploring import (
    MOST_STATES,
    ExploreReport,
    Way,
    explore_allocator,
    explore_specification,
)
from kvspec.traces import table

_WAYS: tuple[Way, ...] = ("auto", "product", "driven")


@click.command("explore")
@click.argument("target", required=False)
@click.option("--spec", "alone", is_flag=True, help="Explore the specification alone.")
@click.option("--blocks", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--seqs", type=click.IntRange(1, 8), default=2, show_default=True)
@click.option("--block-size", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--host-blocks", type=click.IntRange(0, 64), default=0, show_default=True)
@click.option("--window", type=click.IntRange(1, 256), help="The sliding window, in tokens.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 256),
    help="The greatest length of a sequence [default: one token more than the pool holds].",
)
@click.option(
    "--capabilities",
    metavar="NAME,...",
    help="What is explored [default: core, and sharing where it is claimed].",
)
@doors.CONTRACT
@click.option(
    "--max-states",
    type=click.IntRange(min=1),
    default=MOST_STATES,
    show_default=True,
    help="After so many states the search is cut off.",
)
@click.option(
    "--mode",
    "way",
    type=click.Choice(_WAYS),
    default="auto",
    show_default=True,
    help="Over the product with the allocator's internals, every model transition driven once, "
    "or the first and, where it is cut off, the second as well.",
)
@doors.JSON
@doors.SAVE_TRACES
@doors.DEVICE
@doors.TIMEOUT
def explore(
    target: str | None,
    alone: bool,
    blocks: int,
    seqs: int,
    block_size: int,
    host_blocks: int,
    window: int | None,
    max_tokens: int | None,
    capabilities: str | None,
    contract: str | None,
    max_states: int,
    way: Way,
    json_file: Path | None,
    save_traces: Path | None,
    call_timeout: float,
) -> None:
    """Try everything that may happen to TARGET in a small scope, breadth first.

    So a counterexample is the shortest there is. With --spec, or the target `spec`, there is no
    allocator: the specification is explored through its own choices.
    """
    if target == "spec":
        target, alone = None, True
    if (target is None) != alone:
        raise doors.Stop("name either a target or --spec")
    doors.writable(json_file)
    asked = None if capabilities is None else _names(capabilities)
    try:
        geometry = Geometry(
            blocks, block_size, num_host_blocks=host_blocks, window=window, max_tokens=max_tokens
        )
        with _live() as progress:
            if target is None:
                promise = parse_contract(contract, Contract()) if contract else None
                report = explore_specification(
                    geometry,
                    seqs,
                    contract=promise,
                    capabilities=asked,
                    max_states=max_states,
                    progress=progress,
                )
            else:
                report = explore_allocator(
                    resolve(target, contract, call_timeout),
                    geometry,
                    seqs,
                    capabilities=asked,
                    max_states=max_states,
                    way=way,
                    timeout=call_timeout,
                    progress=progress,
                )
    except (TargetError, NotBuilt) as error:
        raise doors.Stop(str(error)) from None
    _show(report)
    if save_traces is not None and report.trace is not None:
        doors.keep([report.trace], save_traces)
    if json_file is not None:
        doors.write(json_file, json.dumps(report.as_data(), indent=1) + "\n")
    raise SystemExit(int(report.exit_code))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _show(report: ExploreReport) -> None:
    if report.trace is not None:
        doors.put(table.render(report.trace, report.reproduced, report.replays), "")
    names = ", ".join(room.capability for room in report.spec.rooms)
    click.echo(f"{report.allocator}: {names}")
    for line in report.lines:
        click.echo(f"  {line}")


@contextmanager
def _live() -> Iterator[Progress]:
    """A line on the terminal that says how far the search has come; none where there is none."""
    if not sys.stderr.isatty():
        yield untold
        return
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        yield lambda found: live.update(Text(line(found)), refresh=True)


def line(found: Exploration) -> str:
    """How far a search has come, on one line."""
    return (
        f"{found.seconds:,.0f} s · {found.states:,} states · {found.waiting:,} to look at · "
        f"{found.transitions:,} transitions · {found.rate:,.0f}/s · depth {found.depth}"
    )
