"""The command line: check, show, replay, export, and the commands of other modules.

Exit codes: 0 all claimed laws held, 1 a law was broken, 2 the command could not be carried
out, 3 a claimed law was vacuous; 2 before 1 before 3. What cannot be carried out is one clear
line on standard error, and no traceback.
"""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click
from attrs import evolve
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvspec.doors import (
    CONTRACT,
    DEVICE,
    JSON,
    SAVE_TRACES,
    SEED,
    TIMEOUT,
    Stop,
    keep,
    put,
    writable,
    write,
)
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import (
    ENGINES,
    GROUP,
    NotInstalled,
    Target,
    TargetError,
    load,
    registered,
    target,
)
from kvspec.engines.machine import BACKENDS, DEFAULT_BACKEND, PROFILES, missing
from kvspec.engines.replay import replay
from kvspec.engines.scratch import scratch
from kvspec.suite.check import REPLAYS, check_allocator
from kvspec.suite.contracts import ContractError, resolve
from kvspec.suite.matrix import Absent, as_data, exit_code, matrix
from kvspec.suite.report import ExitCode, Report
from kvspec.suite.situations import situations
from kvspec.traces import table
from kvspec.traces.export import as_pytest
from kvspec.traces.trace import Trace, TraceError
from kvspec.traces.trace import load as load_trace

COMMANDS = "kvspec.commands"
"""The entry-point group in which other packages add commands."""


class _Group(click.Group):
    """The commands, those of other modules among them, which are imported when asked for.

    An interrupted command was not carried out, which is no broken law.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_elsewhere()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _elsewhere():
            return _loaded(_elsewhere()[cmd_name])
        return command

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            # Names and texts of others may have what the stream's encoding lacks.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stop("interrupted") from None


def _elsewhere() -> dict[str, EntryPoint]:
    own = (
        EntryPoint("new", "kvspec.suite.new_command:new", COMMANDS),
        EntryPoint("size", "kvspec.sizing.command:size", COMMANDS),
        EntryPoint("walk", "kvspec.suite.walk_command:walk", COMMANDS),
        EntryPoint("explore", "kvspec.suite.explore_command:explore", COMMANDS),
        EntryPoint("symbolic", "kvspec.symbolic.command:symbolic", COMMANDS),
    )
    return {point.name: point for point in (*entry_points(group=COMMANDS), *own)}


def _loaded(point: EntryPoint) -> click.Command:
    """The command; where it cannot be imported, one that says so when it is used."""
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        reason = f"it needs {error.name}, which is not installed"
    except Exception as error:  # whatever the code of others does when it is imported
        reason = f"it cannot be imported: {type(error).__name__}: {error}"
    else:
        if isinstance(command, click.Command):
            return command
        reason = f"{point.value} is not a command"

    def stop(**_: Any) -> None:
        raise Stop(f"{point.name}: {reason}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        point.name, callback=stop, help=f"Not available: {reason}", context_settings=anything
    )


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvspec")
def main() -> None:
    """An executable specification of KV-cache block allocators, and its conformance suite."""


@main.command()
@click.argument("targets", nargs=-1)
@click.option("--engines", is_flag=True, help="Check the published engines' allocators.")
@CONTRACT
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="ci",
    show_default=True,
    help="How much is tried.",
)
@SEED
@click.option("--coverage", is_flag=True, help="Show which operation was tried in which situation.")
@click.option(
    "--hypothesis-backend",
    "backend",
    type=click.Choice(BACKENDS),
    default=DEFAULT_BACKEND,
    show_default=True,
    help="What Hypothesis draws from; crosshair solves for numbers, slowly.",
)
@JSON
@SAVE_TRACES
@DEVICE
@TIMEOUT
def check(
    targets: tuple[str, ...],
    engines: bool,
    contract: str | None,
    profile: str,
    seed: int,
    coverage: bool,
    backend: str,
    json_file: Path | None,
    save_traces: Path | None,
    call_timeout: float,
) -> None:
    """Check TARGETS, or all registered allocators but engines, and print the matrix.

    A target is module:factory, path/to/file.py:factory, or a registered name.
    """
    if (lacks := missing(backend)) is not None:
        raise Stop(lacks)
    if engines and targets:
        raise Stop("check: name targets, or ask for --engines, not both")
    group = registered(ENGINES if engines else GROUP)
    resolved, absent, failed = _resolved(targets, group, contract, call_timeout)
    writable(json_file)
    reports = []
    with scratch(), _progress() as bar:
        for one in resolved:
            try:
                options: dict[str, Any] = {"profile": profile, "seed": seed}
                options |= {"timeout": call_timeout, "coverage": coverage, "backend": backend}
                reports.append(_checked(one, bar, **options))
            except (TargetError, NotBuilt) as error:
                failed.append(Absent(one.name, str(error).removeprefix(f"{one.name}: ")))
    for report in reports:
        if report.trace is not None:
            put(table.render(report.trace, report.reproduced, report.replays), "")
    put(matrix(reports, absent, failed))
    for report in reports if coverage else ():
        put("", situations(report))
    if save_traces is not None:
        keep([report.trace for report in reports if report.trace is not None], save_traces)
    if json_file is not None:
        write(json_file, json.dumps(as_data(reports, absent, failed), indent=1) + "\n")
    for row in failed:
        Stop(f"{row.allocator}: {row.reason}").show()
    raise SystemExit(int(exit_code(reports, failed)))


def _resolved(
    named: Sequence[str], group: Mapping[str, str], contract: str | None, timeout: float
) -> tuple[list[Target], list[Absent], list[Absent]]:
    """The targets, those that are not installed, and those that cannot be checked.

    What was named must be there; what is only registered must not stand in the way of others.
    """
    resolved: list[Target] = []
    absent: list[Absent] = []
    failed: list[Absent] = []
    for text in named or group:
        try:
            resolved.append(resolve(text, contract, timeout))
        except TargetError as error:
            if named or isinstance(error, ContractError):
                raise Stop(str(error)) from None
            rows = absent if isinstance(error, NotInstalled) else failed
            # The text begins with the target; a registered one is known by its name.
            rows.append(Absent(text, str(error).partition(": ")[2] or str(error)))
    if not (resolved or failed):
        which = f" (not installed: {', '.join(row.allocator for row in absent)})" if absent else ""
        raise Stop(f"no allocator is registered that could be checked{which}: name a target")
    return resolved, absent, failed


def _progress() -> AbstractContextManager[Progress | None]:
    if not sys.stderr.isatty():
        return nullcontext()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _checked(one: Target, bar: Progress | None, **options: Any) -> Report:
    if bar is None:
        return check_allocator(one, **options)
    task = bar.add_task(one.name, total=None)
    return check_allocator(
        one, progress=lambda done, of: bar.update(task, completed=done, total=of), **options
    )


def _trace_from(path: Path) -> Trace:
    try:
        return load_trace(path)
    except TraceError as error:
        raise Stop(str(error)) from None


_TRACE = click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))


@main.command()
@_TRACE
def show(trace_file: Path) -> None:
    """Show a saved trace as a table. Nothing of it is run."""
    put(table.render(_trace_from(trace_file)))


@main.command("replay")
@_TRACE
@click.option("--allocator", required=True, metavar="TARGET", help="What to replay it on.")
@DEVICE
@TIMEOUT
def replay_command(trace_file: Path, allocator: str, call_timeout: float) -> None:
    """Replay a saved trace on an allocator.

    The trace's own contract and capabilities are what it is judged by. Exit 1 when a law is
    broken, whether or not it is the one of the trace.
    """
    trace = _trace_from(trace_file)
    contract = evolve(trace.contract, capabilities=trace.capabilities)
    try:
        tested = target(load(allocator), allocator, contract, call_timeout)
        runs = [replay(tested.make, trace, call_timeout) for _ in range(REPLAYS)]
    except (TargetError, NotBuilt) as error:
        raise Stop(str(error)) from None
    count = sum(run.law == trace.law for run in runs)
    shown = next((run for run in runs if run.law == trace.law), runs[0])
    put(table.render(evolve(shown, allocator=allocator), count, REPLAYS))
    if trace.law is None:
        broken = any(run.law is not None for run in runs)
    else:
        broken = True
        again = "broken again" if count else "not reproduced"
        if count == 0 and all(run.law is None for run in runs):
            click.echo(f"{trace.law}: not reproduced (0 of {REPLAYS}): the law holds here now")
            broken = False
        else:
            click.echo(f"{trace.law}: {again} ({count} of {REPLAYS})")
    raise SystemExit(int(ExitCode.BROKEN if broken else ExitCode.HELD))


@main.command()
@_TRACE
@click.option("--allocator", metavar="TARGET", help="What the test imports.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead.",
)
def export(trace_file: Path, allocator: str | None, output: Path | None) -> None:
    """Print a saved trace as a stand-alone pytest file."""
    try:
        text = as_pytest(_trace_from(trace_file), allocator)
    except ValueError as error:
        raise Stop(str(error)) from None
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)


if __name__ == "__main__":
    main()
