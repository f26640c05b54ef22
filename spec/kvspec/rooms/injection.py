"""The room of injection: what fails on the way leaves everything as it was.

An allocator calls `checkpoint` wherever its real counterpart can fail half way, and at one of them
the suite has it fail. No other test of atomicity can see a mistake in undoing what was done.
"""

from collections.abc import Iterator

from kvspec.geometry import Geometry, first_in_window, table_index
from kvspec.kernel.law import Law
from kvspec.kernel.names import call_text, entries_text, sequence_name, table_name
from kvspec.kernel.perturb import other_answer, other_count, other_table
from kvspec.kernel.room import Room
from kvspec.kernel.script import Call
from kvspec.kernel.step import Step


def _failed(step: Step) -> bool:
    return step.outcome.fault is not None


def _injection(step: Step) -> str | None:
    where = f"the call was made to fail at its checkpoint {step.outcome.fault!r}"
    if step.answer.kind != "injected":
        return f"{where}, and the fault must come through; the answer is: {step.answer}."
    for changed in _changed(step):
        return f"{where}, and must have left everything as it was; {changed}."
    return None


def _changed(step: Step) -> Iterator[str]:
    """What is not as it was before the call."""
    before, seen, spec = step.before, step.seen, step.spec
    for table, entries in seen.tables.items():
        was = before.entries(table)
        if entries != was:
            yield (
                f"the table of {table_name(table)} was {entries_text(was)} and is "
                f"{entries_text(entries)}"
            )
    for place, free in seen.free.items():
        expected = spec.free_counts(before, place)
        if free not in expected:
            nearest = expected[0] if free < expected[0] else expected[-1]
            count = f"the count of free blocks of the {place}"
            sign = "lost" if free < nearest else "in excess"
            yield f"{count} was {nearest} and is {free}: {abs(free - nearest)} {sign}"
    for asked in seen.asked:
        if spec.expect(before, asked.query).errors:
            continue  # a wrong question has no right answer
        value = asked.query.value(before, spec)
        if value and asked.answer.value != value:
            yield f"{call_text(asked.query)} was {value} and is {asked.answer.value or 'nothing'}"
    yield from _misread(step)


def _misread(step: Step) -> Iterator[str]:
    """The sequences that read something else than they wrote."""
    group = step.spec.geometry.layout[0]
    for seq, cells in step.seen.readings.items():
        sequence, entries = step.before.sequences[seq], step.before.table(seq)
        for position in range(first_in_window(sequence.length, group.window), sequence.written):
            wrote, index = sequence.cells[position], table_index(position, group.block_size)
            released = index < len(entries) and entries[index] is None
            if wrote is not None and not released and cells[position : position + 1] != (wrote,):
                yield f"position {position} of {sequence_name(seq)} reads something else"
                break


def _fail_on_the_way(geometry: Geometry) -> tuple[Call, ...]:
    """Taking several blocks fails at the first, the second and the third; so do the others."""
    size = geometry.block_size
    most = min(geometry.max_tokens or 3 * size, 3 * size, geometry.capacity)
    several = {"seq": 0, "num_tokens": most}
    return (
        *(Call("allocate", several, fault=k) for k in (1, 2, 3)),
        Call("allocate", {"seq": 0, "num_tokens": 1}),
        *(Call("append", {"seq": 0, "num_tokens": most - 1}, fault=k) for k in (1, 2)),
        Call("append", {"seq": 0, "num_tokens": most - 1}),
        Call("free", {"seq": 0}, fault=1),
        Call("free", {"seq": 0}),
        Call("allocate", several),
    )


LAWS = (
    Law(
        "injection",
        "injection",
        "A fault on the way comes through, and leaves tables, counts and contents as they were.",
        "ovg-project/kvcached#364, inference-sim/inference-sim#200",
        _failed,
        _injection,
        (other_answer, other_count, other_table),
        _fail_on_the_way,
    ),
)


ROOM = Room(
    capability="injection",
    methods=(),
    keywords={"": "checkpoint"},
    laws=LAWS,
)
