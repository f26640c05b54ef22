"""A picture of a contiguous pool over time: what is stored, reserved and in holes, by address."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvimpls.waste.pictures import FUTURE, STORED, figure, with_thousands
from kvimpls.waste.record import MemoryMap, Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 512
"""Rows of the picture: each is this fraction of the addresses."""

HOLE = "#FFFFFF"


def coverage(
    extents: Sequence[tuple[int, int]], capacity: int, rows: int
) -> npt.NDArray[np.float64]:
    """The fraction of each of `rows` equal parts of the addresses that (start, size) cover.

    >>> coverage([(0, 2), (6, 1)], 8, 4).tolist()
    [1.0, 0.0, 0.0, 0.5]
    """
    edges = np.linspace(0, capacity, rows + 1)
    if not extents:
        return np.zeros(rows)
    starts, sizes = np.array(sorted(extents), dtype=np.float64).T
    below = np.clip(edges[:, None] - starts[None, :], 0, sizes[None, :]).sum(axis=1)
    covered: npt.NDArray[np.float64] = np.diff(below) / (capacity / rows)
    return covered


def _colour(text: str) -> npt.NDArray[np.float64]:
    return np.array([int(text[place : place + 2], 16) for place in (1, 3, 5)], dtype=np.float64)


def _column(snapshot: Snapshot, capacity: int, rows: int) -> npt.NDArray[np.float64]:
    """The colours of one snapshot, the lowest address first, shape `(rows, 3)`."""
    stored = coverage([(start, used) for start, _, used in snapshot.extents], capacity, rows)
    taken = coverage([(start, size) for start, size, _ in snapshot.extents], capacity, rows)
    parts = zip(
        (stored, taken - stored, 1 - taken), (STORED, FUTURE, HOLE), strict=True
    )  # where a row has several, its colour is their mean
    return sum((part[:, None] * _colour(text) for part, text in parts), np.zeros((rows, 3)))


def memory_map(memory: MemoryMap, capacity: int, title: str) -> "Figure":
    """The map, and below it what is free beside the largest hole."""
    from matplotlib.patches import Patch

    drawn = figure(9, 6.4)
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    shots = memory.snapshots
    rows = min(ROWS, capacity)
    picture = np.stack([_column(shot, capacity, rows) for shot in shots], axis=1)
    end = len(shots) * memory.stride
    upper.imshow(
        picture.round().astype(np.uint8),
        extent=(0, end, 0, capacity),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    upper.set_ylabel("address, tokens")
    patches = [
        Patch(facecolor=colour, edgecolor="#444444", linewidth=0.5, label=label)
        for colour, label in (
            (STORED, "stored"),
            (FUTURE, "reserved, not filled"),
            (HOLE, "hole"),
        )
    ]
    times = [shot.time for shot in shots]
    lower.plot(times, [shot.free for shot in shots], color="#D55E00", label="free")
    lower.plot(
        times, [shot.largest_hole for shot in shots], "k--", linewidth=1, label="largest hole"
    )
    lower.set_ylabel("tokens")
    lower.set_ylim(0, 1.35 * max(1, *(shot.free for shot in shots)))  # the legend is on top
    lower.set_xlim(0, end)
    for axis in (upper.yaxis, lower.yaxis, lower.xaxis):
        with_thousands(axis)
    lower.set_xlabel("step (one token for each running request)")
    lower.grid(alpha=0.3)
    lower.legend(loc="upper right", fontsize=8, ncols=2, frameon=False)
    upper.set_title(title, fontsize=10)
    drawn.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return drawn
