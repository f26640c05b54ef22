"""What a contract allows need not be done, may be done, and ends where the contract ends."""

import pytest

from kvimpls.reference import Reference, SequenceState
from kvimpls.unusual import Deduplicates, OtherSideCopies
from kvspec import Contract, Geometry, OutOfBlocks, Unspecified
from kvspec.driver.target import target
from kvspec.engines.replay import run
from kvspec.kernel.script import Call, call
from kvspec.suite.check import check_allocator
from kvspec.suite.report import ExitCode
from kvspec.traces.trace import Trace, TraceStep

UNUSED = {
    "relocates": Contract(
        relocates=True,
        capabilities=("core", "admission", "sharing", "rollback", "window", "lease", "batch"),
    ),
    "window_before_refusal": Contract(window_before_refusal=True),
    "deduplicates": Contract(deduplicates=True),
    "deduplicates, lru": Contract(deduplicates=True, order="lru"),
    "eviction": Contract(eviction="any"),
    "forgets": Contract(forgets=True),
    "unspecified": Contract(reservation=Unspecified()),
}
"""Contracts that allow what the reference does not do."""


@pytest.mark.parametrize("contract", UNUSED.values(), ids=UNUSED)
def test_a_freedom_need_not_be_used(contract: Contract) -> None:
    """The strict reference is right under every contract that only allows more."""
    report = check_allocator(Reference, contract=contract, profile="quick", seed=1)
    assert report.exit_code is not ExitCode.BROKEN, report.trace


def story(make: type[Reference], geometry: Geometry, *calls: Call) -> Trace:
    """What the laws say of an allocator under its own contract, call by call."""
    tested = target(make)
    spec = tested.specification(geometry)
    return run(tested.make, spec, [TraceStep(spec.operation(c)) for c in calls], "tests", 10.0)


class JoinsNothing(Reference):
    """May change an entry to a block of equal contents, and never does."""

    contract = Contract(deduplicates=True)


def test_a_copy_into_a_block_that_was_cached_is_no_deduplication() -> None:
    """The contents were given up for it, as they may be for any block that is taken."""
    trace = story(
        JoinsNothing,
        Geometry(2, 2),
        call("allocate_prompt", seq=0, tokens=(0, 0)),
        call("mark_written", seq=0, num_tokens=2),
        call("free", seq=0),
        call("allocate", seq=0, num_tokens=1),
        call("fork", parent=0, child=1),
        call("append", seq=0, num_tokens=1),
    )
    assert trace.breaches == ()
    assert trace.steps[-1].outcome is not None
    assert trace.steps[-1].outcome.answer.copies


class Hesitates(Reference):
    """Keeps a block in reserve, whoever asks for it."""

    contract = Contract(reservation=Unspecified())

    def _fits(self, count: int) -> bool:
        return count == 0 or count < self._supply.num_free()


REFUSED = {
    "allocate": (call("allocate", seq=1, num_tokens=4),),
    "append": (call("append", seq=0, num_tokens=4),),
    "allocate_prompt": (call("allocate_prompt", seq=1, tokens=(0, 0, 0, 0)),),
    "append_batch": (call("append_batch", seqs=(0,), num_tokens=4),),
    "swap_in": (
        call("allocate", seq=1, num_tokens=1),
        call("append", seq=0, num_tokens=2),
        call("swap_out", seq=0),
        call("append", seq=1, num_tokens=2),
        call("swap_in", seq=0),
    ),
}


@pytest.mark.parametrize("calls", REFUSED.values(), ids=REFUSED)
def test_whatever_takes_blocks_may_be_refused_where_nothing_is_specified(
    calls: tuple[Call, ...],
) -> None:
    """Where there are enough: it is the last of the calls that is refused."""
    geometry = Geometry(4, 2, num_host_blocks=4)
    trace = story(Hesitates, geometry, call("allocate", seq=0, num_tokens=3), *calls)
    assert trace.breaches == ()
    last = trace.steps[-1].outcome
    assert last is not None
    assert last.answer.kind == "refused"
    strict = target(Hesitates, contract=Contract())
    spec = strict.specification(geometry)
    steps = [TraceStep(step.operation) for step in trace.steps]
    assert run(strict.make, spec, steps, "tests", 10.0).law == "admission"


@pytest.mark.parametrize("says", ["OK", "LATER", "NEVER"])
def test_who_may_refuse_may_say_less_than_is_free(says: str) -> None:
    """But not more: what is not free is not promised."""

    class Says(Hesitates):
        def can_allocate(self, num_tokens: int) -> str:
            return says

    fits = story(Says, Geometry(2, 2), call("can_allocate", num_tokens=4))
    assert fits.breaches == ()
    never = story(Says, Geometry(2, 2), call("can_allocate", num_tokens=5))
    assert (never.breaches == ()) is (says == "NEVER")


def test_a_pool_is_as_large_as_it_is_and_not_as_it_was_built() -> None:
    """Where a sequence may hold any number of blocks, that is so many as there are now."""
    loose = type("Loose", (Reference,), {"contract": Contract(reservation=Unspecified())})
    trace = story(
        loose,
        Geometry(1, 1),
        call("resize", num_blocks=3),
        call("allocate", seq=0, num_tokens=3),
        call("truncate", seq=0, num_tokens=2),
    )
    assert trace.breaches == ()


class RefusesResets(Reference):
    """A reset is refused while blocks are in use; who lives through one may publish."""

    contract = Contract(reset_when_used="refused")
    forgetful = True

    def reset_prefix_cache(self) -> None:
        if len(self.free_blocks()) < len(self._supply.ids):
            raise OutOfBlocks("blocks are in use")
        super().reset_prefix_cache()
        for sequence in self._sequences.values():
            if not self.forgetful or sequence.host is None:
                sequence.epoch = self._supply.epoch


class KeepsWhatIsAway(RefusesResets):
    """And so may those that are swapped out, with what they computed before."""

    forgetful = False


@pytest.mark.parametrize("make", [RefusesResets, KeepsWhatIsAway])
def test_who_is_away_during_a_reset_publishes_nothing_after_it(
    make: type[RefusesResets],
) -> None:
    """Its blocks are on the host, so nothing is in use, and their contents are the old ones."""
    calls = [
        call("allocate_prompt", seq=0, tokens=(1, 1)),
        call("mark_written", seq=0, num_tokens=2),
        call("swap_out", seq=0),
        call("reset_prefix_cache"),
        call("swap_in", seq=0),
        call("mark_written", seq=0, num_tokens=2),
        call("lookup", tokens=(1, 1)),
    ]
    geometry = Geometry(3, 2, num_host_blocks=3)
    trace = story(make, geometry, *calls)
    assert trace.law == (None if make.forgetful else "prefix-sound")


def test_a_window_lets_a_sequence_outgrow_the_pool_before_it_is_written() -> None:
    """All of its positions are written then, however many more they are than the pool has slots."""
    trace = story(
        Reference,
        Geometry(2, 1, window=1),
        call("allocate_prompt", seq=0, tokens=(0, 0)),
        *[call("append_tokens", seq=0, tokens=(0,)) for _ in range(5)],
        call("mark_written", seq=0, num_tokens=7),
        call("allocate_prompt", seq=1, tokens=(0,) * 8),
    )
    assert trace.breaches == ()
    assert trace.steps[-1].outcome is not None
    assert trace.steps[-1].outcome.answer.number == 7


def test_equal_keys_of_different_types_make_different_calls() -> None:
    """What was refused under one key may succeed under another that Python finds equal."""
    trace = story(
        Reference,
        Geometry(2, 1),
        call("allocate_prompt", seq=0, tokens=(0,), key=False),
        call("mark_written", seq=0, num_tokens=1),
        call("allocate_prompt", seq=1, tokens=(0, 0), key=0),
        call("allocate_prompt", seq=1, tokens=(0, 0), key=False),
    )
    assert trace.breaches == ()
    refused, done = [step.outcome for step in trace.steps[-2:]]
    assert refused is not None
    assert done is not None
    assert (refused.answer.kind, done.answer.kind) == ("refused", "done")


def test_a_cached_block_that_is_copied_into_is_given_up() -> None:
    """Also where it is copied into by a sequence with the same contents, which publishes none."""
    tokens = (0,) * 7
    trace = story(
        OtherSideCopies,
        Geometry(5, 2),
        call("allocate_prompt", seq=0, tokens=tokens),
        call("reset_prefix_cache"),
        call("mark_written", seq=0, num_tokens=7),
        call("allocate_prompt", seq=1, tokens=(0, 0)),
        call("fork", parent=0, child=2),
        call("mark_written", seq=1, num_tokens=2),
        call("free", seq=1),
        call("truncate", seq=0, num_tokens=1),
        call("append", seq=0, num_tokens=1),
        call("lookup", tokens=tokens),
    )
    assert trace.breaches == ()


class JoinsUnderTheTransfer(Deduplicates):
    """A block is freed when another takes its place, though a transfer has it."""

    def _publish_up_to(self, sequence: SequenceState, length: int) -> None:
        was = list(sequence.blocks)
        super()._publish_up_to(sequence, length)
        for before, now in zip(was, sequence.blocks, strict=True):
            if before is not None and before != now and self._leased(before):
                self._free.append(before)


@pytest.mark.parametrize("make", [Deduplicates, JoinsUnderTheTransfer])
def test_a_block_that_is_given_up_for_an_equal_one_stays_in_flight(make: type[Reference]) -> None:
    """It is in no table any more, and nobody else gets it before the transfer ends."""
    trace = story(
        make,
        Geometry(4, 1),
        call("allocate_prompt", seq=0, tokens=(0, 0)),
        call("allocate_prompt", seq=1, tokens=(0, 0)),
        call("begin_transfer", seq=1, lease=0),
        call("mark_written", seq=0, num_tokens=2),
        call("mark_written", seq=1, num_tokens=2),
        call("end_transfer", lease=0),
    )
    assert trace.law == (None if make is Deduplicates else "in-flight")
