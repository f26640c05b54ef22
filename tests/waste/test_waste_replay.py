"""The replay measures what the definitions say."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from waste_naive import as_data, simulate

from kvimpls.reference import Reference
from kvimpls.waste import Replay, Trace, WasteError, parse_schemes, replay
from kvimpls.waste.replay import AccountingError
from kvimpls.waste.result import Tally

EXAMPLE = ((3, 2), (5, 4), (4, 1), (6, 3), (2, 6))


def trace_of(lengths, arrivals=None):
    prompts, outputs = zip(*lengths, strict=True)
    return Trace("test", "arxiv", prompts, outputs, arrivals)


def one(name):
    [scheme] = parse_schemes(name)
    return scheme


@pytest.mark.parametrize(
    ("scheme", "row"),
    [
        ("prealloc:9", (13, 121, 189, 41, 27, 0, 0, 2)),
        ("oracle:ff", (13, 121, 162, 41, 0, 0, 0, 3)),
        ("oracle:bf", (13, 121, 162, 41, 0, 0, 0, 3)),
        ("pow2:ff", (13, 121, 180, 41, 18, 0, 0, 3)),
        ("buddy:oracle", (22, 121, 240, 41, 78, 0, 0, 1)),
        ("paged:4", (11, 127, 160, 21, 12, 1, 6, 4)),
        ("paged:1", (10, 123, 123, 0, 0, 1, 2, 5)),
    ],
)
def test_the_worked_example_comes_out(scheme, row):
    """Steps, sums of stored, reserved, future, internal; preempted, recomputed, peak."""
    result = replay(trace_of(EXAMPLE), one(scheme), 24)
    sums = result.total
    assert row == (
        sums.steps,
        sums.stored,
        sums.reserved,
        sums.future,
        sums.internal,
        result.preempted,
        result.recomputed,
        result.peak,
    )
    assert result.total.free == 24 * sums.steps - sums.reserved


SCHEMES = (
    *("prealloc:9", "oracle:ff", "oracle:bf", "pow2:ff", "pow2:bf", "ondemand:ff", "ondemand:bf"),
    *("growp2:ff", "growp2:bf", "buddy:oracle", "buddy:pow2", "paged:1", "paged:4", "paged:7"),
)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


def assert_same(result, outcome):
    for part, naive in ((result.total, outcome.total), (result.window, outcome.window)):
        sums = {**part.as_data(), "index_sum": pytest.approx(naive.index_sum)}
        assert sums == as_data(naive)
    for name in ("served", "rejected", "preempted", "recomputed", "relocated", "peak"):
        assert getattr(result, name) == getattr(outcome, name), name


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, capacity=st.integers(9, 40))
def test_a_backlog_agrees_with_the_naive_replay(scheme, lengths, capacity):
    """Every sum, over all steps and over the window, and every count."""
    result = replay(trace_of(lengths), one(scheme), capacity)
    assert_same(result, simulate(lengths, scheme, capacity))


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, capacity=st.integers(9, 40), data=st.data())
def test_timed_arrivals_agree_with_the_naive_replay(scheme, lengths, capacity, data):
    """Also where the pool is empty for a while, and where the rows are not in time order."""
    steps = st.lists(st.integers(0, 60), min_size=len(lengths), max_size=len(lengths))
    arrivals = data.draw(steps)
    result = replay(trace_of(lengths), one(scheme), capacity, arrivals=arrivals)
    assert_same(result, simulate(lengths, scheme, capacity, arrivals))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_request_is_served_or_rejected(scheme):
    """And together the parts are the capacity, on average as at every step."""
    lengths = EXAMPLE * 8
    result = replay(trace_of(lengths), one(scheme), 24)
    assert result.served + result.rejected == len(lengths)
    shares = result.shares
    assert shares is not None
    assert shares.stored + shares.future + shares.internal + shares.free == pytest.approx(1)
    assert result.as_data() == replay(trace_of(lengths), one(scheme), 24).as_data()


def test_idle_steps_are_counted_and_not_walked():
    """A year between two requests takes no time, and is measured as an empty pool."""
    year = 31_536_000_000
    trace = trace_of([(3, 1), (3, 1)])
    result = replay(trace, one("oracle:ff"), 10, arrivals=[0, year])
    assert result.total.steps == year + 3
    assert result.total.free == 10 * (year + 3) - 2 * 2 * 4
    assert result.window == Tally()
    assert (result.shares, result.concurrency, result.fragmentation_waste) == (None, None, None)


@pytest.mark.parametrize(
    ("scheme", "lengths"),
    [
        ("prealloc:9", (9, 1)),  # longer than a slot
        ("oracle:ff", (20, 5)),
        ("ondemand:ff", (20, 5)),
        ("growp2:ff", (17, 1)),  # 32 tokens at admission
        ("pow2:ff", (4, 17)),  # 4 + 32
        ("buddy:oracle", (16, 1)),  # the pool is 16 tokens
        ("buddy:pow2", (4, 9)),
        ("paged:7", (20, 2)),  # three blocks of 7 tokens
    ],
)
def test_what_can_never_be_served_is_rejected_at_arrival(scheme, lengths):
    """It does not stand in the way of those behind it."""
    result = replay(trace_of([lengths, (3, 2)]), one(scheme), 24)
    assert (result.rejected, result.served, result.total.steps) == (1, 1, 4)


def test_a_restart_that_the_pool_cannot_hold_is_rejected():
    """A request that was preempted and now wants a power of two beyond the capacity ends there."""
    lengths = [(5, 8), (16, 6)]
    result = replay(trace_of(lengths), one("growp2:ff"), 28)
    assert (result.served, result.rejected, result.preempted) == (1, 1, 1)


def test_too_small_a_capacity_is_an_error():
    """There is no allocator with no room at all."""
    with pytest.raises(WasteError, match=r"paged:16 needs a capacity of at least 16 tokens, not 8"):
        replay(trace_of(EXAMPLE), one("paged:16"), 8)


def test_a_wrong_count_of_free_blocks_is_noticed():
    """The allocator's word is not taken on trust: the sum is asked for at every step."""

    class Leaky(Reference):
        def free(self, seq):
            answer = super().free(seq)
            self._free.pop()
            return answer

    with pytest.raises(AccountingError, match=r"step 1: stored .* are not 24 tokens"):
        replay(trace_of(EXAMPLE), evolve(one("paged:1"), make=Leaky), 24)


def test_an_unexpected_reservation_is_noticed():
    """What the head asked for is what it must get."""
    scheme = evolve(one("oracle:ff"), demand=lambda length, final: final + 1)
    with pytest.raises(AccountingError, match="request 0 got 5 tokens, not 6"):
        replay(trace_of(EXAMPLE), scheme, 24)


def test_a_replay_can_be_walked_step_by_step():
    """Lengths and reservations of those that are running are there to be read."""
    run = Replay(trace_of(EXAMPLE), one("oracle:ff"), 24)
    assert run.step()
    seen = [(seq, run.length(seq), run.reserved(seq)) for seq in run.running]
    assert seen == [(0, 3, 5), (1, 5, 9), (2, 4, 5)]
    while run.step():
        pass
    assert not run.step()
    assert run.result() == replay(trace_of(EXAMPLE), one("oracle:ff"), 24)
