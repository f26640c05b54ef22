"""What the commands share: options, the one clear line, printing, saving."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.suite.report import ExitCode
from kvspec.traces.trace import Trace, file_name, save, write_whole

_PIPED_WIDTH = 120
"""Without a terminal the width is fixed, so that the output does not depend on who pipes it."""


class Stop(click.ClickException):
    """What cannot be carried out: one line, exit code 2."""

    exit_code = int(ExitCode.NOT_CARRIED_OUT)

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"kvspec: {' '.join(self.message.split())}", err=True)


def seconds(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """A number of seconds, for an option; `None` where it is not given and has no default."""
    if value is not None and not 0 < value <= 86400:  # which nan is not either
        raise click.BadParameter(f"{value} is no number of seconds above 0 and up to a day")
    return value


def _on_device(context: click.Context, parameter: click.Parameter, device: str | None) -> None:
    """Tell the allocators by the environment, for as long as the command lasts."""
    if device is None:
        return
    before = os.environ.get("KVSPEC_DEVICE")
    os.environ["KVSPEC_DEVICE"] = device

    def restore() -> None:
        if before is None:
            os.environ.pop("KVSPEC_DEVICE", None)
        else:
            os.environ["KVSPEC_DEVICE"] = before

    context.call_on_close(restore)


DEVICE = click.option(
    "--device",
    metavar="cpu|cuda|...",
    callback=_on_device,
    expose_value=False,
    help="Where allocators that hold tensors put them (as KVSPEC_DEVICE says it).",
)

CONTRACT = click.option(
    "--contract",
    metavar="NAME|FILE.json|FIELD=VALUE,...",
    help="What the allocator promises, instead of its own contract.",
)

SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed gives the same run."
)

JSON = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the reports to this file as well.",
)

SAVE_TRACES = click.option(
    "--save-traces",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save counterexamples in this folder.",
)

TIMEOUT = click.option(
    "--call-timeout",
    type=float,
    callback=seconds,
    default=DEFAULT_CALL_TIMEOUT,
    show_default=True,
    help="Seconds that one call may take.",
)


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    if not sys.stdout.isatty():
        console.width = _PIPED_WIDTH
    return console


def put(*parts: RenderableType) -> None:
    """Print for the terminal, or for a file without the blanks at the ends of lines."""
    console = _console()
    with console.capture() as captured:
        for part in parts:
            console.print(part, markup=False)
    lines = captured.get().splitlines()
    click.echo("\n".join(line.rstrip(" ") for line in lines), color=True)


def keep(traces: Sequence[Trace], folder: Path) -> None:
    """Save the traces in `folder`, each under a name of its own, and say so."""
    taken: set[Path] = set()
    for trace in traces:
        name = path = folder / file_name(trace)
        count = 1
        while path in taken:
            count += 1
            path = name.with_stem(f"{name.stem}-{count}")
        taken.add(path)
        try:
            save(trace, path)
        except OSError as error:
            raise Stop(f"{path}: it cannot be written: {error.strerror}") from None
        click.echo(f"saved {path}")


def writable(json_file: Path | None) -> None:
    """Stop where the folder of `json_file` is missing: better now than after minutes."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise Stop(f"{json_file}: it cannot be written: there is no such folder")


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, or stop."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise Stop(f"{path}: it cannot be written: {error.strerror}") from None
