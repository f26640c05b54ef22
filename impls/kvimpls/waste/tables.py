"""A replay's results as tables for the terminal, and as data for JSON."""

from collections.abc import Sequence
from typing import Any

from attrs import asdict
from rich.table import Table

from kvimpls.waste.prefix import PrefixHits
from kvimpls.waste.requests import Trace
from kvimpls.waste.result import Result

NONE = "–"
"""For what is not defined: a mean over no steps, holes where none can matter."""


def percent(share: float | None) -> str:
    """A fraction as percent, with two digits.

    >>> percent(0.98604), percent(None)
    ('98.60', '–')
    """
    return NONE if share is None else f"{100 * share:.2f}"


def memory_table(results: Sequence[Result]) -> Table:
    """Where the capacity was, in percent, and how much ran at once."""
    table = Table(title="Percent of the capacity, means over the saturated window")
    table.add_column("scheme", no_wrap=True)
    for column in ("stored", "future", "internal", "free", "ext. waste", "ext. index", "U_res"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("running, mean", "peak"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        shares = result.shares
        parts = (None,) * 4 if shares is None else tuple(asdict(shares).values())
        index = result.fragmentation_index
        table.add_row(
            result.scheme,
            *(percent(part) for part in parts),
            percent(result.fragmentation_waste),
            NONE if index is None else f"{index:.4f}",
            percent(result.total.utilisation),
            NONE if result.concurrency is None else f"{result.concurrency:.2f}",
            f"{result.peak:,}",
        )
    return table


def event_table(results: Sequence[Result]) -> Table:
    """What happened: requests, steps, and the tokens that had to be done again or moved."""
    table = Table(title="Requests, steps and tokens")
    table.add_column("scheme", no_wrap=True)
    columns = ("served", "rejected", "steps", "of them saturated", "preempted")
    for column in (*columns, "recomputed tokens", "relocated tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        counts = (
            result.served,
            result.rejected,
            result.total.steps,
            result.window.steps,
            result.preempted,
            result.recomputed,
            result.relocated,
        )
        table.add_row(result.scheme, *(f"{count:,}" for count in counts))
    return table


def heading(trace: Trace, capacity: int, arrivals: str) -> str:
    """What was replayed, in one line."""
    return (
        f"{trace.name}: {len(trace):,} requests, {sum(trace.prompts):,} prompt and "
        f"{sum(trace.outputs):,} output tokens; capacity {capacity:,} tokens; {arrivals}"
    )


def prefix_line(hits: PrefixHits) -> str:
    """The prefix hits, in one line."""
    return (
        f"prefix hits, percent of prompt tokens: {percent(hits.infinite_share)} with an infinite "
        f"cache, {percent(hits.lru_share)} with an LRU cache of {hits.capacity:,} tokens"
    )


def as_data(
    trace: Trace,
    capacity: int,
    step_seconds: str | None,
    hits: PrefixHits | None,
    results: Sequence[Result],
) -> dict[str, Any]:
    """All of it, for JSON; `step_seconds` is `None` for a backlog."""
    prefix = None
    if hits is not None:
        shares = {"infinite_share": hits.infinite_share, "lru_share": hits.lru_share}
        prefix = {**asdict(hits), **shares}
    return {
        "format": "kvspec waste",
        "version": 1,
        "trace": {
            "name": trace.name,
            "kind": trace.kind,
            "requests": len(trace),
            "prompt_tokens": sum(trace.prompts),
            "output_tokens": sum(trace.outputs),
            "longest": max(p + o for p, o in zip(trace.prompts, trace.outputs, strict=True)),
        },
        "capacity": capacity,
        "arrivals": "backlog" if step_seconds is None else "timed",
        "step_seconds": step_seconds,
        "prefix_hits": prefix,
        "schemes": [result.as_data() for result in results],
    }
