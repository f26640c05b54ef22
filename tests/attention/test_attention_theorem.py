"""A theorem of the specification: where read-back holds, attention reads the right history.

The kernel reasons about cells, not numbers. Here every cell gets a key and a value of its own,
and a pool is filled by nothing but the contents that the kernel believes in. If the
specification means what it is for, then after every step of a conforming allocator attention
through the believed table is attention over the sequence's own history; and where an allocator
breaks read-back, it is not.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import TypeVar

import numpy as np
import pytest
from attention_cases import apart
from attrs import evolve, frozen

from kvimpls import unusual
from kvimpls.museum import DoubleHandOut, ForgottenCopyOnWrite
from kvimpls.reference import Reference
from kvspec import Geometry
from kvspec.attention import (
    Array,
    attend,
    attend_paged,
    attention_bound,
    seen,
)
from kvspec.driver.target import target
from kvspec.engines.session import Session
from kvspec.geometry import DEVICE, slot_of
from kvspec.kernel.outcome import FULL
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, State
from kvspec.rooms import LAWS

T = TypeVar("T")

N_HEADS, N_KV_HEADS, WIDTH = 4, 2, 3

CONFORMING = [
    Reference,
    *(
        kind
        for kind in vars(unusual).values()
        if isinstance(kind, type) and issubclass(kind, Reference) and kind is not Reference
    ),
]

CLAIMED = {"core", "sharing", "lease", "reservation"}
"""The capabilities that are driven: those that leave what a sequence has written on the device."""


@frozen
class SeededChooser:
    """A chooser of the engines' kind, from a generator with a seed."""

    random: Random

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        if near and self.random.random() < 0.25:
            return self.random.choice(near)
        return self.random.randint(low, high)

    def pick(self, items: Sequence[T]) -> T:
        return self.random.choice(items)


@cache
def numbers(cell: Cell) -> Array:
    """The key and the value of a cell, shape `(2, n_kv_heads, width)`: a function of it alone."""
    random = np.random.default_rng(list(repr(cell).encode()))
    return random.standard_normal((2, N_KV_HEADS, WIDTH))


def pools(state: State, spec: Specification) -> Array:
    """The keys and the values of all slots, as the believed contents have them; else NaN."""
    size = spec.geometry.block_size
    memory = np.full((2, state.blocks().stop * size, N_KV_HEADS, WIDTH), np.nan)
    for (place, block), cells in state.contents.items():
        for offset, cell in enumerate(cells):
            if place == DEVICE and cell is not None:
                memory[:, slot_of(block, offset, size)] = numbers(cell)
    return memory


def agreement(state: State, spec: Specification) -> dict[int, bool]:
    """By live sequence with something written: whether attention finds its own history."""
    agrees = {}
    keys, values = pools(state, spec)
    size, window = spec.geometry.block_size, spec.geometry.window
    for seq, sequence in state.sequences.items():
        if not sequence.cells:
            continue
        position = sequence.written - 1
        q = np.random.default_rng([seq, state.clock]).standard_normal((N_HEADS, WIDTH))
        history = np.array([numbers(sequence.cells[j]) for j in seen(position, window)])
        k, v = history[:, 0], history[:, 1]
        table = state.table(seq)
        output = attend_paged(q, keys, values, table, position, block_size=size, window=window)
        agrees[seq] = apart(output, attend(q, k, v)) <= attention_bound(q, k, v)
    return agrees


def walks(kind: type[Reference], laws: tuple[str, ...] = ()) -> Iterator[tuple[Session, str]]:
    """Some random runs of an allocator, given after each step with what was called.

    With `laws`, a run is ended by those alone.
    """
    tested = target(kind)
    capabilities = tuple(c for c in tested.capabilities if c in CLAIMED)
    for seed in range(16):
        choose = SeededChooser(Random(seed))
        num_blocks, block_size = choose.integer(4, 16), choose.pick((2, 3, 4, 1))
        limit = num_blocks * block_size // 2
        needs_limit = tested.contract.geometries.max_tokens == "required"
        geometry = Geometry(num_blocks, block_size, max_tokens=limit if needs_limit else None)
        spec = evolve(tested, capabilities=capabilities).specification(geometry)
        if laws:
            spec = evolve(spec, laws=tuple(law for law in LAWS if law.id in laws))
        session = Session(tested.make, spec)
        proposals = [p for p in spec.proposals() for _ in range(p.weight)]
        for _ in range(30):
            possible = [p for p in proposals if p.possible(session.state, spec)]
            operation = choose.pick(possible).draw(session.state, spec, choose)
            session.perform(operation, FULL)
            yield session, operation.method
            if session.breaches:
                break


@pytest.mark.parametrize("kind", CONFORMING, ids=lambda kind: kind.__name__)
def test_attention_through_the_table_is_attention_over_the_history(kind: type[Reference]) -> None:
    """After every step, for every live sequence, through forks, copies, moves and reuse."""
    did: Counter[str] = Counter()
    for session, method in walks(kind):
        assert session.breaches == ()
        agrees = agreement(session.state, session.spec)
        assert all(agrees.values()), session.trace
        outcome = session.trace.steps[-1].outcome
        assert outcome is not None
        answer = outcome.answer
        did[method] += answer.kind == "done"
        did["copy"] += len(answer.copies)
        did["checked"] += len(agrees)
    assert did["checked"] > 500
    assert min(did[method] for method in ("allocate", "append", "fork", "free")) > 5
    assert did["copy"] > 2


@pytest.mark.parametrize("kind", [ForgottenCopyOnWrite, DoubleHandOut])
def test_attention_differs_exactly_where_read_back_is_broken(kind: type[Reference]) -> None:
    """Judged by read-back alone: the same sequences at the same step, and none before it."""
    broken = 0
    for session, _ in walks(kind, laws=("read-back",)):
        state, spec = session.state, session.spec
        agrees = agreement(state, spec)
        for seq, right in agrees.items():
            assert right == (spec.reading(state, state.home(seq)) == state.sequences[seq].cells)
        assert all(agrees.values()) == (session.breaches == ())
        broken += session.breaches != ()
    assert broken > 2


def test_a_forgotten_copy_on_write_shows_in_the_attention_of_the_sibling() -> None:
    """The two sides of a fork write into one slot, and the first reads what the second wrote."""
    tested = target(ForgottenCopyOnWrite)
    spec = tested.specification(Geometry(4, 4))
    spec = evolve(spec, laws=tuple(law for law in LAWS if law.id == "read-back"))
    session = Session(tested.make, spec)
    session.call("allocate", seq=0, num_tokens=3)
    session.call("fork", parent=0, child=1)
    session.call("append", seq=0, num_tokens=1)
    assert agreement(session.state, spec) == {0: True, 1: True}
    (breach,) = session.call("append", seq=1, num_tokens=1)
    assert breach.law == "read-back"
    assert agreement(session.state, spec) == {0: False, 1: True}
