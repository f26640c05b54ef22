"""The laws about what is left: the count of free blocks, and what a sequence reads."""

from collections.abc import Sequence

from kvspec.geometry import DEVICE, first_in_window, table_index
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, plural, sequence_name, table_name
from kvspec.kernel.perturb import (
    other_count,
    other_reading,
    other_table,
)
from kvspec.kernel.state import Cell, TableOf
from kvspec.kernel.step import Step
from kvspec.rooms.core import witnesses


def _counted(step: Step) -> bool:
    return bool(step.seen.free)


def _conservation(step: Step) -> str | None:
    for place, free in step.seen.free.items():
        expected = step.spec.free_counts(step.after, place)
        if free in expected:
            continue
        occupancy, total = step.after.at(place), len(step.after.blocks(place))
        where = "" if place == DEVICE else f" of the {place}"
        holders = f"tables have {blocks_text(occupancy.users)}{where}"
        if occupancy.pinned_only:
            holders += f", and in flight: {blocks_text(occupancy.pinned_only)}"
        if occupancy.idle:
            holders += f", and cached without a user: {blocks_text(occupancy.idle)}"
        nearest = expected[0] if free < expected[0] else expected[-1]
        sign = "leaked" if free < nearest else "in excess"
        return (
            f"{holders}, so {nearest} of {total} must be free; the allocator says {free}: "
            f"{plural(abs(free - nearest), 'block')} {sign}."
        )
    return None


def _something_written(step: Step) -> bool:
    return step.after.written


def _read_back(step: Step) -> str | None:
    shadowed = step.spec.shadowed
    if shadowed and step.still:
        return None
    for seq in step.after.sequences:
        if not shadowed:
            if seq in step.seen.readings:
                why = _misread(step, step.after.home(seq), step.seen.readings[seq])
                if why:
                    return why
            continue
        for table in step.after.homes(seq):
            if step.untouched(table):
                continue
            why = _misread(step, table, step.spec.reading(step.after, table))
            if why:
                return why
    return None


def _misread(step: Step, table: TableOf, read: Sequence[Cell | None]) -> str | None:
    """Where the table's sequence reads something else than it wrote, as far as it needs to."""
    sequence = step.after.sequences[table.seq]
    if read[: sequence.written] == sequence.cells:  # what nearly all are, quickly
        return None
    entries, size = step.after.entries(table), step.spec.block_size(table)
    window = step.spec.layout[table.group].window
    for position in range(first_in_window(sequence.length, window), sequence.written):
        wrote, i = sequence.cells[position], table_index(position, size)
        released = window is not None and i < len(entries) and entries[i] is None
        got = read[position] if position < len(read) else None
        if wrote is not None and got != wrote and not released:
            return (
                f"position {position} of {table_name(table)} must read what "
                f"{_deed(wrote)}; it reads {_contents(got)}."
            )
    return None


def _deed(cell: Cell) -> str:
    return (
        f"{sequence_name(cell.writer)} wrote at position {cell.position} in step {cell.operation}"
    )


def _contents(cell: Cell | None) -> str:
    if cell is None or cell.writer < 0:
        return "what nobody wrote"
    return f"what {_deed(cell)}"


CONSERVATION = Law(
    "conservation",
    "core",
    "Free, referenced and in-flight blocks are all there are, and the allocator's count agrees.",
    "Wenyueh/MinivLLM#84, kekzl/imp#1115",
    _counted,
    _conservation,
    (other_count,),
    witnesses.two_sequences,
)


READ_BACK = Law(
    "read-back",
    "core",
    "A live sequence reads at each position what was written there.",
    "the purpose of a cache; Avarok-Cybersecurity/atlas#1193",
    _something_written,
    _read_back,
    (other_reading, other_table),
    witnesses.two_sequences,
)
