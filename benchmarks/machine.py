"""Machine steps a second, against an empty Hypothesis machine with as many rules.

What the specification, the driver and the allocator cost, beside what Hypothesis costs
anyway. The three machines take turns in one run, and the medians and the ratios to the empty
one are printed, since machines are shared and noisy.

    python benchmarks/machine.py [--rounds 5] [--episodes 150]
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rich.console import Console
from rich.table import Table

from kvspec.driver.target import Target, load, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import Profile, run_machine

STEPS = 40


def empty_machine(rules: int, counted: list[int]) -> type[RuleBasedStateMachine]:
    """A machine whose rules draw nothing and do nothing but count."""

    def body(self: Any) -> None:
        counted[0] += 1

    def named(name: str) -> Any:
        function = type(body)(body.__code__, body.__globals__, name, None, body.__closure__)
        return rule()(function)

    members = {f"rule_{i}": named(f"rule_{i}") for i in range(rules)}
    return type("EmptyMachine", (RuleBasedStateMachine,), members)


def run_empty(rules: int, episodes: int, number: int) -> int:
    """Steps done."""
    counted = [0]
    limits = settings(
        max_examples=episodes,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(empty_machine(rules, counted)), settings=limits)
    return counted[0]


def run_target(tested: Target, episodes: int, number: int) -> int:
    """Steps done."""
    ledger = Ledger()
    run = run_machine(tested, Profile(episodes, STEPS), ledger, number)
    assert run.trace is None, run.trace
    return ledger.steps


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--episodes", default=150, show_default=True)
@click.argument("targets", nargs=-1)
def main(rounds: int, episodes: int, targets: tuple[str, ...]) -> None:
    """Print the table for TARGETS, by default the reference and the torch implementation."""
    names = targets or ("reference", "torch_paged")
    tested = [target(load(name), name) for name in names]
    rules = sum(proposal.weight for proposal in tested[0].specification().proposals())
    runners: dict[str, Callable[[int], int]] = {
        f"empty machine, {rules} rules": lambda n: run_empty(rules, episodes, n)
    }
    for one in tested:
        runners[one.name] = lambda n, one=one: run_target(one, episodes, n)  # type: ignore[misc]  # bound per loop
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, runner in runners.items():
            start = time.perf_counter()
            steps = runner(number)
            rate = steps / (time.perf_counter() - start)
            if number > 0:  # the first round warms up
                rates[name].append(rate)
    table = Table(title=f"{rounds} rounds of {episodes} episodes of at most {STEPS} steps")
    table.add_column("machine")
    for column in ("steps/s, median", "min", "max", "of the empty one"):
        table.add_column(column, justify="right")
    first = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        median = statistics.median(values)
        table.add_row(
            name,
            f"{median:,.0f}",
            f"{min(values):,.0f}",
            f"{max(values):,.0f}",
            f"{median / first:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
