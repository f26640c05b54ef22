"""A case of the reducer: a geometry and steps, what is in them, and what smaller means."""

from collections.abc import Iterator
from typing import Any

from attrs import evolve, fields, frozen

from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.rooms import OPERATIONS
from kvspec.traces.trace import TraceStep


@frozen
class Case:
    """What a move changes: the geometry, and the steps."""

    geometry: Geometry
    steps: tuple[TraceStep, ...]


def size(case: Case) -> tuple[Any, ...]:
    """What the moves make smaller, the most important first."""
    geometry = case.geometry
    operations = [step.operation for step in case.steps]
    tokens = [several(op, "tokens") for op in operations]
    return (
        len(operations),
        sum(step.wrong for step in case.steps),
        sum(step.fault for step in case.steps),
        sum(len(several(op, "seqs") or ()) for op in operations),
        sum(known is not None for known in tokens),
        sum(getattr(op, "key", None) is not None for op in operations),
        len(geometry.groups or ()),
        geometry.max_tokens is not None,
        geometry.window is not None,
        geometry.num_host_blocks,
        sum(1 for op in operations for _ in bounds(op)),
        geometry.num_blocks,
        geometry.block_size,
        geometry.max_tokens or 0,
        geometry.window or 0,
        [(g.block_size, g.window or 0, g.num_blocks or 0) for g in geometry.groups or ()],
        sum(value for op in operations for _, value in lengths(op)),
        sum(value for op in operations for _, value in sizes(op)),
        sum(value for op in operations for _, value in bounds(op)),
        sum(several(op, "num_tokens") is not None for op in operations),
        sum(sum(known or ()) for known in tokens),
        [[value for _, value in ids(op)] for op in operations],
    )


At = tuple[str, int | None]
"""A field of an operation, or an entry of one that has several."""


def values(operation: Operation, *names: str) -> Iterator[tuple[At, Any]]:
    """What an operation has in the fields of these names, entry by entry."""
    for f in fields(type(operation)):
        if f.name in names:
            value = getattr(operation, f.name)
            if isinstance(value, tuple):
                yield from (((f.name, k), entry) for k, entry in enumerate(value))
            else:
                yield (f.name, None), value


def ids(operation: Operation) -> list[tuple[At, int]]:
    """The sequences and leases that it names."""
    return list(values(operation, "seq", "parent", "child", "lease", "seqs"))


def lengths(operation: Operation) -> Iterator[tuple[At, int]]:
    """Lengths in tokens; that of the tokens themselves is one of them."""
    for at, value in values(operation, "num_tokens", "start"):
        if type(value) is int and value > 0:
            yield at, value
    if tokens := several(operation, "tokens"):
        yield ("tokens", None), len(tokens)


def lower_values(value: int) -> Iterator[int]:
    """All smaller values, or for a large one those near zero and near the halves."""
    if value <= 40:
        yield from range(value)
        return
    yield from range(20)
    step = value // 2
    while step:
        yield value - step
        step //= 2


def bounds(operation: Operation) -> Iterator[tuple[At, int]]:
    """The bounds on final lengths."""
    return (pair for pair in values(operation, "limit") if type(pair[1]) is int)


def sizes(operation: Operation) -> Iterator[tuple[At, int]]:
    """Sizes of the pool in blocks."""
    return (pair for pair in values(operation, "num_blocks") if type(pair[1]) is int)


def several(operation: Operation, name: str) -> tuple[Any, ...] | None:
    """What a field holds, if that is several."""
    value = getattr(operation, name, None)
    return value if isinstance(value, tuple) else None


def having(operation: Operation, **changes: Any) -> Operation:
    """The operation with some fields changed, which it has."""
    return evolve(operation, **changes)


def operation_of(method: str, **its: Any) -> Operation:
    """The operation of that method with these fields."""
    return OPERATIONS[method](**its)


def changed(case: Case, i: int, at: At, value: object) -> Case:
    """The case with one field of one operation changed; tokens have another length then."""
    operation, (name, entry) = case.steps[i].operation, at
    old = several(operation, name)
    if old is not None and entry is not None:
        value = (*old[:entry], value, *old[entry + 1 :])
    elif old is not None and type(value) is int:
        value = (*old[:value], *[0] * (value - len(old)))
    return made(case, i, evolve(operation, **{name: value}))


def made(case: Case, i: int, operation: Operation) -> Case:
    """The case with another operation."""
    return stepped(case, i, evolve(case.steps[i], operation=operation))


def stepped(case: Case, i: int, *steps: TraceStep) -> Case:
    """The case with other steps for one."""
    return evolve(case, steps=(*case.steps[:i], *steps, *case.steps[i + 1 :]))


def without(case: Case, start: int, stop: int) -> Case:
    """The case without the steps from `start` up to `stop`."""
    return evolve(case, steps=case.steps[:start] + case.steps[stop:])


def renamed_after(case: Case, i: int, names: dict[int, int]) -> Case:
    """The case without the step `i`, after which these sequences have other names."""
    later = (evolve(s, operation=s.operation.renamed(names)) for s in case.steps[i + 1 :])
    return evolve(case, steps=(*case.steps[:i], *later))


def number_of(operation: Operation) -> int:
    """The one length of an operation, 0 where it has none."""
    return dict(lengths(operation)).get(("num_tokens", None), 0)


def key_of(operation: Operation) -> object:
    """The key of a prompt; none where there is none."""
    return getattr(operation, "key", None)
