"""`kvspec museum`: the kill table of a museum of faults.

Exit codes: 0 every exhibit was killed on every seed, 1 one survived at least one, 2 the command
could not be carried out. The exhibits come from whoever makes the command.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import StringIO
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvspec import doors
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import TargetError
from kvspec.engines.machine import PROFILES
from kvspec.engines.scratch import scratch
from kvspec.suite import kill_tables
from kvspec.suite.killing import (
    DEFAULT_SECONDS,
    ENGINES,
    MOST_STATES,
    Exhibit,
    KillTable,
    kill_table,
)

_WIDTH = 120
"""Columns of a table that goes into a file."""


def museum_command(exhibits: Iterable[Exhibit]) -> click.Command:
    """The command that measures what the suite finds of these exhibits.

    A package with a museum of faults registers it in the entry-point group `kvspec.commands`.
    """
    by_name = {exhibit.name: exhibit for exhibit in exhibits}

    @click.command(
        "museum", short_help="The kill table: which known faults are found, and how soon."
    )
    @click.argument("names", nargs=-1, metavar="[NAME]...")
    @click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
        help="How many seeds are run, --seed and those after it.",
    )
    @doors.SEED
    @click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=ENGINES[0],
        show_default=True,
        help="What looks for the faults; no scripted witness does.",
    )
    @click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="How much the machine tries.  [default: ci]",
    )
    @click.option(
        "--seconds",
        type=float,
        callback=lambda *given: given[2] if given[2] is None else doors.seconds(*given),
        help=f"How long the walk looks for each fault.  [default: {DEFAULT_SECONDS:g}]",
    )
    @click.option(
        "--minimum-states",
        "most_states",
        type=click.IntRange(min=0),
        default=MOST_STATES,
        show_default=True,
        help="Through how many states the shortest story of each is searched for; 0: not at all.",
    )
    @click.option(
        "--format",
        "form",
        type=click.Choice(["terminal", "markdown", "json"]),
        default="terminal",
        show_default=True,
        help="How the table is written.",
    )
    @click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the table to this file instead.",
    )
    @doors.TIMEOUT
    def museum(
        names: tuple[str, ...],
        seeds: int,
        seed: int,
        engine: str,
        profile: str | None,
        seconds: float | None,
        most_states: int,
        form: str,
        output: Path | None,
        call_timeout: float,
    ) -> None:
        """Look for the known faults NAMES, or for all, and print what was found how soon.

        Each fault is an allocator that is right but for that fault. What is not found stays in
        the table as a survivor. Figures are medians over the seeds that found the fault.
        """
        if profile is not None and engine != "machine":
            raise doors.Stop("museum: --profile has a meaning only with --engine machine")
        if seconds is not None and engine != "walk":
            raise doors.Stop("museum: --seconds has a meaning only with --engine walk")
        chosen = _chosen(names, by_name)
        doors.writable(output)
        try:
            with scratch(), _progress() as progress:
                table = kill_table(
                    chosen,
                    seeds=seeds,
                    seed=seed,
                    engine=engine,
                    profile=profile or "ci",
                    seconds=seconds or DEFAULT_SECONDS,
                    most_states=most_states,
                    timeout=call_timeout,
                    progress=progress,
                )
        except (TargetError, NotBuilt) as error:
            raise doors.Stop(str(error)) from None
        _show(table, form, output)
        raise SystemExit(int(table.exit_code))

    return museum


def _chosen(names: Sequence[str], by_name: Mapping[str, Exhibit]) -> tuple[Exhibit, ...]:
    """The exhibits of these names, each once, in the order of the museum; all without names."""
    wanted = set(names)
    for name in names:
        if name not in by_name:
            close = get_close_matches(name, by_name, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise doors.Stop(f"museum: there is no exhibit {name}{hint}")
    return tuple(one for name, one in by_name.items() if not wanted or name in wanted)


def _show(table: KillTable, form: str, output: Path | None) -> None:
    if form == "json":
        text = json.dumps(table.as_data(), indent=1)
    elif form == "markdown":
        text = kill_tables.as_markdown(table)
    else:
        parts: list[RenderableType]
        parts = [kill_tables.for_terminal(table), "", kill_tables.summary(table)]
        parts += [kill_tables.UNEXPECTED] if kill_tables.unexpected(table) else []
        if output is None:
            doors.put(*parts)
            return
        console = Console(file=StringIO(), width=_WIDTH, highlight=False)
        for part in parts:
            console.print(part, markup=False)
        assert isinstance(console.file, StringIO)
        text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    if output is None:
        click.echo(text)
        return
    doors.write(output, f"{text}\n")
    click.echo(kill_tables.summary(table))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal, with the exhibit that is looked for; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda name, done, of: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=terminal, transient=True) as bars:
        task = bars.add_task("museum", total=None)
        yield lambda name, done, of: bars.update(task, description=name, completed=done, total=of)
