"""Stores: rows tell cells apart exactly, and whatever a store does with them is reported."""

import numpy as np
import pytest
from hostile import CONTROL, Plain, Seeded, reported, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec import Contract, Geometry, InvalidLength, UnknownSequence
from kvspec.driver.store import Rows, exact_bits
from kvspec.driver.target import target
from kvspec.driver.values import Nonsense
from kvspec.engines.session import Session
from kvspec.kernel.state import Cell

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint64")


class Store(Plain):
    """A right store: rows in a pool of blocks, copied as the reference says."""

    contract = Contract(capabilities=(*CONTROL, "store"))
    width = 4
    dtype = np.dtype("float32")

    def __init__(self, geometry):
        super().__init__(geometry)
        shape = geometry.num_blocks, geometry.block_size, self.width
        self._pool = np.zeros(shape, self.dtype)

    def _answer(self, copies):
        for source, destination in copies:
            self._pool[destination] = self._pool[source]
        return copies

    def write(self, seq, start, values):
        sequence = self._sequence(seq)
        if start < 0 or start + len(values) > sequence.length:
            raise InvalidLength(f"{start} + {len(values)} > {sequence.length}")
        for position, row in enumerate(values, start):
            block = sequence.blocks[position // self._geometry.block_size]
            self._pool[block, position % self._geometry.block_size] = row

    def read(self, seq):
        sequence = self._sequence(seq)
        rows = self._pool[sequence.blocks].reshape(-1, self.width)
        return rows[: sequence.length].copy()


def store_of(width, dtype):
    return type("Store", (Store,), {"width": width, "dtype": np.dtype(dtype)})


def reading(deed):
    """A store whose readings are what `deed` makes of the right ones."""

    class Odd(Store):
        def read(self, seq):
            return deed(super().read(seq))

    return Odd


# ------------------------------------------------------------------------ rows

CELLS = st.builds(Cell, st.integers(0, 40), st.integers(0, 9), st.integers(0, 99))


def widths(dtype):
    least = -(-16 // exact_bits(np.dtype(dtype)))
    return st.integers(least, least + 5)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_what_is_encoded_is_decoded(dtype, data):
    """Rows come back as the cells that they are of, in any grouping, whole and exact."""
    rows = Rows(data.draw(widths(dtype)), dtype)
    told = {}
    for cells in data.draw(st.lists(st.lists(CELLS, max_size=6), max_size=6)):
        encoded = rows.encode(tuple(cells))
        assert encoded.dtype == np.dtype(dtype)
        assert encoded.shape == (len(cells), rows.width)
        assert rows.decode(encoded, len(cells)) == tuple(cells)
        told |= {tuple(row): cell for row, cell in zip(encoded.tolist(), cells, strict=True)}
    assert len(told) == len(set(told.values()))
    assert rows.decode(rows.zeros(2), 2) == (None, None)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(2, "uint8"), (3, "int8"), (2, "int16"), (1, "uint16"), (2, "float16"), (4, "float16")],
)
def test_a_long_run_of_cells_has_a_row_each(width, dtype):
    """No two of many cells get one row, however narrow the rows."""
    rows = Rows(width, dtype)
    cells = tuple(Cell(p, 0, 0) for p in range(12_000))
    encoded = rows.encode(cells)
    assert len({row.tobytes() for row in encoded}) == len(cells)
    assert rows.decode(encoded, len(cells)) == cells


def test_rows_of_the_dead_are_used_again(monkeypatch):
    """A run without end has rows enough: those of the live are kept, and stay distinct."""
    monkeypatch.setattr("kvspec.driver.store._LEAST_BITS", 9)
    rows, live = Rows(2, "int8", slots=100), {}
    for clock in range(1500):
        if rows.many:
            rows.keep(cell for cells in live.values() for cell in cells)
        # One sequence lives all the time, and the others come and go.
        live[clock % 4 if clock else 9] = cells = tuple(Cell(p, 0, clock) for p in range(20))
        rows.encode(cells)
    for cells in live.values():
        assert rows.decode(rows.encode(cells), len(cells)) == cells


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_column_is_idle(dtype):
    """Any two columns differ somewhere within a few rows, so that mixing them up shows."""
    rows = Rows(6, dtype).encode(tuple(Cell(p, 0, 0) for p in range(8)))
    for one in range(6):
        for other in range(one):
            assert (rows[:, one] != rows[:, other]).any()


@pytest.mark.parametrize(
    ("width", "dtype", "slots", "bits"),
    [(1, "float16", 8, 11), (1, "int8", 8, 7), (1, "int16", 8, 15), (1, "uint16", 2**15, 16)],
)
def test_rows_too_narrow_are_refused(width, dtype, slots, bits):
    """A row that cannot tell the pool's contents apart is refused with the numbers."""
    with pytest.raises(Nonsense, match=rf"{width} x {dtype} tells {bits} bits .* widen the store"):
        Rows(width, dtype, slots)


# ------------------------------------------------------------------------ stores


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(4, "float32"), (2, "float16"), (3, "int8"), (2, "uint8"), (1, "int32"), (9, ">i2")],
)
def test_a_right_store_is_right(width, dtype):
    """In whatever dtype, as an array or as lists."""
    for seed in range(3):
        assert not walk(store_of(width, dtype), seed, steps=40).breaches
    assert not walk(type("L", (Store,), {"read": lambda s, q: Store.read(s, q).tolist()})).breaches


def test_a_store_of_torch_tensors_is_right():
    """Tensors are arrays."""
    torch = pytest.importorskip("torch", reason="torch is an extra")
    for seed in range(3):
        assert not walk(reading(torch.from_numpy), seed, steps=40).breaches


def test_a_long_run_on_one_store_is_right(monkeypatch):
    """Rows run out in a long run and are used again, without a false alarm."""
    monkeypatch.setattr("kvspec.driver.store._LEAST_BITS", 9)
    narrow = store_of(1, "int16")
    session = walk(narrow, steps=600, geometry=Geometry(5, 3))
    assert not session.breaches


READINGS = {
    "transposed": (lambda rows: rows.T, "the reading has shape ("),
    "flat": (lambda rows: rows.ravel(), "the reading has shape ("),
    "one row more": (lambda rows: np.concatenate([rows, rows]), "the reading has shape ("),
    "nothing": (lambda rows: None, "the reading has shape ("),
    "a generator": (iter, "the reading has shape ("),
    "text": (lambda rows: rows.astype(str), "the reading has dtype <U32, not float32"),
    "bools": (lambda rows: rows.astype(bool), "the reading has dtype bool, not float32"),
    "complex": (lambda rows: rows.astype(complex), "the reading has dtype complex128"),
    "objects": (lambda rows: rows.astype(object), "the reading has dtype object"),
    "ragged": (lambda rows: [[0, 1], [2]], "the reading is [[0, 1], [2]] (list), not an array"),
}


@pytest.mark.parametrize(("deed", "text"), READINGS.values(), ids=READINGS)
def test_a_reading_that_is_none_is_reported(deed, text):
    """A reading is an array of numbers, one row a token."""
    reported(reading(deed), "well-formed", "read(A)", text)


@pytest.mark.parametrize(
    "deed",
    [
        lambda rows: rows[:, ::-1],
        lambda rows: rows[:, [0, 2, 1, 3]],
        lambda rows: np.roll(rows, 1, axis=1),
        lambda rows: np.zeros_like(rows),
        lambda rows: np.full_like(rows, np.nan),
        lambda rows: rows + 1,
        lambda rows: np.nextafter(rows, np.float32(np.inf)),
    ],
    ids=["reversed", "two columns swapped", "rolled", "zeros", "nan", "one more", "an ulp more"],
)
def test_contents_that_are_not_exact_are_reported(deed):
    """Mixed columns and inexact values are not what was written."""
    reported(reading(deed), "read-back", "it reads what nobody wrote")


def test_contents_in_the_wrong_order_are_reported():
    """A row at another position is named for what it is."""
    reported(reading(lambda rows: rows[::-1]), "read-back", "it reads what A wrote at position")


class ForgetsTheCopy(Store):
    """Reports the copy of an append to a fork, and does not do it (atlas#1193)."""

    def _answer(self, copies):
        return copies


class NarrowInside(Store):
    """Keeps in half precision what it says is single."""

    def write(self, seq, start, values):
        with np.errstate(over="ignore"):
            super().write(seq, start, values.astype(np.float16))


class WritesElsewhere(Store):
    """Writes one row too far."""

    def write(self, seq, start, values):
        super().write(seq, start, values)
        if 0 < start < self._sequence(seq).length - 1:
            super().write(seq, start + 1, values[:1])


class Failing(Store):
    """Cannot write after all."""

    def write(self, seq, start, values):
        self._sequence(seq)
        if start + len(values) > self._sequence(seq).length:
            raise InvalidLength
        raise MemoryError("no room")


class Unknown(Failing):
    def write(self, seq, start, values):
        raise UnknownSequence(seq)


class KeepsTheBuffer(Store):
    """Keeps the caller's rows instead of copying them."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self._kept = {}

    def write(self, seq, start, values):
        super().write(seq, start, values)
        self._kept[seq] = start, values

    def read(self, seq):
        rows = super().read(seq)
        start, values = self._kept.get(seq, (0, ()))
        if len(values):
            rows[start : start + len(values)] = values
        return rows


class NoBounds(Store):
    """Writes wherever it is told."""

    def write(self, seq, start, values):
        length = self._sequence(seq).length
        super().write(seq, max(0, start), values[: max(0, length - start)])


@pytest.mark.parametrize(
    ("make", "law", "text"),
    [
        (ForgetsTheCopy, "read-back", "it reads what nobody wrote"),
        (NarrowInside, "read-back", "it reads what nobody wrote"),
        (KeepsTheBuffer, "read-back", "it reads what nobody wrote"),
        (Failing, "well-formed", "write(A, 0, 1 rows) raised MemoryError('no room')"),
        (NoBounds, "write-bounds", "must fail with InvalidLength"),
    ],
)
def test_a_store_that_fails_is_reported(make, law, text):
    """A store that loses, spoils or refuses what it was given breaks the law about it."""
    reported(make, law, text)


def test_a_write_that_is_refused_is_reported():
    """The caller writes only what was reserved, so any error is a fault."""
    session = Session(Unknown, target(Unknown).specification(), "unknown")
    session.call("allocate", seq=0, num_tokens=1)
    assert session.breaches[0].because == "write(A, 0, 1 rows) raised UnknownSequence('0')."


def test_values_are_the_same_in_every_run():
    """The rows that are written depend on the calls alone."""

    def written(make):
        seen = []

        class Spy(make):
            def write(self, seq, start, values):
                seen.append(values.tolist())
                super().write(seq, start, values)

        walk(Spy, 5)
        return seen

    assert written(Store) == written(Store)
    assert Seeded(0).pick("ab") == Seeded(0).pick("ab")
