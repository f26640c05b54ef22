"""The command line: check, show, replay, export.

Exit codes: 0 all claimed laws held, 1 a law was broken, 2 the command could not be carried
out, 3 a claimed law was vacuous; 2 before 1 before 3. What cannot be carried out is one clear
line on standard error, and no traceback.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from attrs import evolve
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, NotBuilt
from kvspec.driver.target import (
    NotInstalled,
    Target,
    TargetError,
    load,
    promised,
    registered,
    target,
)
from kvspec.engines.machine import PROFILES
from kvspec.engines.replay import replay
from kvspec.suite.check import REPLAYS, check_allocator
from kvspec.suite.contracts import ContractError, parse_contract
from kvspec.suite.matrix import Absent, as_data, matrix
from kvspec.suite.report import ExitCode, Report
from kvspec.traces import table
from kvspec.traces.export import as_pytest
from kvspec.traces.trace import Trace, TraceError, save
from kvspec.traces.trace import load as load_trace

_TIMEOUT = click.option(
    "--call-timeout",
    type=click.FloatRange(min=0.0, min_open=True),
    default=DEFAULT_CALL_TIMEOUT,
    show_default=True,
    help="Seconds that one call may take.",
)


def _console(stderr: bool = False) -> Console:
    # Without a terminal the width is fixed, so that piped output does not depend on who pipes.
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = 120
    return console


class _Stop(click.ClickException):
    """What cannot be carried out: one line, exit code 2."""

    exit_code = int(ExitCode.NOT_CARRIED_OUT)

    def show(self, file: Any = None) -> None:
        click.echo(f"kvspec: {' '.join(self.message.split())}", err=True)


def _resolve(text: str, contract: str | None, timeout: float) -> Target:
    factory = load(text)
    promise = promised(factory, text) if contract is None else _override(factory, text, contract)
    return target(factory, text, promise, timeout)


def _override(factory: Callable[..., Any], text: str, contract: str) -> Contract:
    try:
        return parse_contract(contract, promised(factory, text))
    except ContractError as error:
        raise TargetError(str(error)) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvspec")
def main() -> None:
    """An executable specification of KV-cache block allocators, and its conformance suite."""


@main.command()
@click.argument("targets", nargs=-1)
@click.option(
    "--contract",
    metavar="NAME|FILE.json|FIELD=VALUE,...",
    help="What the allocator promises, instead of its own contract.",
)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--save-traces", type=click.Path(file_okay=False, path_type=Path))
@_TIMEOUT
def check(
    targets: tuple[str, ...],
    contract: str | None,
    profile: str,
    seed: int,
    json_file: Path | None,
    save_traces: Path | None,
    call_timeout: float,
) -> None:
    """Check TARGETS, or all registered allocators, and print the matrix.

    A target is module:factory, path/to/file.py:factory, or a registered name.
    """
    absent: list[Absent] = []
    resolved: list[Target] = []
    for text in targets or registered():
        try:
            resolved.append(_resolve(text, contract, call_timeout))
        except NotInstalled as error:
            if targets:
                raise _Stop(str(error)) from None
            absent.append(Absent(text, str(error).removeprefix(f"{text}: ")))
        except TargetError as error:
            raise _Stop(str(error)) from None
    if not resolved:
        raise _Stop("no allocator is registered: name a target")
    with _progress() as bar:
        reports = [
            _checked(one, bar, profile=profile, seed=seed, timeout=call_timeout) for one in resolved
        ]
    console = _console()
    for report in reports:
        if report.trace is not None:
            console.print(table.render(report.trace, report.reproduced, report.replays))
            console.print()
    console.print(matrix(reports, absent))
    if save_traces is not None:
        for report in reports:
            if report.trace is not None:
                path = save_traces / f"{_file_name(report)}.json"
                save(report.trace, path)
                console.print(f"saved {path}")
    if json_file is not None:
        _write(json_file, json.dumps(as_data(reports, absent), indent=1) + "\n")
    raise SystemExit(_exit_code(reports))


def _file_name(report: Report) -> str:
    name = "".join(c if c.isalnum() else "-" for c in report.allocator).strip("-")
    return f"{name}-{report.trace.law if report.trace else 'trace'}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _Stop(f"{path}: it cannot be written: {error.strerror}") from None


def _exit_code(reports: Sequence[Report]) -> int:
    codes = {report.exit_code for report in reports}
    order = (ExitCode.NOT_CARRIED_OUT, ExitCode.BROKEN, ExitCode.VACUOUS)
    return int(next((code for code in order if code in codes), ExitCode.HELD))


def _progress() -> AbstractContextManager[Progress | None]:
    console = _console(stderr=True)
    if not console.is_terminal:
        return nullcontext()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _checked(one: Target, bar: Progress | None, **options: Any) -> Report:
    try:
        if bar is None:
            return check_allocator(one, **options)
        task = bar.add_task(one.name, total=None)
        return check_allocator(
            one, progress=lambda done, of: bar.update(task, completed=done, total=of), **options
        )
    except (TargetError, NotBuilt) as error:
        raise _Stop(f"{one.name}: {error}") from None


def _trace_from(path: Path) -> Trace:
    try:
        return load_trace(path)
    except TraceError as error:
        raise _Stop(str(error)) from None


_TRACE = click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))


@main.command()
@_TRACE
def show(trace_file: Path) -> None:
    """Show a saved trace as a table. Nothing of it is run."""
    _console().print(table.render(_trace_from(trace_file)))


@main.command("replay")
@_TRACE
@click.option("--allocator", required=True, metavar="TARGET", help="What to replay it on.")
@_TIMEOUT
def replay_command(trace_file: Path, allocator: str, call_timeout: float) -> None:
    """Replay a saved trace on an allocator: exit 1 when a law is broken, or it does not reproduce.

    The trace's own contract and capabilities are what it is judged by.
    """
    trace = _trace_from(trace_file)
    try:
        factory = load(allocator)
        runs = [replay(factory, trace, call_timeout) for _ in range(REPLAYS)]
    except (TargetError, NotBuilt) as error:
        raise _Stop(str(error)) from None
    count = sum(run.law == trace.law for run in runs)
    shown = next((run for run in runs if run.law == trace.law), runs[0])
    console = _console()
    console.print(table.render(evolve(shown, allocator=allocator), count, REPLAYS))
    if trace.law is None:
        broken = any(run.law is not None for run in runs)
    else:
        broken = True
        again = "broken again" if count else "not reproduced"
        if count == 0 and all(run.law is None for run in runs):
            console.print(f"{trace.law}: not reproduced (0 of {REPLAYS}): the law holds here now")
            broken = False
        else:
            console.print(f"{trace.law}: {again} ({count} of {REPLAYS})")
    raise SystemExit(int(ExitCode.BROKEN if broken else ExitCode.HELD))


@main.command()
@_TRACE
@click.option("--allocator", metavar="TARGET", help="What the test imports.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path))
def export(trace_file: Path, allocator: str | None, output: Path | None) -> None:
    """Print a saved trace as a stand-alone pytest file."""
    try:
        text = as_pytest(_trace_from(trace_file), allocator)
    except ValueError as error:
        raise _Stop(str(error)) from None
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)


if __name__ == "__main__":
    main()
