"""The schemes that paging replaced keep their own contracts, and break the paged one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvimpls import traditional
from kvimpls.traditional.holes import Holes
from kvspec import Geometry, OutOfBlocks, check_allocator
from kvspec.suite.contracts import parse_contract
from kvspec.suite.report import ExitCode

SCHEMES = [getattr(traditional, name) for name in traditional.__all__]

WEAKNESS = {
    traditional.Preallocation: ("bounded-waste", 1),
    traditional.ContiguousFirstFit: ("admission", 3),
    traditional.ContiguousBestFit: ("admission", 3),
    traditional.OracleFirstFit: ("bounded-waste", 1),
    traditional.Pow2FirstFit: ("bounded-waste", 1),
    traditional.Granular256: ("bounded-waste", 1),
    traditional.BuddyOracle: ("bounded-waste", 1),
    traditional.DoublingFirstFit: ("needless-copy", 3),
}
"""The law of the paged contract that each breaks, and the steps of the reduced story."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", SCHEMES, ids=lambda kind: kind.__name__)
def test_a_scheme_keeps_its_own_contract(kind, seed):
    """Every law that it claims was held, and bit."""
    report = check_allocator(kind, profile="quick", seed=seed)
    assert report.trace is None, report.trace.breaches
    assert report.exit_code is ExitCode.HELD, report.laws


@pytest.mark.parametrize("kind", WEAKNESS, ids=lambda kind: kind.__name__)
def test_its_weakness_is_found_against_the_paged_contract(kind):
    """The broken law names the weakness, and the story of it is short."""
    law, steps = WEAKNESS[kind]
    contract = parse_contract("paged", kind.contract)
    trace = check_allocator(kind, contract=contract, profile="quick").trace
    assert trace is not None
    assert (trace.law, len(trace.steps), trace.reduced) == (law, steps, True)


def test_the_picture_of_the_text():
    """800 tokens are free, the largest hole is 500, and 600 are refused."""
    pool = traditional.ContiguousFirstFit(Geometry(8300, 1))
    for seq, tokens in enumerate((2000, 500, 3000, 2500)):
        pool.allocate(seq, tokens)
    pool.free(1)
    assert (pool.num_free_blocks(), pool.largest_hole()) == (800, 500)
    with pytest.raises(OutOfBlocks):
        pool.allocate(4, 600)
    pool.allocate(4, 500)
    assert pool.holes() == [(8000, 300)]


def test_best_fit_takes_the_smallest_hole_and_first_fit_the_first():
    """Where the two differ, they differ as their names say."""
    for kind, start in (
        (traditional.ContiguousFirstFit, 0),
        (traditional.ContiguousBestFit, 5),
    ):
        pool = kind(Geometry(7, 1))
        for seq, tokens in enumerate((4, 1, 2)):
            pool.allocate(seq, tokens)
        pool.free(0)
        pool.free(2)
        pool.allocate(3, 2)
        assert pool.block_table(3) == [start, start + 1]


def test_a_doubled_extent_that_moves_holds_both_copies_until_it_has_moved():
    """A hole that would only do with the old extent given up is none."""
    pool = traditional.DoublingFirstFit(Geometry(5, 1))
    pool.allocate(0, 2)
    pool.allocate(1, 1)
    with pytest.raises(OutOfBlocks):
        pool.append(0, 1)  # 4 slots are wanted, and 2 are free behind the neighbour
    assert pool.block_table(0) == [0, 1]


def test_buddies_join_again():
    """When all is freed, the whole pool is one extent again."""
    pool = traditional.BuddyOracle(Geometry(8, 1))
    for seq, tokens in enumerate((1, 2, 1, 4)):
        pool.allocate(seq, tokens)
    assert pool.num_free_blocks() == 0
    for seq in (2, 0, 3, 1):
        pool.free(seq)
    assert pool.holes() == [(0, 8)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.booleans()), max_size=40))
def test_holes_are_the_runs_of_free_slots(calls):
    """Whatever is taken and given back, the holes are what a map of the slots shows."""
    holes, slots, extents = Holes(20), [False] * 20, []
    for take, size, best in calls:
        if take:
            fits = [(start, length) for start, length in _runs(slots) if length >= size]
            wanted = min(fits, key=lambda f: (f[1], f[0]) if best else f[0], default=None)
            start = holes.find(size, best)
            assert start == (wanted[0] if wanted else None)
            if start is not None:
                holes.take(start, size)
                extents.append((start, size))
                slots[start : start + size] = [True] * size
        elif extents:
            start, size = extents.pop(size % len(extents))
            holes.give(start, size)
            slots[start : start + size] = [False] * size
        assert holes.all() == _runs(slots)
        assert holes.free == slots.count(False)
        assert holes.largest == max((length for _, length in _runs(slots)), default=0)


def _runs(slots):
    runs, start = [], None
    for i, taken in enumerate([*slots, True]):
        if not taken and start is None:
            start = i
        elif taken and start is not None:
            runs.append((start, i - start))
            start = None
    return runs
