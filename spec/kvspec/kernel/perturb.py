"""Ways of disturbing an outcome: the raw material of bites.

Each gives outcomes that differ from the step's own in one respect: the answer, the count,
one table entry, the copies, a reading, an output.
"""

import math
from collections.abc import Iterator

from attrs import evolve

from kvspec.geometry import Place
from kvspec.interface import Copy
from kvspec.kernel.outcome import DONE, REFUSED, Answer, Asked, Attended, Outcome
from kvspec.kernel.state import Cell, Entries, TableOf
from kvspec.kernel.step import Step

_ELSEWHERE = Cell(position=-1, writer=-1, operation=-1)


def other_answer(step: Step) -> Iterator[Outcome]:
    """Success becomes refusal, and anything else success."""
    answer = REFUSED if step.done else DONE
    yield evolve(step.outcome, answer=answer)


def other_value(step: Step) -> Iterator[Outcome]:
    """A query about admission answers something else."""
    for value in ("OK", "LATER", "NEVER"):
        if value != step.answer.value:
            yield evolve(step.outcome, answer=Answer("done", value=value))


def other_number(step: Step) -> Iterator[Outcome]:
    """A call that gives a number gives another: one more or less, or a block's worth."""
    if step.done and step.answer.value.isdecimal():
        size, number = step.spec.geometry.block_size, step.answer.number
        for other in (number + 1, number - 1, number + size, number - size):
            if other >= 0:
                yield evolve(step.outcome, answer=evolve(step.answer, value=str(other)))


def other_blocks(step: Step) -> Iterator[Outcome]:
    """A call that names blocks names one less, one more, or another in the place of one."""
    if step.done and step.operation.answers == "blocks":
        named = step.answer.value.split()
        others = [str(block) for block in step.before.blocks() if str(block) not in named]
        for ids in (named[1:], *([*named[n:], other] for n in (0, 1) for other in others)):
            if ids != named:
                yield evolve(step.outcome, answer=evolve(step.answer, value=" ".join(ids)))


def other_count(step: Step) -> Iterator[Outcome]:
    """The count of free blocks is one off at some place."""
    for place, count in step.seen.free.items():
        for other in (count + 1, count - 1):
            counts = {**step.seen.free, place: other}
            yield evolve(step.outcome, observation=evolve(step.seen, free=counts))


def other_table(step: Step) -> Iterator[Outcome]:
    """One table has another last entry, none, one more, or a released one is back."""
    for table, entries in step.seen.tables.items():
        blocks = step.after.blocks(table.place)
        if not blocks:
            continue
        if entries:
            for block in blocks:
                if block != entries[-1]:
                    yield with_table(step, table, (*entries[:-1], block))
            yield with_table(step, table, entries[:-1])
        yield with_table(step, table, (*entries, blocks[0]))


def released_otherwise(step: Step) -> Iterator[Outcome]:
    """A released entry of a table is back, or one more is released."""
    for table, entries in step.seen.tables.items():
        gone = sum(entry is None for entry in entries)
        if gone:
            back = step.before.entries(table)[gone - 1 : gone]
            old = back[0] if back and back[0] is not None else step.after.blocks(table.place)[0]
            yield with_table(step, table, (*entries[: gone - 1], old, *entries[gone:]))
        if gone < len(entries):
            yield with_table(step, table, (*entries[:gone], None, *entries[gone + 1 :]))


def table_kept(step: Step) -> Iterator[Outcome]:
    """A table is shown as it was before the step, and no copy was reported."""
    for table in step.seen.tables:
        before = step.before.entries(table)
        if before:
            yield evolve(with_table(step, table, before), answer=evolve(step.answer, copies=()))


def other_copies(step: Step) -> Iterator[Outcome]:
    """One copy more than was reported, or none."""
    source, to = step.operation.tiers
    sources, ends = step.after.blocks(Place(source)), step.after.blocks(Place(to))
    if sources and ends:
        extra = Copy(sources[0], ends[-1])
        yield evolve(step.outcome, answer=evolve(step.answer, copies=(*step.answer.copies, extra)))
    if step.answer.copies:
        yield evolve(step.outcome, answer=evolve(step.answer, copies=()))


def other_asked(step: Step) -> Iterator[Outcome]:
    """A standing query has another answer: a number one off, a block more or less."""
    for i, asked in enumerate(step.seen.asked):
        for value in _other_texts(step, asked):
            other = Asked(asked.query, Answer("done", value=value))
            everything = (*step.seen.asked[:i], other, *step.seen.asked[i + 1 :])
            yield evolve(step.outcome, observation=evolve(step.seen, asked=everything))


def _other_texts(step: Step, asked: Asked) -> Iterator[str]:
    value = asked.answer.value
    match asked.query.answers:
        case "number":
            size = step.spec.geometry.block_size
            for other in (asked.answer.number + size, asked.answer.number - size):
                if other >= 0:
                    yield str(other)
            yield str(asked.answer.number + 1)
        case "blocks":
            ids = value.split()
            yield " ".join(ids[:-1])
            yield " ".join([*ids, *(str(b) for b in step.after.blocks() if str(b) not in ids)])


def other_reading(step: Step) -> Iterator[Outcome]:
    """A position reads something that was never written there."""
    for seq, cells in step.seen.readings.items():
        if cells:
            readings = {**step.seen.readings, seq: (*cells[:-1], _ELSEWHERE)}
            yield evolve(step.outcome, observation=evolve(step.seen, readings=readings))


def other_output(step: Step) -> Iterator[Outcome]:
    """An attention gives another first number, or none."""
    for seq, attended in step.seen.attended.items():
        for i, probe in enumerate(attended.probes):
            for first in (probe.output[0] + 0.25, math.nan):
                other = evolve(probe, output=(first, *probe.output[1:]))
                probes = (*attended.probes[:i], other, *attended.probes[i + 1 :])
                yield with_attended(step, seq, evolve(attended, probes=probes))


def oddity(step: Step) -> Iterator[Outcome]:
    """A query gives something outside the interface."""
    odd = evolve(step.seen, oddities=("a query answered nonsense",))
    yield evolve(step.outcome, observation=odd)


def aliased(step: Step) -> Iterator[Outcome]:
    """A table that was handed out earlier changed in the caller's hands."""
    for table in step.seen.tables:
        yield evolve(step.outcome, observation=evolve(step.seen, aliased=(table,)))


def with_attended(step: Step, seq: int, attended: Attended) -> Outcome:
    """The outcome in which attention over `seq` gave this."""
    everything = {**step.seen.attended, seq: attended}
    return evolve(step.outcome, observation=evolve(step.seen, attended=everything))


def with_table(step: Step, table: TableOf, entries: Entries) -> Outcome:
    """The outcome in which `table` was shown with these entries."""
    tables = {**step.seen.tables, table: entries}
    return evolve(step.outcome, observation=evolve(step.seen, tables=tables))
