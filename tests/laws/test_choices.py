"""The specification is a relation, said twice: `choices` lists what `judge` accepts, and no less.

No allocator takes part here. The first half drives the specification alone, over its own
choices; the second enumerates all outcomes of small scopes and asks which are accepted.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from attrs import evolve
from exploring import accepted_choices
from scopes import (
    CONTROL,
    UNSHARED,
    RandomChooser,
    alike,
    allocate,
    append,
    begin,
    can_allocate,
    canonical,
    end,
    every_call,
    fork,
    free,
    reached,
    scope,
    show,
    told,
    write,
)

from kvspec.contract import (
    Doubling,
    Exact,
    Geometries,
    Granular,
    Pow2,
    ToMax,
    Unspecified,
)
from kvspec.geometry import DEVICE
from kvspec.interface import AllocatorError, Copy
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Observation, Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State, table_of
from kvspec.kernel.step import Step

UNRESERVED = tuple(c for c in CONTROL if c != "reservation")
BOUNDED = Geometries(max_tokens="required")

WORLDS = {
    "strict": scope(4, 3),
    "strict, 3 blocks of 2": scope(3, 2),
    "strict, bounded": scope(3, 2, max_tokens=4),
    "eager tail": scope(5, 2, eager_fork="tail"),
    "eager all": scope(5, 2, eager_fork="all"),
    "first block 1": scope(3, 2, first_block=1),
    "granules of 3": scope(8, 2, reservation=Granular(3)),
    "granules of 4, eager tail": scope(8, 2, reservation=Granular(4), eager_fork="tail"),
    "granules of 4, eager all": scope(8, 2, reservation=Granular(4), eager_fork="all"),
    "to max": scope(6, 2, max_tokens=4, reservation=ToMax(), geometries=BOUNDED),
    "exact": scope(6, 2, reservation=Exact()),
    "powers of two": scope(6, 2, reservation=Pow2()),
    "doubling": scope(6, 2, reservation=Doubling()),
    "unspecified": scope(4, 2, reservation=Unspecified()),
    "a store": scope(3, 2, capabilities=(*CONTROL, "store")),
    "core alone": scope(3, 2, capabilities=("core",)),
    "contiguous": scope(6, 1, placement="contiguous", capabilities=UNSHARED),
    "contiguous, exact": scope(
        6, 2, placement="contiguous", reservation=Exact(), capabilities=UNSHARED
    ),
    "contiguous, doubling": scope(
        6, 1, placement="contiguous", reservation=Doubling(), capabilities=UNSHARED
    ),
    "aligned": scope(6, 1, placement="aligned", reservation=Exact(), capabilities=UNSHARED),
    "slots": scope(
        *(5, 1),
        max_tokens=2,
        placement="slots",
        reservation=ToMax(),
        geometries=BOUNDED,
        capabilities=UNSHARED,
    ),
}


# ------------------------------------------------------------------------------ choices hold


def test_every_choice_in_every_state_of_the_smallest_pool_is_accepted():
    """In 2 blocks of 2, with 2 sequences and a lease, no state breaks a law by a choice."""
    spec = scope(2, 2, capabilities=UNRESERVED)
    states = {alike(spec.initial()): spec.initial()}
    new = list(states.values())
    while new:
        state = new.pop()
        for operation in every_call(spec, state):
            for step in accepted_choices(spec, state, operation):
                if alike(step.after) not in states:
                    states[alike(step.after)] = step.after
                    new.append(step.after)
    assert len(states) > 400  # states differ in lengths, tables and leases, not in names


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """In larger pools and under every contract, no choice of any proposed call breaks a law."""
    spec = WORLDS[world]
    kinds = set()
    for seed in range(20):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            state = step.after
            kinds.add(step.answer.kind)
    assert kinds == {"done", "refused", "error"}


@pytest.mark.parametrize("world", WORLDS)
def test_a_choice_shows_the_state_that_it_leads_to(world):
    """A choice is a full look: what it shows is what is believed after it, and all of that."""
    spec, chooser = WORLDS[world], RandomChooser(0)
    state = spec.initial()
    for _ in range(60):
        operation = chooser.operation(spec, state)
        for outcome in spec.choices(state, operation):
            after = spec.believe(state, operation, outcome).after
            assert outcome.observation == spec.observed(after)
        state = chooser.pick(accepted_choices(spec, state, operation)).after


def test_no_copy_of_a_choice_feeds_another():
    """The copies of a choice commute: each fills a block of its own that was free before."""
    for spec in WORLDS.values():
        chooser, state = RandomChooser(1), spec.initial()
        for _ in range(60):
            operation = chooser.operation(spec, state)
            for outcome in spec.choices(state, operation):
                destinations = [copy.destination for copy in outcome.answer.copies]
                assert len(set(destinations)) == len(destinations)
                assert set(destinations) <= set(spec.free_blocks(state))
            state = chooser.pick(accepted_choices(spec, state, operation)).after


def test_what_was_refused_is_refused_again_even_where_the_contract_allows_either():
    """After a refusal, the one outcome of the same call is a refusal."""
    spec = scope(reservation=Unspecified())
    operation, state = spec.operation(allocate(0, 1)), spec.initial()
    first = list(spec.choices(state, operation))
    refusal = spec.believe(state, operation, first[-1])
    assert [outcome.answer.kind for outcome in first] == ["done", "done", "done", "refused"]
    assert [o.answer for o in spec.choices(refusal.after, operation)] == [REFUSED]


def test_a_relocating_contract_has_no_list_of_choices():
    """The moves that a relocating allocator may make are judged, and asking for a list says so."""
    spec = scope(relocates=True)
    with pytest.raises(ValueError, match="relocating"):
        next(spec.choices(spec.initial(), spec.operation(allocate(0, 1))))


# ------------------------------------------------------------------------------ and nothing else


class Case(NamedTuple):
    """A call in a state, and how far to look: table entries, and whether two copies in a row."""

    spec: Specification
    script: tuple[Call, ...]
    call: Call
    entries: int = 2
    two_copies: bool = False


def cases() -> Iterator[Case]:
    """What is enumerated: allocate, append, fork, free, leases, questions, refusals, misuse."""
    three, two = scope(3, 2), scope(2, 2)

    def plain(script: tuple[Call, ...], *calls: Call, spec: Specification = three) -> list[Case]:
        return [Case(spec, script, one) for one in calls]

    one = (allocate(0, 1),)
    yield from plain((), allocate(0, 0), allocate(0, 3), allocate(0, 7), can_allocate(7))
    yield from plain((), allocate(0, -1), allocate(0, 1, 0), append(0, 1), free(0), show(0))
    yield from plain((), fork(0, 1), begin(0, 0), end(0), can_allocate(-1))
    yield from plain(one, allocate(1, 3), allocate(1, 5), allocate(0, 1), can_allocate(5))
    yield from plain(one, append(0, 0), append(0, 1), append(0, 3), append(0, 6), append(0, -1))
    yield from plain(one, free(0), show(0), fork(0, 1), fork(0, 0), fork(1, 0), begin(0, 0))
    yield from plain((allocate(0, 1, 2),), append(0, 1), append(0, 2))
    yield from (Case(three, one, call, entries=3) for call in (append(0, 1), append(0, 5)))
    yield Case(three, (), allocate(0, 5), entries=3)
    # Shared and leased tails, in every mixture.
    shared = (*one, fork(0, 1))
    yield from plain(
        shared, append(1, 0), append(1, 3), append(1, 5), free(0), free(1), begin(1, 0)
    )
    yield Case(three, shared, append(0, 1), two_copies=True)
    yield from plain((allocate(0, 2), fork(0, 1)), append(0, 1), free(1))
    yield Case(three, (allocate(0, 3), fork(0, 1)), append(1, 1), two_copies=True)
    leased = (*one, begin(0, 0))
    yield from plain(leased, append(0, 3), append(0, 5), free(0), end(0), end(1), fork(0, 1))
    yield from plain(leased, allocate(1, 3), allocate(1, 5), begin(0, 1))
    yield Case(three, leased, append(0, 1), two_copies=True)
    yield from plain((*leased, begin(0, 1)), end(0), free(0))
    yield from plain((*leased, free(0)), allocate(1, 1), allocate(1, 5), end(0), can_allocate(5))
    yield from plain((*leased, begin(0, 1), free(0)), end(1), end(0))
    yield from plain((*shared, begin(0, 0)), append(1, 1), free(0), end(0))
    yield Case(three, (*shared, begin(0, 0)), append(0, 1), two_copies=True)
    yield from plain((*shared, begin(1, 0), free(1)), append(0, 1), append(0, 3), end(0))
    # Three sequences, in two blocks.
    yield Case(two, (*shared, fork(1, 2)), append(0, 1), two_copies=True)
    yield from plain((*shared, fork(1, 2)), append(1, 2), free(2), spec=two)
    yield from plain(shared, allocate(2, 1), fork(0, 2), spec=two)
    yield from plain((*shared, allocate(2, 1)), append(0, 1), append(2, 1), free(2), spec=two)
    # Other contracts.
    tail, every = scope(3, 2, eager_fork="tail"), scope(3, 2, eager_fork="all")
    yield Case(tail, one, fork(0, 1), two_copies=True)
    yield from plain((allocate(0, 3),), fork(0, 1), spec=tail)
    yield from plain((allocate(0, 2),), fork(0, 1), spec=tail)
    yield from plain((allocate(0, 5),), fork(0, 1), spec=tail)
    yield from plain((allocate(0, 2),), fork(0, 1), spec=every)
    yield from plain((allocate(0, 3),), fork(0, 1), spec=every)
    yield from plain((allocate(0, 2),), fork(0, 1), spec=scope(4, 1, eager_fork="all"))
    yield from plain(shared, append(0, 1), spec=scope(3, 2, first_block=1))
    # In a granule of two blocks of one token, the second block can be shared before it is written.
    granular = scope(3, 1, reservation=Granular(2))
    yield from plain((), allocate(0, 0), allocate(0, 1), allocate(0, 3), spec=granular)
    yield from plain(one, append(0, 1), append(0, 2), fork(0, 1), spec=granular)
    yield from plain(shared, append(0, 2), free(0), spec=granular)
    yield Case(granular, shared, append(0, 1), two_copies=True)
    yield from plain(leased, append(0, 1), spec=granular)
    yield from plain(one, fork(0, 1), spec=scope(4, 1, reservation=Granular(2), eager_fork="all"))
    yield from plain(
        (allocate(0, 0),),
        append(0, 0),
        append(0, 1),
        fork(0, 1),
        spec=scope(3, 2, max_tokens=4, reservation=ToMax(), geometries=BOUNDED),
    )
    exact = scope(3, 2, reservation=Exact())
    yield from plain((), allocate(0, 0, 4), allocate(0, 1, 4), allocate(0, 1), spec=exact)
    yield from plain((allocate(0, 1, 4),), append(0, 1), spec=exact)
    doubling = scope(3, 2, reservation=Doubling())
    yield from plain((allocate(0, 2),), append(0, 0), append(0, 1), spec=doubling)
    unspecified = scope(3, 2, reservation=Unspecified())
    yield from plain((), allocate(0, 0), allocate(0, 1), allocate(0, 7), spec=unspecified)
    # Where a sequence lies in one extent: holes, growth in place, and fragmentation.
    for placement, num_blocks in (("contiguous", 3), ("aligned", 4)):
        spec = scope(
            *(num_blocks, 1), placement=placement, reservation=Exact(), capabilities=UNSHARED
        )
        yield from plain((), allocate(0, 0), allocate(0, 1), allocate(0, 2), spec=spec)
        yield from plain((), allocate(0, 1, 2), can_allocate(3), spec=spec)
        one_left = (allocate(0, 1), allocate(1, 1), free(0))
        yield from plain(one_left, allocate(0, 2), allocate(0, 3), append(1, 1), spec=spec)
        yield from plain(one_left, can_allocate(2), can_allocate(3), spec=spec)
        yield from plain((allocate(0, 0), allocate(1, 1)), append(0, 2), append(1, 1), spec=spec)
        yield from plain((allocate(0, 1), allocate(1, 1)), append(0, 1), append(1, 1), spec=spec)
    doubled = scope(5, 1, placement="contiguous", reservation=Doubling(), capabilities=UNSHARED)
    yield from plain((allocate(0, 1),), append(0, 1), append(0, 2), spec=doubled)
    for num_blocks in (3, 4):  # one slot of two blocks and one block over, and two slots
        slots = scope(
            *(num_blocks, 1),
            max_tokens=2,
            placement="slots",
            reservation=ToMax(),
            geometries=BOUNDED,
            capabilities=UNSHARED,
        )
        yield from plain((), allocate(0, 0), allocate(0, 1), can_allocate(2), spec=slots)
        yield from plain(one, append(0, 1), allocate(1, 1), can_allocate(1), spec=slots)
        yield from plain((*one, allocate(1, 0)), append(1, 1), spec=slots)
    store = scope(3, 2, capabilities=(*CONTROL, "store"))
    yield from plain((allocate(0, 5),), write(0, 5, 1), write(0, 4, 9), write(1, 0, 1), spec=store)


def case_id(case: Case) -> str:
    """The pool, the contract's relaxations, what came before, and the call."""
    geometry, contract = case.spec.geometry, case.spec.contract
    pool = f"{geometry.num_blocks}x{geometry.block_size}"
    relaxed = [str(getattr(contract, f)) for f in contract.relaxations() if f != "geometries"]
    return " ".join([pool, *relaxed, *map(told, case.script), "->", told(case.call)])


CASES = list(cases())
ERRORS = sorted(kind.__name__ for kind in AllocatorError.__subclasses__() if "Out" not in str(kind))


def answers(case: Case, operation: Operation) -> Iterator[Answer]:
    """Every answer that the driver can report."""
    ids = case.spec.initial().blocks()
    pairs = [Copy(source, to) for source in ids for to in ids]
    match operation.answers:
        case "copies":
            yield DONE
            yield from (Answer("done", copies=(pair,)) for pair in pairs)
            if case.two_copies:
                yield from (Answer("done", copies=two) for two in product(pairs, repeat=2))
        case "admission":
            yield from (Answer("done", value) for value in ("OK", "LATER", "NEVER"))
        case _:
            yield DONE
    yield REFUSED
    yield from (Answer("error", error) for error in ERRORS)
    yield from (Answer("raised", "KeyError(0)"), Answer("nonsense", "None"), Answer("hang"))
    yield Answer("injected", "a point at which nothing was made to fail")


def uncounted(case: Case, state: State, operation: Operation) -> Iterator[Outcome]:
    """Every answer with every table of every sequence that lives after it."""
    ids = state.blocks()
    tables = [t for n in range(case.entries + 1) for t in product(ids, repeat=n)]
    for answer in answers(case, operation):
        live = tuple(map(table_of, case.spec.foreseen(state, operation, answer).sequences))
        for shown in product(tables, repeat=len(live)):
            yield Outcome(answer, Observation(tables=dict(zip(live, shown, strict=True))))


def counted(outcome: Outcome, count: int) -> Outcome:
    """The same outcome, with the allocator's own count of free blocks."""
    return evolve(outcome, observation=evolve(outcome.observation, free={DEVICE: count}))


def rejected(step: Step) -> bool:
    """Whether some law is broken: `judge` up to its first breach."""
    return any(law.judge(step) is not None for law in step.spec.laws)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_judge_accepts_the_choices_and_rejects_every_other_outcome(case):
    """An outcome is accepted if and only if it is a choice, up to the names of free blocks.

    The universe: every answer kind, every interface error, no copy or any one copy (or any two
    in a row, where the case says so) between any blocks, for each sequence that lives then every
    table of up to 2 (or 3) entries over all ids, and every free count from 0 to the pool's size.
    Ids out of range and other nonsense never come so far: the driver reports them as oddities.

    Where an outcome is rejected before the count is looked at, the counts are left out: that
    a count takes no breach away is the claim of the next test.
    """
    spec = case.spec
    state, operation = reached(spec, *case.script), spec.operation(case.call)
    choices = {canonical(spec, state, o): o for o in spec.choices(state, operation)}
    # Choices that lie in the universe; the others have longer tables, or more copies.
    copies = 2 if case.two_copies else 1
    within = {
        name
        for name, choice in choices.items()
        if len(choice.answer.copies) <= copies
        and all(len(table) <= case.entries for table in choice.observation.tables.values())
    }
    found = set()
    for outcome in uncounted(case, state, operation):
        if rejected(spec.believe(state, operation, outcome)):
            continue
        for count in range(spec.geometry.num_blocks + 1):
            full = counted(outcome, count)
            if spec.judge(spec.believe(state, operation, full)) == ():
                name = canonical(spec, state, full)
                assert name in choices, f"accepted, but no choice: {full}"
                found.add(name)
    assert found == within


def test_looking_at_the_count_takes_no_breach_away():
    """What is rejected by answer and tables alone stays so, whatever the count is."""
    shown = 0
    for case in CASES[::5]:
        state, operation = reached(case.spec, *case.script), case.spec.operation(case.call)
        for i, outcome in enumerate(uncounted(case, state, operation)):
            if i % 31:
                continue
            bare = case.spec.believe(state, operation, outcome)
            broken = {breach.law for breach in case.spec.judge(bare)}
            for count in range(case.spec.geometry.num_blocks + 1):
                step = case.spec.believe(state, operation, counted(outcome, count))
                assert broken <= {breach.law for breach in case.spec.judge(step)}
                shown += bool(broken)
    assert shown > 1000


def test_no_choice_survives_an_oddity_or_a_table_in_two_hands():
    """What queries answered outside the interface, or by reference, is rejected in any outcome."""
    for case in CASES:
        state, operation = reached(case.spec, *case.script), case.spec.operation(case.call)
        for outcome in case.spec.choices(state, operation):
            seen = outcome.observation
            bad = [evolve(seen, oddities=("num_free_blocks() raised KeyError",))]
            # Nobody has an earlier table of a sequence that has just come.
            bad += [evolve(seen, aliased=(t,)) for t in seen.tables if t.seq in state.sequences]
            for observation in bad:
                step = case.spec.believe(state, operation, evolve(outcome, observation=observation))
                assert len(case.spec.judge(step)) == 1


def test_a_call_that_takes_no_block_is_never_out_of_blocks():
    """A wrong call may be refused for want of blocks only if it is of a kind that takes some."""
    spec = scope(2, 2, capabilities=(*CONTROL, "store"))
    state = reached(spec, allocate(0, 4))
    wrong = [call for room in spec.rooms for call in room.wrong(state, spec)]
    refusable = {o.method for o in wrong if spec.expect(state, o).refused}
    assert refusable == {"allocate", "append"}
