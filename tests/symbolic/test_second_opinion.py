"""The specification's core explored alone, and the count of its states beside that of TLC.

`docs/tla/KVBlocks.tla` says the core again, in another language. TLC counts its distinct states
up to symmetry in blocks and sequences; here the specification's own are counted, through
`choices`, with no allocator.
"""

import re
import runpy
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.kernel.script import call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.rooms import specification

TLA = Path(__file__).resolve().parents[2] / "docs" / "tla"

COUNTS: dict[tuple[int, int, int, int], int] = runpy.run_path(str(TLA / "check.py"))["COUNTS"]
"""Blocks, sequences, tokens a block, and the greatest length; with TLC's distinct states."""


def calls(spec: Specification, state: State, ids: range) -> Iterator[Operation]:
    """Every right call of the core: a new sequence gets the lowest id that is not in use."""
    most = spec.geometry.max_tokens
    assert most is not None
    for seq in [seq for seq in ids if seq not in state.sequences][:1]:
        for tokens in range(most + 1):
            yield spec.operation(call("allocate", seq=seq, num_tokens=tokens))
    for seq, sequence in state.sequences.items():
        for tokens in range(most - sequence.length + 1):
            yield spec.operation(call("append", seq=seq, num_tokens=tokens))
        yield spec.operation(call("free", seq=seq))


def up_to_names(state: State) -> Hashable:
    """The lengths and tables, the same for states that differ in block and sequence ids only."""

    def named(order: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        names: dict[int, int] = {}
        return tuple(
            (
                state.sequences[seq].length,
                tuple(names.setdefault(b, len(names)) for b in state.table(seq) if b is not None),
            )
            for seq in order
        )

    return min(map(named, permutations(state.sequences)))


def explored(spec: Specification, sequences: int) -> dict[Hashable, State]:
    """All states that can be reached, each with how the last call was answered."""
    initial = spec.initial()
    found: dict[Hashable, State] = {(up_to_names(initial), "none"): initial}
    new = deque([initial])
    while new:
        state = new.popleft()
        for operation in calls(spec, state, range(sequences)):
            for outcome in spec.choices(state, operation):
                step = spec.believe(state, operation, outcome)
                key = up_to_names(step.after), outcome.answer.kind
                if key not in found:
                    found[key] = step.after
                    new.append(step.after)
    return found


def core(blocks: int, size: int, most: int) -> Specification:
    """The core alone, under the strict paged contract."""
    return specification(Geometry(blocks, size, max_tokens=most), Contract(), ("core",))


@pytest.mark.parametrize("size", COUNTS, ids=str)
def test_the_core_has_as_many_states_as_tlc_finds(size: tuple[int, int, int, int]) -> None:
    """Up to the names of blocks and sequences, counted through `choices`."""
    blocks, sequences, block_size, most = size
    assert len(explored(core(blocks, block_size, most), sequences)) == COUNTS[size]


def test_the_numbers_are_those_of_the_page() -> None:
    """`docs/symbolic.md` shows the sizes and counts that are pinned here."""
    page = (TLA.parent / "symbolic.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    shown = {tuple(map(int, row[:4])): int(row[4]) for row in rows}
    assert shown == COUNTS
