"""What a replay is watched for, to be drawn: two series over time, and a map of the memory."""

from collections.abc import Sequence

from attrs import define, field, frozen

from kvimpls.waste.replay import Replay

BINS = 256
"""The most points of a series: when there would be more, they are joined by two."""


@define
class Series:
    """The stored tokens and the running requests over time, as means over `width` steps each."""

    width: int = 1
    steps: int = 0
    _stored: list[int] = field(factory=list, alias="_stored")
    _running: list[int] = field(factory=list, alias="_running")

    def __call__(self, run: Replay) -> None:
        """Look at a replay, at the end of a step."""
        while run.time // self.width >= BINS:
            self.width *= 2
            self._stored = _by_two(self._stored)
            self._running = _by_two(self._running)
        place = run.time // self.width
        missing = place + 1 - len(self._stored)
        if missing:  # steps that were not shown are idle, and count as zeros
            self._stored += [0] * missing
            self._running += [0] * missing
        self._stored[place] += run.stored
        self._running[place] += len(run.running)
        self.steps = run.time + 1

    @property
    def times(self) -> list[int]:
        """The first step of each bin."""
        return [place * self.width for place in range(len(self._stored))]

    @property
    def stored(self) -> list[float]:
        """Tokens stored, the mean of each bin."""
        return self._means(self._stored)

    @property
    def running(self) -> list[float]:
        """Requests running, the mean of each bin."""
        return self._means(self._running)

    def _means(self, sums: Sequence[int]) -> list[float]:
        ends = [min(time + self.width, self.steps) for time in self.times]
        return [
            total / (end - time) for total, end, time in zip(sums, ends, self.times, strict=True)
        ]


def _by_two(sums: Sequence[int]) -> list[int]:
    return [sum(sums[place : place + 2]) for place in range(0, len(sums), 2)]


@frozen
class Snapshot:
    """A contiguous pool at the end of a step; sizes and addresses in tokens.

    `extents` are (start, reserved, stored) of every running request, `holes` (start, size).
    """

    time: int
    free: int
    extents: tuple[tuple[int, int, int], ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def largest_hole(self) -> int:
        """The size of the largest hole, 0 if there is none."""
        return max((size for _, size in self.holes), default=0)


@define
class MemoryMap:
    """Snapshots of a contiguous pool: every `stride`-th step from the beginning, `most` of them."""

    stride: int
    most: int
    snapshots: list[Snapshot] = field(factory=list)

    def __call__(self, run: Replay) -> None:
        """Look at a replay, at the end of a step."""
        if run.time % self.stride or len(self.snapshots) == self.most:
            return
        pool = run.pool
        extents = tuple(
            (pool.block_table(seq)[0] or 0, run.reserved(seq), run.length(seq))
            for seq in run.running
            if run.reserved(seq)
        )
        holes = tuple(pool.holes())  # type: ignore[attr-defined]  # contiguous pools have them
        self.snapshots.append(Snapshot(run.time, run.free, extents, holes))
