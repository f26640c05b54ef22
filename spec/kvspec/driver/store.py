"""Cells as rows of numbers, for allocators that hold real data.

Every cell that is ever written gets a row of its own, exact in the store's dtype: so a row
never equals what its slot or its neighbours held before, and what is read back names the
write that it came from.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kvspec.driver.values import Nonsense, shown, whole_number
from kvspec.kernel.state import Cell

_LEAST_BITS = 16
"""Rows must tell at least so many bits of cells apart."""


def exact_bits(dtype: np.dtype[Any]) -> int:
    """How many bits of a whole number are exact in one value of `dtype`.

    >>> exact_bits(np.dtype("float16")), exact_bits(np.dtype("int8"))
    (11, 7)
    """
    if dtype.kind == "f":
        return int(np.finfo(dtype).nmant) + 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max).bit_length()
    return 0


class Rows:
    """The rows of one store: `width` values of `dtype` for each cell.

    Raises `Nonsense` when a row cannot tell 16 bits of cells apart.
    """

    def __init__(self, width: object, dtype: object) -> None:
        self.width = whole_number(width, "the attribute width")
        try:
            self.dtype = np.dtype(dtype)  # type: ignore[call-overload]  # asking is the test
        except TypeError:
            raise Nonsense(f"the attribute dtype is {shown(dtype)}, not a numpy dtype") from None
        bits = exact_bits(self.dtype)
        if self.width * bits < _LEAST_BITS:
            raise Nonsense(
                f"a row of {self.width} x {self.dtype} tells {max(self.width, 0) * bits} bits "
                f"of contents apart, and the suite needs {_LEAST_BITS}: widen the store"
            )
        self._base = 2 ** min(bits, _LEAST_BITS)
        self._rows: dict[Cell, tuple[int, ...]] = {}
        self._cells: dict[tuple[int, ...], Cell] = {}

    def zeros(self, rows: int) -> npt.NDArray[Any]:
        """So many rows of zeros."""
        return np.zeros((rows, self.width), dtype=self.dtype)

    def encode(self, cells: tuple[Cell, ...]) -> npt.NDArray[Any]:
        """One row a cell, shape `(len(cells), width)`."""
        rows = [self._rows.get(cell) or self._new_row(cell) for cell in cells]
        return np.array(rows, dtype=self.dtype).reshape(len(cells), self.width)

    def _new_row(self, cell: Cell) -> tuple[int, ...]:
        # The digits of a serial number first, then numbers that differ from column to column,
        # so that columns which are mixed up show as well.
        tag, row = len(self._rows) + 1, []
        digits = tag
        for column in range(self.width):
            row.append(digits % self._base if digits else tag * (2 * column + 3) % self._base)
            digits //= self._base
        self._rows[cell] = tuple(row)
        self._cells[tuple(row)] = cell
        return tuple(row)

    def decode(self, values: object, length: int) -> tuple[Cell | None, ...]:
        """The cells that the rows of a reading came from; `None` for any other row."""
        array = np.asarray(values)
        if array.shape != (length, self.width):
            raise Nonsense(f"the reading has shape {array.shape}, not {(length, self.width)}")
        return tuple(self._cells.get(tuple(row)) for row in array.tolist())
