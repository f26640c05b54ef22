"""The reducer: the shortest story that breaks the same law.

Moves are tried on replays until none helps: drop runs of steps, merge neighbours, lower
lengths and bounds, lower the pool and the block size, rename. The result is *1-minimal*: no
single move leaves a trace that breaks the same law first. It is deterministic, and every
candidate is a whole run of a fresh allocator. A call that made sense only because of a
dropped one (its sequence is gone) is dropped with it, not turned into misuse.
"""

from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve, fields, frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, NotBuilt
from kvspec.engines.session import Session
from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import FULL
from kvspec.rooms import specification
from kvspec.traces.trace import Trace, TraceStep

Steps = tuple[TraceStep, ...]


@frozen
class _Case:
    """What a move changes: the geometry, and the steps."""

    geometry: Geometry
    steps: Steps


@frozen
class Reducer:
    """Reduces traces of one allocator."""

    make: Callable[..., Any]
    timeout: float = DEFAULT_CALL_TIMEOUT

    def reproduce(self, trace: Trace, times: int = 1, full: bool = False) -> tuple[int, Trace]:
        """In how many of `times` replays the same law is broken, and the last such trace."""
        steps = trace.steps
        if full:
            steps = tuple(evolve(step, look=FULL) for step in steps)
        again, count = trace, 0
        for _ in range(times):
            run = self._run(trace, _Case(trace.geometry, steps))
            if run is not None and (run.law == trace.law or (full and run.law is not None)):
                again, count = run, count + 1
        return count, again

    def reduce(self, trace: Trace) -> Trace:
        """A 1-minimal trace that breaks the same law; `trace` must do so on every replay."""
        best = trace
        while True:
            better = self._improve(best)
            if better is None:
                return evolve(best, reduced=True)
            best = better

    def is_minimal(self, trace: Trace) -> bool:
        """Whether no single move leaves a trace that breaks the same law."""
        return self._improve(trace) is None

    def _improve(self, trace: Trace) -> Trace | None:
        case = _Case(trace.geometry, trace.steps)
        for move in _moves(case):
            if not trace.contract.geometries.admits(move.geometry):
                continue
            run = self._run(trace, move)
            # A move that changes nothing after all (its steps came back by themselves, or
            # were dropped as senseless) is no improvement.
            if run is not None and run.law == trace.law and _size(run) < _size(trace):
                return run
        return None

    def _run(self, trace: Trace, case: _Case) -> Trace | None:
        spec = specification(case.geometry, trace.contract, trace.capabilities)
        try:
            session = Session(self.make, spec, name=trace.allocator, timeout=self.timeout)
        except NotBuilt:
            return None
        for step in case.steps:
            senseless = not step.wrong and session.spec.expect(session.state, step.operation).errors
            if not senseless and session.perform(step.operation, step.look):
                return session.trace
        return None


def _size(trace: Trace) -> tuple[Any, ...]:
    """What the moves make smaller, the most important first."""
    geometry = trace.geometry
    operations = [step.operation for step in trace.steps]
    return (
        len(operations),
        geometry.max_tokens is not None,
        sum(value is not None for op in operations for _, value in _bounds(op)),
        geometry.num_blocks,
        geometry.block_size,
        geometry.max_tokens or 0,
        sum(value for op in operations for _, value in _lengths(op)),
        sum(value for op in operations for _, value in _bounds(op) if value is not None),
        [_names(op) for op in operations],
    )


def _names(operation: Operation) -> list[int]:
    return [getattr(operation, f.name) for f in fields(type(operation)) if f.name in _IDS]


_IDS = ("seq", "parent", "child", "lease")
_SEQS = ("seq", "parent", "child")


def _lengths(operation: Operation) -> Iterator[tuple[str, int]]:
    for f in fields(type(operation)):
        value = getattr(operation, f.name)
        if f.name in ("num_tokens", "start") and type(value) is int and value > 0:
            yield f.name, value


def _bounds(operation: Operation) -> Iterator[tuple[str, int | None]]:
    limit = getattr(operation, "limit", None)
    if type(limit) is int:
        yield "limit", limit


# ------------------------------------------------------------------------------ the moves


def _moves(case: _Case) -> Iterator[_Case]:
    """Every case that one move away is smaller, the boldest moves first."""
    yield from _drop(case)
    yield from _merge(case)
    yield from _join(case)
    yield from _shrink_geometry(case)
    yield from _lower(case)
    yield from _rename(case)


def _drop(case: _Case) -> Iterator[_Case]:
    count = len(case.steps)
    length = count
    while length >= 1:
        for start in range(count - length, -1, -1):
            yield evolve(case, steps=case.steps[:start] + case.steps[start + length :])
        length = length // 2 if length > 4 else length - 1


def _merge(case: _Case) -> Iterator[_Case]:
    """Two neighbours that grow one sequence become one."""
    for i, (first, second) in enumerate(zip(case.steps, case.steps[1:], strict=False)):
        ours, theirs = first.operation, second.operation
        same = getattr(ours, "seq", None) == getattr(theirs, "seq", -1)
        if same and theirs.method == "append" and ours.method in ("allocate", "append"):
            lengths = dict(_lengths(ours)), dict(_lengths(theirs))
            total = lengths[0].get("num_tokens", 0) + lengths[1].get("num_tokens", 0)
            merged = evolve(first, operation=_with(ours, "num_tokens", total))
            yield evolve(case, steps=(*case.steps[:i], merged, *case.steps[i + 2 :]))


def _join(case: _Case) -> Iterator[_Case]:
    """A sequence is not started, and another does what it did."""
    for i, step in enumerate(case.steps):
        started = step.operation.touched
        if step.operation.subjects == started or not started:
            continue
        for other in dict.fromkeys(seq for s in case.steps for seq in s.operation.touched):
            if other != started[0]:
                names = {started[0]: other}
                later = (
                    evolve(s, operation=s.operation.renamed(names)) for s in case.steps[i + 1 :]
                )
                yield evolve(case, steps=(*case.steps[:i], *later))


def _with(operation: Operation, name: str, value: object) -> Operation:
    return evolve(operation, **{name: value})


def _map(case: _Case, change: Callable[[int], int]) -> Steps:
    """The steps with every length changed."""
    steps = []
    for step in case.steps:
        operation = step.operation
        for name, value in [*_lengths(operation), *_bounds(operation)]:
            if value is not None:
                operation = _with(operation, name, change(value))
        steps.append(evolve(step, operation=operation))
    return tuple(steps)


def _shrink_geometry(case: _Case) -> Iterator[_Case]:
    geometry, size = case.geometry, case.geometry.block_size
    if geometry.max_tokens is not None:
        yield evolve(case, geometry=evolve(geometry, max_tokens=None))
    for fewer in range(1, geometry.num_blocks):
        smaller = evolve(case, geometry=evolve(geometry, num_blocks=fewer))
        yield smaller
        # What filled the pool must fill the smaller one: a step goes with it, or a length.
        for i in range(len(case.steps)):
            yield evolve(smaller, steps=case.steps[:i] + case.steps[i + 1 :])
        lost = (geometry.num_blocks - fewer) * size
        for i, step in enumerate(case.steps):
            for name, value in _lengths(step.operation):
                if value > lost:
                    lowered = evolve(step, operation=_with(step.operation, name, value - lost))
                    yield evolve(smaller, steps=(*case.steps[:i], lowered, *case.steps[i + 1 :]))
    for less in range(1, size):
        most = geometry.max_tokens

        def scaled(tokens: int, less: int = less) -> int:
            # As many whole blocks, and a rest where there was one.
            return tokens // size * less + min(tokens % size, less - 1)

        def rounded(tokens: int, less: int = less) -> int:
            return tokens // size * less + min(tokens % size, less)

        shrunk = evolve(
            geometry, block_size=less, max_tokens=None if most is None else max(1, scaled(most))
        )
        yield _Case(shrunk, case.steps)
        yield _Case(shrunk, _map(case, scaled))
        yield _Case(shrunk, _map(case, rounded))
    if geometry.max_tokens is not None:
        for lower in range(1, geometry.max_tokens):
            yield evolve(case, geometry=evolve(geometry, max_tokens=lower))


def _lower(case: _Case) -> Iterator[_Case]:
    for i, step in enumerate(case.steps):
        operation = step.operation
        for name, _ in _bounds(operation):
            yield _replaced(case, i, _with(operation, name, None))
        for name, value in [*_lengths(operation), *_bounds(operation)]:
            for lower in _lower_values(value or 0):
                yield _replaced(case, i, _with(operation, name, lower))
        # Two lengths down together, where the one only made room for the other.
        for name, value in _lengths(operation):
            for j, other in enumerate(case.steps[:i]):
                for theirs, more in _lengths(other.operation):
                    for by in range(1, min(value, case.geometry.block_size) + 1):
                        lowered = _replaced(case, i, _with(operation, name, value - by))
                        yield _replaced(
                            lowered, j, _with(other.operation, theirs, max(0, more - by))
                        )


def _lower_values(value: int) -> Iterator[int]:
    """All smaller values, or for a large one those near zero and near the halves."""
    if value <= 40:
        yield from range(value)
        return
    yield from range(20)
    step = value // 2
    while step:
        yield value - step
        step //= 2


def _replaced(case: _Case, i: int, operation: Operation) -> _Case:
    step = evolve(case.steps[i], operation=operation)
    return evolve(case, steps=(*case.steps[:i], step, *case.steps[i + 1 :]))


def _rename(case: _Case) -> Iterator[_Case]:
    """Sequences and leases named 0, 1, 2 ... in the order of their first appearance."""
    seqs: dict[int, int] = {}
    leases: dict[int, int] = {}
    for step in case.steps:
        for f in fields(type(step.operation)):
            value = getattr(step.operation, f.name)
            if f.name in _SEQS:
                seqs.setdefault(value, len(seqs))
            elif f.name == "lease":
                leases.setdefault(value, len(leases))
    steps = []
    for step in case.steps:
        operation = step.operation.renamed(seqs)
        if hasattr(operation, "lease"):
            operation = _with(operation, "lease", leases[operation.lease])
        steps.append(evolve(step, operation=operation))
    yield evolve(case, steps=tuple(steps))
