"""Which pictures a replay gets, under which file names."""

from collections.abc import Sequence

from kvimpls.waste import pictures
from kvimpls.waste.memory_map import memory_map
from kvimpls.waste.requests import Trace
from kvimpls.waste.runs import Report, Run, sweep_schemes, watched


def draw(
    trace: Trace,
    runs: Sequence[Run],
    capacity: int,
    arrivals: Sequence[int] | None = None,
    progress: Report | None = None,
) -> dict[str, bytes]:
    """All pictures of some runs of a trace: the contents of PNG files by name.

    The picture by block size takes replays of its own, for the sizes that are not among `runs`.
    """
    about = f"{trace.name}, {len(trace):,} requests, capacity {capacity:,} tokens"
    results = [run.result for run in runs]
    drawn = {
        "schemes.png": pictures.bars(results, f"Where the memory is: {about}"),
        "time.png": pictures.over_time(runs, f"Over time: {about}"),
    }
    sizes = sweep_schemes(capacity)
    done = {result.scheme: result for result in results}
    missing = [scheme for scheme in sizes if scheme.name not in done]
    for run in watched(trace, missing, capacity, arrivals, progress=progress):
        done[run.result.scheme] = run.result
    if sizes:
        swept = [done[scheme.name] for scheme in sizes]
        drawn["block-size.png"] = pictures.by_block_size(swept, f"Paged: {about}")
    for run in runs:
        if run.memory is not None and run.memory.snapshots:
            name = run.result.scheme
            title = f"The pool of {name}: {about}"
            drawn[f"map-{name.replace(':', '-')}.png"] = memory_map(run.memory, capacity, title)
    return {name: pictures.as_png(figure) for name, figure in drawn.items()}
