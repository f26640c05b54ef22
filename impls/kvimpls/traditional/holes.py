"""The free space of a contiguous pool: its holes, in order of address."""

from bisect import bisect_left


class Holes:
    """The holes of a pool of `size` slots; neighbours are always joined.

    >>> holes = Holes(10)
    >>> holes.take(2, 3)
    >>> holes.all(), holes.find(4, best=False), holes.after(5)
    ([(0, 2), (5, 5)], 5, 5)
    >>> holes.give(2, 3)
    >>> holes.all()
    [(0, 10)]
    """

    def __init__(self, size: int) -> None:
        self._starts = [0]
        self._sizes = [size]
        self.free = size

    def all(self) -> list[tuple[int, int]]:
        """Start and size of every hole."""
        return list(zip(self._starts, self._sizes, strict=True))

    @property
    def largest(self) -> int:
        """The size of the largest hole, 0 in a full pool."""
        return max(self._sizes, default=0)

    def find(self, size: int, best: bool) -> int | None:
        """Where an extent of `size` fits: the first hole, or the smallest (lowest of equals)."""
        fits = ((hole, start) for start, hole in zip(self._starts, self._sizes, strict=True))
        if best:
            return min((f for f in fits if f[0] >= size), default=(0, None))[1]
        return next((start for hole, start in fits if hole >= size), None)

    def after(self, address: int) -> int:
        """The size of the hole that begins at `address`, 0 if none does."""
        i = bisect_left(self._starts, address)
        begins = i < len(self._starts) and self._starts[i] == address
        return self._sizes[i] if begins else 0

    def take(self, start: int, size: int) -> None:
        """Take an extent out of the hole in which it lies."""
        if size == 0:
            return
        i = bisect_left(self._starts, start + 1) - 1
        hole, length = self._starts[i], self._sizes[i]
        left = [(hole, start - hole)] if start > hole else []
        right = hole + length - start - size
        left += [(start + size, right)] if right else []
        self._starts[i : i + 1] = [begin for begin, _ in left]
        self._sizes[i : i + 1] = [extent for _, extent in left]
        self.free -= size

    def give(self, start: int, size: int) -> None:
        """Give an extent back, and join it with its neighbours."""
        if size == 0:
            return
        self.free += size
        i = bisect_left(self._starts, start)
        if i < len(self._starts) and self._starts[i] == start + size:
            size += self._sizes.pop(i)
            del self._starts[i]
        if i > 0 and self._starts[i - 1] + self._sizes[i - 1] == start:
            self._sizes[i - 1] += size
        else:
            self._starts.insert(i, start)
            self._sizes.insert(i, size)
