"""Cells as rows of numbers, for allocators that hold real data.

Every cell that is ever written gets a row of its own, exact in the store's dtype: so a row
never equals what its slot or its neighbours held before, and what is read back names the
write that it came from.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvspec.driver.values import Nonsense, shown, whole_number
from kvspec.geometry import Geometry
from kvspec.kernel.outcome import Heads
from kvspec.kernel.state import Cell
from kvspec.rooms.attention import row_of, tag_bits

_LEAST_BITS = 16
"""Rows must tell at least so many bits of cells apart."""

_LEAST_HEAD_BITS = 32
"""The rows of a store that computes attention name steps, not cells, and are never used again."""

_TAG_BITS = 64
"""And no more than so many need be."""

_WIDEST = 2**20
"""No row of a small pool needs more values; and the suite makes rows value by value."""

_FLOAT_BITS = 53
"""What a Python float holds, to which readings are converted."""

_SPREAD = 0x9E3779B97F4A7C15
"""An odd number: multiplying by it permutes the numbers below any power of two."""


def exact_bits(dtype: np.dtype[Any]) -> int:
    """How many bits of a whole number are exact in one value of `dtype`.

    >>> exact_bits(np.dtype("float16")), exact_bits(np.dtype("int8"))
    (11, 7)
    """
    if dtype.kind == "f":
        return min(int(np.finfo(dtype).nmant) + 1, _FLOAT_BITS)
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max).bit_length()
    return 0


class Rows:
    """The rows of one store: `width` values of `dtype` for each cell.

    Raises `Nonsense` when a row cannot tell 16 bits of cells apart, or not as many cells as
    `slots` of a pool hold before and after a write.
    """

    def __init__(self, width: object, dtype: object, slots: int = 1) -> None:
        self.width = whole_number(width, "the attribute width")
        self.dtype = _dtype(dtype)
        bits, needed = exact_bits(self.dtype), max(_LEAST_BITS, (2 * slots).bit_length())
        if self.width * bits < needed:
            raise Nonsense(
                f"a row of {self.width} x {self.dtype} tells {max(self.width, 0) * bits} bits "
                f"of contents apart, and the suite needs {needed}: widen the store"
            )
        if self.width > _WIDEST:
            raise Nonsense(f"a row of {self.width} values is too wide: {_WIDEST} are enough")
        self._base: int = 2**bits
        self._digits = min(self.width, -(-_TAG_BITS // bits))
        self._tags: int = self._base**self._digits  # 0 is the tag of slots that were never written
        self._most: int = min(max(2**_LEAST_BITS, 4 * slots), self._tags - 1 - slots)
        self._last = 0
        self._rows: dict[Cell, tuple[float, ...]] = {}
        self._cells: dict[tuple[float, ...], Cell] = {}

    def zeros(self, rows: int) -> npt.NDArray[Any]:
        """So many rows of zeros."""
        return np.zeros((rows, self.width), dtype=self.dtype)

    def encode(self, cells: tuple[Cell, ...]) -> npt.NDArray[Any]:
        """One row a cell, shape `(len(cells), width)`."""
        rows = [self._rows.get(cell) or self._new_row(cell) for cell in cells]
        return np.array(rows, dtype=self.dtype).reshape(len(cells), self.width)

    @property
    def many(self) -> bool:
        """Whether there are so many rows that those of dead cells should be given up."""
        return len(self._rows) >= self._most

    def keep(self, cells: Iterable[Cell]) -> None:
        """Give up the rows of all but these cells; what is left of them reads as unknown."""
        self._rows = {cell: self._rows[cell] for cell in cells if cell in self._rows}
        self._cells = {row: cell for cell, row in self._rows.items()}

    def _new_row(self, cell: Cell) -> tuple[float, ...]:
        assert len(self._cells) < self._tags - 1  # `many` has seen to it
        row = self._row()
        while row in self._cells:
            row = self._row()
        self._rows[cell], self._cells[row] = row, cell
        return row

    def _row(self) -> tuple[int, ...]:
        """The row of the next tag: the digits of the tag, and then more that follow from it.

        The tag is spread over its digits first, so that no column is idle, and columns that
        are mixed up show.
        """
        self._last = self._last % (self._tags - 1) + 1
        number, base = self._last * _SPREAD % self._tags, self._base
        return tuple(
            (number // base**column if column < self._digits else number * (2 * column + 3) // base)
            % base
            for column in range(self.width)
        )

    def decode(self, values: object, length: int) -> tuple[Cell | None, ...]:
        """The cells that the rows of a reading came from; `None` for any other row."""
        try:
            array = np.asarray(values)
        except Exception:  # whatever stands in the way, it is no array
            raise Nonsense(f"the reading is {shown(values)}, not an array") from None
        if length == 0 and array.shape[:1] == (0,):  # an empty list has no width
            return ()
        if array.shape != (length, self.width):
            raise Nonsense(f"the reading has shape {array.shape}, not {(length, self.width)}")
        if not exact_bits(array.dtype):
            raise Nonsense(f"the reading has dtype {array.dtype}, not {self.dtype}")
        return tuple(self._cells.get(tuple(row)) for row in array.tolist())


class HeadRows(Rows):
    """The rows of a store that computes attention: small floats that its law knows too.

    Raises `Nonsense` for heads that do not make up the width, for a dtype that is no float, and
    where a row does not tell 32 bits of cells apart.
    """

    def __init__(
        self, width: object, dtype: object, slots: int, allocator: Any, geometry: Geometry
    ) -> None:
        super().__init__(width, dtype, slots)
        shape = {
            name: whole_number(getattr(allocator, name), f"the attribute {name}")
            for name in ("n_heads", "n_kv_heads", "d_k", "d_v")
        }
        if self.dtype.kind != "f":
            raise Nonsense(f"the dtype is {self.dtype}, and attention is over floats")
        try:
            self.heads = Heads(**shape, bits=exact_bits(self.dtype))
        except ValueError as error:
            raise Nonsense(str(error)) from None
        if self.heads.width != self.width:
            raise Nonsense(
                f"the width is {self.width}, and n_kv_heads * (d_k + d_v) is {self.heads.width}"
            )
        if self.heads.n_heads * self.heads.d_k > _WIDEST:
            raise Nonsense(f"a query of {self.heads.n_heads} heads is too wide")
        bits = tag_bits(self.heads)
        if bits < _LEAST_HEAD_BITS:
            raise Nonsense(
                f"a row of {shape['n_kv_heads']} heads of {shape['d_k']} signs and "
                f"{shape['d_v']} values of 4 bits tells {bits} bits of contents apart, and the "
                f"suite needs {_LEAST_HEAD_BITS}: widen the store"
            )
        self._geometry = geometry
        self._most = max(2**_LEAST_BITS, 4 * slots)

    def _new_row(self, cell: Cell) -> tuple[float, ...]:
        new = row_of(cell, self._geometry, self.heads)
        self._rows[cell], self._cells[new] = new, cell
        return new

    def query(self, numbers: Sequence[float]) -> npt.NDArray[Any]:
        """A query from its numbers, shape `(n_heads, d_k)`."""
        return np.array(numbers, dtype=self.dtype).reshape(self.heads.n_heads, self.heads.d_k)

    def output(self, answer: object) -> tuple[float, ...]:
        """The numbers of an output, flat; `Nonsense` for what is no array of the right shape."""
        try:
            array = np.asarray(answer)
        except Exception:  # whatever stands in the way, it is no array
            raise Nonsense(f"the output is {shown(answer)}, not an array") from None
        shape = (self.heads.n_heads, self.heads.d_v)
        if array.shape != shape:
            raise Nonsense(f"the output has shape {array.shape}, not {shape}")
        if array.dtype.kind != "f":
            raise Nonsense(f"the output has dtype {array.dtype}, not {self.dtype}")
        numbers: list[float] = array.astype(np.float64).ravel().tolist()
        # One object for all NaN: they are equal to nothing but themselves.
        return tuple(number if number == number else math.nan for number in numbers)


def _dtype(dtype: object) -> np.dtype[Any]:
    try:
        if dtype is not None:  # which would be numpy's default, and nobody meant that
            return np.dtype(dtype)  # type: ignore[call-overload, no-any-return]  # asking is the test
    except Exception:  # whatever stands in the way, it is no dtype
        pass
    raise Nonsense(f"the attribute dtype is {shown(dtype)}, not a numpy dtype")
