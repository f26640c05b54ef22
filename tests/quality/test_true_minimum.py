"""The reducer against the truth: no story is shorter than the one that it ends with.

The truth is a search of its own, by breadth: every sequence of right calls on the exhibit
itself, in tiny pools, until the law breaks. It shares no move and no order with the reducer.
"""

import copy
import functools
import pickle
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from attrs import evolve

from kvimpls.museum import EXHIBITS, AliasedTable, LeakOnRefusal
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, target
from kvspec.engines.session import Session
from kvspec.geometry import Geometry
from kvspec.kernel import generation
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.suite.check import explain

exhibits = pytest.mark.parametrize("exhibit", EXHIBITS, ids=[kind.__name__ for kind in EXHIBITS])


class Size(NamedTuple):
    """What a story is measured by, the most important first, as the reducer has it."""

    steps: int
    num_blocks: int
    block_size: int
    tokens: int


# ------------------------------------------------------------------------------ the search

POOLS = (Geometry(1, 1), Geometry(1, 2), Geometry(2, 1), Geometry(2, 2))
CONTROL = ("core", "reservation", "admission", "sharing", "lease", "introspection")
SEQUENCES, LEASES, LONGEST, DEEPEST = 2, 2, 3, 6


class Node(NamedTuple):
    """A session without a breach so far, the allocator in it, and the tokens asked for."""

    session: Session
    made: list
    tokens: int

    def after(self, made: Call) -> "Node":
        """The node one call later; this one stays as it is."""
        # Facts are never changed in place: only the allocator and its driver are copied.
        shared = [self.session.spec, self.session.state, *self.session.trace.steps]
        session, allocators = copy.deepcopy(
            (self.session, self.made), {id(value): value for value in shared}
        )
        session.perform(session.spec.operation(made))
        return Node(session, allocators, self.tokens + made.fields.get("num_tokens", 0))

    def fingerprint(self) -> bytes:
        """All on which the future depends: the allocator, and what is believed of it.

        Cells know in which step they were written; which steps those were does not matter.
        """
        state = self.session.state
        facts = repr((state.sequences, state.holds, state.contents, state.slices, state.refused))
        steps: dict[str, str] = {}
        facts = re.sub(r"operation=\d+", lambda m: steps.setdefault(m[0], f"{len(steps)}"), facts)
        return pickle.dumps([vars(allocator) for allocator in self.made]) + facts.encode()


def start(exhibit, pool: Geometry) -> Node:
    """A fresh allocator."""
    made = []

    def make(geometry):
        made.append(exhibit(geometry))
        return made[-1]

    return Node(Session(make, searched(exhibit).specification(pool)), made, 0)


def searched(exhibit) -> Target:
    """The exhibit in the capabilities whose calls the search knows."""
    return evolve(target(exhibit), capabilities=CONTROL)


def right_calls(state: State, pool: Geometry) -> Iterator[Call]:
    """All right calls, with lengths up to what no pool this small can hold."""
    lengths = range(min(LONGEST, pool.capacity + 1) + 1)
    unused = next((seq for seq in range(SEQUENCES) if seq not in state.sequences), None)
    leases = state.slices["lease"]
    begun = len(leases.open) + len(leases.ended)
    if unused is not None:
        yield from (call("allocate", seq=unused, num_tokens=n) for n in lengths)
    for seq in state.sequences:
        yield from (call("append", seq=seq, num_tokens=n) for n in lengths)
        yield call("free", seq=seq)
        if unused is not None:
            yield call("fork", parent=seq, child=unused)
        if begun < LEASES:
            yield call("begin_transfer", seq=seq, lease=begun)
    yield from (call("end_transfer", lease=lease) for lease in leases.open)
    yield from (call("can_allocate", num_tokens=n) for n in lengths)


@functools.cache
def shortest(exhibit, law: str) -> Size:
    """The size of the smallest story in which `law` is the first broken law."""
    frontiers = {pool: [start(exhibit, pool)] for pool in POOLS}
    known = {pool: set() for pool in POOLS}
    for depth in range(1, DEEPEST + 1):
        for pool in POOLS:
            stories, reached = [], {}
            for node in frontiers[pool]:
                for made in right_calls(node.session.state, pool):
                    later = node.after(made)
                    if later.session.breaches:
                        if later.session.breaches[0].law == law:
                            stories.append(later.tokens)
                        continue
                    print_ = later.fingerprint()
                    best = reached.get(print_)
                    if print_ not in known[pool] and (best is None or later.tokens < best.tokens):
                        reached[print_] = later
            if stories:
                return Size(depth, pool.num_blocks, pool.block_size, min(stories))
            frontiers[pool] = list(reached.values())
            known[pool].update(reached)
    raise AssertionError(f"{exhibit.__name__} keeps {law} for {DEEPEST} steps")


# ------------------------------------------------------------------------------ the stories


def size(trace) -> Size:
    """The size of a trace."""
    geometry = trace.geometry
    tokens = sum(getattr(step.operation, "num_tokens", 0) for step in trace.steps)
    return Size(len(trace.steps), geometry.num_blocks, geometry.block_size, tokens)


class Dice:
    """A chooser that draws from a seeded generator."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def integer(self, low, high, near=()):
        """One of `near` every other time."""
        if near and self._random.random() < 0.5:
            return self._random.choice(near)
        return self._random.randint(low, high)

    def pick(self, items):
        """Any of the items."""
        return self._random.choice(items)


def long_walk(exhibit, seed, steps=300):
    """The trace of one long episode, sparsely looked at for odd seeds; `None` if all went well."""
    tested, dice = searched(exhibit), Dice(seed)
    spec = tested.specification(generation.geometry(dice, tested.contract, tested.rooms))
    proposals = [proposal for proposal in spec.proposals() for _ in range(proposal.weight)]
    session = Session(tested.make, spec)
    for number in range(steps):
        possible = [p for p in proposals if p.possible(session.state, spec)]
        operation = dice.pick(possible).draw(session.state, spec, dice)
        if session.perform(operation, TOUCHED if seed % 2 and number % 4 else FULL):
            return session.trace
    return None


@exhibits
def test_the_machines_story_is_the_shortest_there_is(exhibit, by_machine):
    """What is left of the machine's find is as small as anything that the search finds."""
    _, explained, _ = by_machine(exhibit, 0)
    assert size(explained) == shortest(exhibit, explained.law)


@exhibits
def test_long_walks_end_in_the_shortest_story_too(exhibit, by_machine):
    """Five violations at the ends of long walks all reduce to the same law and the true size."""
    law = by_machine(exhibit, 0)[1].law
    tested, found = searched(exhibit), []
    for seed in range(60):
        violation = long_walk(exhibit, seed)
        if violation is not None:
            explained, _ = explain(tested, violation, DEFAULT_CALL_TIMEOUT)
            assert (explained.law, size(explained)) == (law, shortest(exhibit, law))
            found.append(len(violation.steps))
        if len(found) == 5:
            break
    assert len(found) == 5
    # These are found out at almost every second look or refusal, so that their walks end soon.
    assert max(found) >= (5 if exhibit in (AliasedTable, LeakOnRefusal) else 15)
