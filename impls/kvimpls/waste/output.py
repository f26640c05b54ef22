"""Where the results go: the terminal, and files that are written whole or not at all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from kvimpls.waste.requests import WasteError
from kvimpls.waste.runs import Report

_PIPED_WIDTH = 120
"""Without a terminal the width is fixed, so that the output does not depend on who pipes it."""


@contextmanager
def progress_bar(requests: int) -> Iterator[Report | None]:
    """Progress on a terminal, a line a scheme; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=terminal, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=requests)
            bars.update(tasks[name], completed=done)

        yield report


def show(*parts: RenderableType) -> None:
    """Print for the terminal, or for a file without the blanks at the ends of lines."""
    console = Console(highlight=False)
    if not sys.stdout.isatty():
        console.width = _PIPED_WIDTH
    with console.capture() as captured:
        for part in parts:
            console.print(part, markup=False)
    click.echo("\n".join(line.rstrip(" ") for line in captured.get().splitlines()), color=True)


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there; `WasteError` where that cannot be done."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise WasteError(f"{path}: it cannot be made: {error.strerror}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole, or leave what was there; `WasteError` where that cannot be done.

    A device or a pipe is written to as it is.
    """
    try:
        if (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev"):
            path.write_bytes(content)
            return
        path = path.resolve()  # a link goes on being one
        part = path.with_name(f"{path.name[:100]}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise WasteError(f"{path}: it cannot be written: {error.strerror}") from None
