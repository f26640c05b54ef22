"""Several replays of one trace, each watched for what is to be drawn of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import frozen

from kvimpls.waste.record import MemoryMap, Series
from kvimpls.waste.replay import Replay, replay
from kvimpls.waste.requests import Trace
from kvimpls.waste.result import Result
from kvimpls.waste.schemes import Scheme, parse_schemes

Report: TypeAlias = Callable[[str, int], None]
"""Told a scheme's name, and how many of its requests are done."""

SWEEP = tuple(2**power for power in range(3, 10))
"""Block sizes for the picture of waste against block size: 8 to 512 tokens."""

MAP_COLUMNS = 640
MAP_LIFETIMES = 8
"""A memory map shows the beginning: so many times the mean number of output tokens, in steps."""

_EVERY = 256
"""Steps between two reports of progress."""


@frozen
class Run:
    """One replay, and what it was watched for."""

    result: Result
    series: Series | None = None
    memory: MemoryMap | None = None


def watched(
    trace: Trace,
    schemes: Sequence[Scheme],
    capacity: int,
    arrivals: Sequence[int] | None = None,
    *,
    draw: bool = False,
    progress: Report | None = None,
) -> Iterator[Run]:
    """Replay the trace with one scheme after the other; with `draw`, recorded for the pictures."""
    for scheme in schemes:
        series = Series() if draw else None
        memory = MemoryMap(_stride(trace), MAP_COLUMNS) if draw and scheme.contiguous else None
        recorders = [recorder for recorder in (series, memory) if recorder is not None]

        def watch(
            run: Replay,
            recorders: Sequence[Callable[[Replay], None]] = recorders,
            name: str = scheme.name,
        ) -> None:
            for recorder in recorders:
                recorder(run)
            if progress is not None and run.time % _EVERY == 0:
                progress(name, run.served + run.rejected)

        result = replay(trace, scheme, capacity, arrivals=arrivals, watch=watch)
        if progress is not None:
            progress(scheme.name, len(trace))
        yield Run(result, series, memory)


def sweep_schemes(capacity: int) -> tuple[Scheme, ...]:
    """`paged:B` for the block sizes of the sweep that the capacity has room for."""
    return parse_schemes("paged", [size for size in SWEEP if size <= capacity])


def _stride(trace: Trace) -> int:
    steps = MAP_LIFETIMES * sum(trace.outputs) // len(trace)
    return max(1, -(-steps // MAP_COLUMNS))
