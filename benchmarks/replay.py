"""How fast `kvspec waste` replays a request trace: request-steps a second, by scheme.

A request-step is one running request in one step: an append, and a look at the free count. The
requirement is the whole Azure conversation trace with paged:16 in 60 seconds on two cores.

    python benchmarks/replay.py TRACE [--schemes paged:16,oracle:ff] [--limit N]
"""

import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvimpls.waste import WasteError, parse_schemes, read, replay


@click.command()
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--schemes", default="paged:16", show_default=True)
@click.option("--capacity", default=131_072, show_default=True)
@click.option("--limit", type=int)
def main(trace_file: Path, schemes: str, capacity: int, limit: int | None) -> None:
    """Print the table for TRACE, a backlog."""
    try:
        chosen = parse_schemes(schemes)
        start = time.perf_counter()
        trace = read(trace_file, limit)
        reading = time.perf_counter() - start
    except WasteError as error:
        raise click.ClickException(str(error)) from None
    table = Table(title=f"{trace.name}: {len(trace):,} requests, read in {reading:.2f} s")
    table.add_column("scheme")
    for column in ("steps", "request-steps", "seconds", "of them CPU", "request-steps/s"):
        table.add_column(column, justify="right")
    for scheme in chosen:
        start, busy = time.perf_counter(), time.process_time()
        total = replay(trace, scheme, capacity).total
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        table.add_row(
            scheme.name,
            f"{total.steps:,}",
            f"{total.running:,}",
            f"{seconds:.1f}",
            f"{busy:.1f}",
            f"{total.running / seconds:,.0f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
