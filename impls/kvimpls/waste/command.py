"""The command `kvspec waste`: replay a request trace, and print, save and draw what it shows.

Exit code 2, with one clear line, for whatever cannot be carried out; files are written at the
end, and each of them whole or not at all.
"""

import json
from fractions import Fraction
from pathlib import Path

import click

from kvimpls.waste import tables
from kvimpls.waste.drawing import draw
from kvimpls.waste.options import OneLineCommand, Stop, seconds, sizes, whole
from kvimpls.waste.output import make_folder, progress_bar, show, write_whole
from kvimpls.waste.pictures import require_matplotlib
from kvimpls.waste.prefix import prefix_hits
from kvimpls.waste.readers import read
from kvimpls.waste.requests import Trace, WasteError
from kvimpls.waste.runs import watched
from kvimpls.waste.schemes import DEFAULT_BLOCK_SIZES, DEFAULT_SCHEMES, KNOWN, parse_schemes

DEFAULT_CAPACITY = 131_072
MOST_CAPACITY = 2**27
"""A free list has an entry a block: beyond this it would take more memory than it models."""


@click.command(
    cls=OneLineCommand,
    short_help="Replay a request trace: what each allocation scheme does with the memory.",
)
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "--schemes",
    default=DEFAULT_SCHEMES,
    show_default=True,
    metavar="A,B,...",
    help=f"What to compare: {', '.join(KNOWN)}. A family alone is all its variants.",
)
@click.option(
    "--capacity",
    default=str(DEFAULT_CAPACITY),
    show_default=True,
    metavar="TOKENS",
    callback=whole(MOST_CAPACITY),
    help="Tokens of KV that the memory holds.",
)
@click.option(
    "--block-size",
    "block_sizes",
    default=",".join(map(str, DEFAULT_BLOCK_SIZES)),
    show_default=True,
    metavar="TOKENS,...",
    callback=sizes,
    help="Block sizes of the scheme `paged`.",
)
@click.option(
    "--limit", metavar="N", callback=whole(), help="Only the first N requests of the file."
)
@click.option(
    "--arrivals",
    type=click.Choice(["backlog", "timed"]),
    default="backlog",
    show_default=True,
    help="All requests wait from the beginning, or each comes at its time.",
)
@click.option(
    "--step-seconds",
    metavar="SECONDS",
    callback=seconds,
    help="How long a step takes, with --arrivals timed.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write all quantities and sums to this file as well.",
)
@click.option(
    "--plots", type=click.Path(path_type=Path), help="Draw pictures (PNG) into this folder."
)
def waste(
    trace_file: Path,
    schemes: str,
    capacity: int,
    block_sizes: tuple[int, ...],
    limit: int | None,
    arrivals: str,
    step_seconds: str | None,
    json_file: Path | None,
    plots: Path | None,
) -> None:
    """Replay the requests of TRACE through real allocators, and say where the memory went.

    TRACE is a file of request lengths: Azure's or Vidur's CSV, or Mooncake's JSON lines.
    docs/waste.md defines the schemes and every quantity.
    """
    try:
        _check_places(json_file, plots)
        chosen = parse_schemes(schemes, block_sizes)
        for scheme in chosen:
            scheme.geometry(capacity)  # now rather than after minutes
        trace = read(trace_file, limit)
        steps = _arrival_steps(trace, arrivals, step_seconds)
        hits = prefix_hits(trace, capacity)
        drawn: dict[str, bytes] = {}
        with progress_bar(len(trace)) as report:
            drawing = plots is not None
            runs = list(watched(trace, chosen, capacity, steps, draw=drawing, progress=report))
            if drawing:
                drawn = draw(trace, runs, capacity, steps, report)
        results = [run.result for run in runs]
        if plots is not None:
            make_folder(plots)  # before anything is shown or written, since it may fail
        timing = "backlog" if step_seconds is None else f"timed, {step_seconds} s a step"
        show(tables.heading(trace, capacity, timing), "")
        show(tables.memory_table(results), "", tables.event_table(results))
        if hits is not None:
            show("", tables.prefix_line(hits))
        if json_file is not None:
            data = tables.as_data(trace, capacity, step_seconds, hits, results)
            write_whole(json_file, (json.dumps(data, indent=1) + "\n").encode())
        if plots is not None:
            for name, content in drawn.items():
                write_whole(plots / name, content)
                click.echo(f"drew {plots / name}")
    except WasteError as error:
        raise Stop(str(error)) from None
    except OSError as error:
        raise Stop(str(error)) from None
    except MemoryError:
        raise Stop(f"a capacity of {capacity} tokens needs more memory than there is") from None


def _check_places(json_file: Path | None, plots: Path | None) -> None:
    """Whether the files can be written, before anything takes time."""
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise WasteError(f"{json_file}: it cannot be written: it is a folder, or in none")
    if plots is not None:
        require_matplotlib()
        if plots.exists() and not plots.is_dir():
            raise WasteError(f"{plots}: the pictures need a folder, and this is a file")
        if not plots.absolute().parent.is_dir():
            raise WasteError(f"{plots}: it cannot be made: there is no folder above it")


def _arrival_steps(trace: Trace, arrivals: str, step_seconds: str | None) -> tuple[int, ...] | None:
    if arrivals == "backlog":
        if step_seconds is not None:
            raise WasteError("--step-seconds has a meaning only with --arrivals timed")
        return None
    if step_seconds is None:
        raise WasteError("--arrivals timed needs --step-seconds: how long does a step take?")
    return trace.arrival_steps(Fraction(step_seconds))
