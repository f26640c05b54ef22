"""Tables that stay tied to the allocator break snapshot; scribbling on free ones harms nobody."""

import numpy as np
import pytest
from hostile import Plain, doing, reported, walk

from kvimpls.museum import AliasedTable
from kvspec import Geometry
from kvspec.driver.target import target
from kvspec.engines.session import Session


class CachedList(Plain):
    """Answers one list for each sequence, and brings it up to date when it is asked."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self._lists = {}

    def block_table(self, seq):
        answer = self._lists.setdefault(seq, [])
        answer[:] = super().block_table(seq)
        return answer


class CachedUntilChanged(CachedList):
    """Answers the same list again for as long as nothing has changed."""

    def block_table(self, seq):
        fresh = Plain.block_table(self, seq)
        key, answer = self._lists.get(seq, (None, None))
        if key != tuple(fresh):
            answer = fresh
            self._lists[seq] = tuple(fresh), answer
        return answer


class OneBuffer(Plain):
    """Answers all sequences out of one list (the shape of NVIDIA/TensorRT-LLM#15546)."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self._buffer = []

    def block_table(self, seq):
        self._buffer[:] = super().block_table(seq)
        return self._buffer


class ClearsWhatItGave(Plain):
    """Takes the list back that it answered last."""

    last = None

    def _answer(self, copies):
        if self.last is not None:
            self.last.clear()
        return copies

    def block_table(self, seq):
        self.last = super().block_table(seq)
        return self.last


class ShrinksWhatItGave(Plain):
    """Overwrites the list that it answered last with what is no table."""

    last = None

    def _answer(self, copies):
        if self.last:
            self.last[0] = "gone"
        return copies

    def block_table(self, seq):
        self.last = super().block_table(seq)
        return self.last


class Rows(Plain):
    """Keeps its tables as arrays, one a sequence, for as long as they have one length."""

    dtype = np.int64

    def __init__(self, geometry):
        super().__init__(geometry)
        self._rows = {}

    def block_table(self, seq):
        blocks = self._sequence(seq).blocks
        row = self._rows.get(seq)
        if row is None or len(row) != len(blocks):
            row = self._rows[seq] = np.array(blocks, self.dtype)
        return row[:]


class UnsignedRows(Rows):
    dtype = np.uint8


class GivesItsOwnOnce(Plain):
    """Answers the list that it works on the first time, and copies of it from then on."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self._given = set()

    def block_table(self, seq):
        blocks = self._sequence(seq).blocks
        if seq in self._given:
            return list(blocks)
        self._given.add(seq)
        return blocks


class FallsOverIt(Plain):
    """Works on the list that it has answered, and trusts it to hold ids of blocks."""

    def block_table(self, seq):
        blocks = self._sequence(seq).blocks
        flags = [False] * self._geometry.num_blocks
        for block in blocks:
            flags[block] = True
        return blocks


ALIASED = (
    AliasedTable,
    CachedList,
    CachedUntilChanged,
    OneBuffer,
    ClearsWhatItGave,
    ShrinksWhatItGave,
    Rows,
    UnsignedRows,
    GivesItsOwnOnce,
    FallsOverIt,
)


@pytest.mark.parametrize("make", ALIASED, ids=lambda make: make.__name__)
def test_a_table_that_is_not_a_snapshot_is_reported(make):
    """A table tied to the allocator's own breaks snapshot, whichever side changes it."""
    reported(make, "snapshot", "the allocator's own are one object", "it is no snapshot")


def test_torch_views_of_the_allocators_tables_are_reported():
    """A slice of a tensor is no snapshot."""
    torch = pytest.importorskip("torch", reason="torch is an extra")

    class Views(Rows):
        def block_table(self, seq):
            return torch.from_numpy(super().block_table(seq))[:]

    reported(Views, "snapshot", "it is no snapshot")


class Watched(Plain):
    """Fails when anything but a block of its own turns up in its tables."""

    def block_table(self, seq):
        blocks = self._sequence(seq).blocks
        assert all(block in range(self._geometry.num_blocks) for block in blocks)
        return list(blocks)


@pytest.mark.parametrize(
    "make",
    [
        Watched,
        doing("block_table", np.array),
        doing("block_table", lambda table: np.array(table, np.uint8)),
        doing("block_table", tuple),
    ],
    ids=["lists", "arrays", "unsigned arrays", "tuples"],
)
def test_scribbling_harms_no_allocator_that_answers_snapshots(make):
    """What the suite scribbles is on the caller's copy, so that a right allocator never sees it."""
    for seed in range(6):
        assert not walk(make, seed, steps=60).breaches


def test_what_was_scribbled_is_undone():
    """An allocator that is aliased gets its own table back, so that one law alone is broken."""
    made = []

    def make(geometry, **checkpoint):
        made.append(AliasedTable(geometry, **checkpoint))
        return made[-1]

    session = Session(make, target(AliasedTable).specification(Geometry(4, 2)))
    session.call("allocate", seq=0, num_tokens=3)
    assert not session.breaches
    session.call("allocate", seq=1, num_tokens=1)
    assert [breach.law for breach in session.breaches] == ["snapshot"]
    assert made[0].block_table(0) == [0, 1]


def test_a_failing_query_is_not_taken_for_aliasing():
    """A table that cannot be had, scribbled on or not, is what is reported."""

    class SecondTime(Plain):
        asked = 0

        def block_table(self, seq):
            self.asked += 1
            if self.asked > 1:
                raise KeyError("never again")
            return super().block_table(seq)

    report = reported(SecondTime, "well-formed", "block_table(A) raised KeyError")
    assert all(breach.law != "snapshot" for breach in report.trace.breaches)
