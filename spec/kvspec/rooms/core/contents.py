"""The laws about what is left: the count of free blocks, and what a sequence reads."""

from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, plural, sequence_name
from kvspec.kernel.perturb import (
    other_count,
    other_reading,
    other_table,
)
from kvspec.kernel.state import Cell
from kvspec.kernel.step import Step
from kvspec.rooms.core import witnesses


def _counted(step: Step) -> bool:
    return step.seen.free is not None


def _conservation(step: Step) -> str | None:
    free, expected = step.seen.free, step.spec.available(step.after)
    if free is None or free == expected:
        return None
    occupancy, total = step.after.at(), step.spec.geometry.num_blocks
    holders = f"tables have {blocks_text(occupancy.users)}"
    if occupancy.pinned_only:
        holders += f", and in flight: {blocks_text(occupancy.pinned_only)}"
    sign = "leaked" if free < expected else "in excess"
    return (
        f"{holders}, so {expected} of {total} must be free; the allocator says {free}: "
        f"{plural(abs(free - expected), 'block')} {sign}."
    )


def _something_written(step: Step) -> bool:
    return any(sequence.cells for sequence in step.after.sequences.values())


def _read_back(step: Step) -> str | None:
    for seq, sequence in step.after.sequences.items():
        if step.spec.shadowed:
            read = step.spec.reading(step.after, seq)
        elif seq in step.seen.readings:
            read = step.seen.readings[seq]
        else:
            continue
        for position, wrote in enumerate(sequence.cells):
            got = read[position] if position < len(read) else None
            if got != wrote:
                return (
                    f"position {position} of {sequence_name(seq)} must read what "
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
