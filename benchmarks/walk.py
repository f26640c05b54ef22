"""Operations a second of a walk on the reference, and where the time goes.

With the laws of the core alone, and with every capability that the reference has. The ledger is
warm, as in a soak: bites are still looked for, but no longer in every step. Seconds of CPU are
told beside seconds of the clock, since machines are shared; with `--against`, another checkout
takes turns in the same run. The second table is of walks at once, as `kvspec walk --processes`
makes them, for so many seconds each: in one process and in as many as there are cores, in turns,
measured while all of them are warm and none is over. The last table says what a step cannot do
without: its operation drawn, and its calls carried out on an allocator that nobody looks at.

    python benchmarks/walk.py [--rounds 5] [--steps 4000] [--seconds 20] [--against WORKTREE]
"""

import json
import os
import statistics
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import click
from attrs import define, evolve, field
from rich.console import Console
from rich.table import Table
from stopwatch import Stage, Stopwatch

from kvimpls.reference import Reference
from kvspec.driver.driver import Driver
from kvspec.driver.target import Target, target
from kvspec.driver.watchdog import watching
from kvspec.engines.ledger import Ledger
from kvspec.engines.session import Session
from kvspec.engines.walks import walks
from kvspec.interface import AllocatorError
from kvspec.kernel import generation
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.kernel.specification import Specification
from kvspec.rooms import specification

ROOT = Path(__file__).resolve().parents[1]
EPISODE = 60
WARM = 3000
CLAIMS = {"core laws alone": ("core",), "every capability": None}
FAULTS = (0, 0, 0, 1, 2, 1, 3)

Rates = list[tuple[float, float]]


class Chooser:
    """As that of the walk, for checkouts that have none yet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def integer(self, low: int, high: int, near: Any = ()) -> int:
        index = int(self.random() * (len(near) + high - low + 1))
        return int(near[index] if index < len(near) else low + index - len(near))

    def pick(self, items: Any) -> Any:
        return items[int(self.random() * len(items))]


def walk(tested: Target, seed: int, steps: int, ledger: Ledger) -> None:
    """What `kvspec walk` does, without counting states."""
    chooser, last = Chooser(seed), ledger.steps + steps
    with watching():
        while ledger.steps < last:
            sparse = chooser.pick((False, False, True))
            rooms = generation.focus(chooser, tested.rooms)
            geometry = generation.geometry(chooser, tested.contract, rooms)
            spec = specification(geometry, tested.contract, tested.capabilities)
            session = Session(tested.make, spec, ledger=ledger)
            mix = generation.mix(chooser, spec, rooms)
            faulty = spec.claims("injection") and chooser.pick((False, False, True))
            for number in range(min(EPISODE, last - ledger.steps)):
                operation = generation.operation(chooser, mix, session.state, spec)
                look = TOUCHED if sparse and number % 4 else FULL
                fault = chooser.pick(FAULTS) if faulty else 0
                assert not session.perform(operation, look, fault), session.breaches


def reference(claim: Any) -> Target:
    contract = evolve(Reference.contract, capabilities=claim)
    return target(Reference, "reference", contract)


def measure(steps: int, seed: int) -> dict[str, tuple[float, float]]:
    """By claim: operations a second of the clock, and of CPU."""
    found = {}
    for name, claim in CLAIMS.items():
        tested, ledger = reference(claim), Ledger()
        walk(tested, 0, WARM, ledger)
        clock, busy = time.perf_counter(), time.process_time()
        walk(tested, seed, steps, ledger)
        clock, busy = time.perf_counter() - clock, time.process_time() - busy
        found[name] = (steps / clock, steps / busy)
    return found


STAGES: tuple[Stage, ...] = (
    ("drawing the operation", generation, "operation"),
    ("the driver: call, looks, what is foreseen", Driver, "perform"),
    ("the allocator itself", Driver, "_invoke"),
    ("what is expected", Specification, "expect"),
    ("believing", Specification, "believe"),
    ("judging: every law", Specification, "judge"),
    ("the ledger: bites", Ledger, "note"),
    ("recording", Session, "perform"),
)


def stages(steps: int) -> dict[str, dict[str, float]]:
    """By claim and stage: its share of the time, without the stages within it."""
    shares = {}
    for name, claim in CLAIMS.items():
        tested, ledger, watch = reference(claim), Ledger(), Stopwatch()
        walk(tested, 0, WARM, ledger)
        with watch.watching(STAGES):
            start = time.perf_counter()
            walk(tested, 1, steps, ledger)
            total = time.perf_counter() - start
        shares[name] = watch.shares(STAGES, total, "beginning an episode, and the rest")
    return shares


def floor(steps: int) -> dict[str, float]:
    """Microseconds of CPU a step with the laws of the core: what there must be, and all."""
    tested, ledger = reference(("core",)), Ledger()
    walk(tested, 0, WARM, ledger)
    draw, invoke = generation.operation, Driver._invoke
    draws: list[Any] = []
    calls: list[Any] = []

    def drawing(chooser: Any, *given: Any) -> Any:
        draws.append(given)
        return draw(chooser, *given)

    def invoking(driver: Driver, method: str, *arguments: Any, **keywords: Any) -> Any:
        calls.append((driver, method, arguments, keywords))
        return invoke(driver, method, *arguments, **keywords)

    generation.operation, Driver._invoke = drawing, invoking  # type: ignore[method-assign]
    try:
        walk(tested, 1, steps, ledger)
    finally:
        generation.operation, Driver._invoke = draw, invoke  # type: ignore[method-assign]
    drivers = {id(driver): driver for driver, *_ in calls}
    made = {key: tested.make(driver.spec.geometry) for key, driver in drivers.items()}
    bound = [(getattr(made[id(driver)], name), *given) for driver, name, *given in calls]
    chooser = Chooser(1)

    def draw_all() -> None:
        for given in draws:
            draw(chooser, *given)

    def call_all() -> None:
        for method, arguments, keywords in bound:
            with suppress(AllocatorError):
                method(*arguments, **keywords)

    parts = {
        "drawing the operation": draw_all,
        "the calls on the allocator, its tables and counts": call_all,
        "all that a walk does": lambda: walk(tested, 1, steps, ledger),
    }
    found = {}
    for part, work in parts.items():
        start = time.process_time()
        work()
        found[part] = (time.process_time() - start) / steps * 1e6
    return found


def elsewhere(root: Path, steps: int, seed: int) -> dict[str, tuple[float, float]]:
    """`measure` in a process of its own, with the packages of a checkout."""
    places = os.pathsep.join(str(root / part) for part in ("spec", "impls"))
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(seed), "--steps", str(steps)],
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {name: (clock, busy) for name, (clock, busy) in found.items()}


@define
class Meter:
    """Watches a walk, and reads both clocks at each warm step."""

    steps: int = 0
    clock: list[float] = field(factory=list)
    busy: list[float] = field(factory=list)

    def note(self, step: Any) -> None:
        """Take in one step."""
        self.steps += 1
        if self.steps > WARM:
            self.clock.append(time.monotonic())
            self.busy.append(time.process_time())


def at_once(claim: Any, processes: int, seconds: float, seed: int) -> tuple[float, float]:
    """Operations a second of the clock, and of CPU, while all of so many walks are warm."""
    ended = walks(
        "reference",
        partial(reference, claim),
        seed,
        processes=processes,
        seconds=seconds,
        watcher=Meter,
    )
    meters = [one.watcher for one in ended if one.watcher is not None]
    assert all(meter.clock for meter in meters), f"{seconds:g} s are too few to be warm"
    first, last = max(m.clock[0] for m in meters), min(m.clock[-1] for m in meters)
    steps, busy = 0, 0.0
    for meter in meters:
        begin, end = bisect_left(meter.clock, first), bisect_right(meter.clock, last) - 1
        assert begin < end, f"{seconds:g} s are too few for all to be warm at once"
        steps += end - begin
        busy += meter.busy[end] - meter.busy[begin]
    return steps / (last - first), steps / busy


def table_of(title: str, heading: str, rates: dict[tuple[str, str], Rates]) -> Table:
    """By claim and by what the heading says: the medians and the best of both rates."""
    table = Table(title=title)
    table.add_column("claimed")
    table.add_column(heading)
    for column in ("operations/s, median", "best", "a second of CPU, median", "best"):
        table.add_column(column, justify="right")
    for claim in CLAIMS:
        for (claimed, which), measured in rates.items():
            if claimed == claim:
                clock, busy = zip(*measured, strict=True)
                figures = (statistics.median(clock), max(clock))
                figures += (statistics.median(busy), max(busy))
                table.add_row(claim, which, *(f"{figure:,.0f}" for figure in figures))
    return table


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=4000, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each of the walks at once.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Another checkout.")
@click.option("--measure", "seed", type=int, hidden=True)
def main(rounds: int, steps: int, seconds: float, against: Path | None, seed: int | None) -> None:
    """Print the tables."""
    if seed is not None:
        print(json.dumps(measure(steps, seed)))
        return
    roots = {"this checkout": ROOT, **({against.name: against} if against else {})}
    rates: dict[tuple[str, str], Rates] = {}
    together: dict[tuple[str, str], Rates] = {}
    for number in range(rounds):
        for root, path in roots.items():
            for claim, both in elsewhere(path.resolve(), steps, number + 1).items():
                rates.setdefault((claim, root), []).append(both)
        for name, claim in CLAIMS.items():
            for processes in sorted({1, os.cpu_count() or 1}):
                both = at_once(claim, processes, seconds, number + 1)
                together.setdefault((name, str(processes)), []).append(both)
    shares = stages(steps)
    where = Table(title="where the time goes, each without the others")
    where.add_column("stage")
    for claim in CLAIMS:
        where.add_column(claim, justify="right")
    for stage in shares["every capability"]:
        where.add_row(stage, *(f"{shares[claim][stage]:.0%}" for claim in CLAIMS))
    console = Console(width=110)
    console.print(
        table_of(f"{rounds} rounds of {steps:,} operations on the reference", "checkout", rates)
    )
    console.print(
        table_of(f"{rounds} rounds of walks at once, of {seconds:g} s", "processes", together)
    )
    console.print(where)
    least = Table(title="microseconds of CPU a step, core laws alone")
    least.add_column("what")
    least.add_column("µs", justify="right")
    for part, spent in floor(steps).items():
        least.add_row(part, f"{spent:.1f}")
    console.print(least)


if __name__ == "__main__":
    main()
