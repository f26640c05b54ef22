"""One allocator under test: calls it, asks what the schedule says, hands the outcome on."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from types import CoroutineType
from typing import Any

import numpy as np
from attrs import define, field

from kvspec.driver import values
from kvspec.driver.making import (
    GeometryRefused,
    NotBuilt,
    build,
    mro_names,
    rows_of,
)
from kvspec.driver.snapshots import UNASKED, Given, is_shared
from kvspec.driver.store import HeadRows, Rows
from kvspec.driver.values import Nonsense, raised, text_of
from kvspec.driver.watchdog import TimeUp, within
from kvspec.geometry import Place
from kvspec.interface import AllocatorError, InjectedFault
from kvspec.kernel.events import Written
from kvspec.kernel.names import call_text, sequence_name
from kvspec.kernel.operation import Array, Handle, Operation, Query, Values
from kvspec.kernel.outcome import (
    DONE,
    TOUCHED,
    Answer,
    Asked,
    Attended,
    Look,
    Observation,
    Outcome,
    Probe,
)
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, Entries, State, TableOf, table_of
from kvspec.rooms import attention

__all__ = ["DEFAULT_CALL_TIMEOUT", "Driver", "GeometryRefused", "NotBuilt"]

DEFAULT_CALL_TIMEOUT = 10.0
"""Seconds that one call may take, and the queries after it together."""

_ERRORS = {kind.__name__ for kind in AllocatorError.__subclasses__()} | {AllocatorError.__name__}


@define
class _Seen:
    """An observation in the making."""

    tables: dict[TableOf, Entries] = field(factory=dict)
    free: dict[Place, int] = field(factory=dict)
    readings: dict[int, tuple[Cell | None, ...]] = field(factory=dict)
    asked: tuple[Asked, ...] = ()
    aliased: tuple[TableOf, ...] = ()
    attended: dict[int, Attended] = field(factory=dict)

    oddities: list[str] = field(factory=list)

    def observation(self) -> Observation:
        """What was seen."""
        return Observation(
            self.tables,
            self.free,
            self.readings,
            self.asked,
            self.aliased,
            tuple(self.oddities),
            self.attended,
        )

    def so_far(self) -> "_Seen":
        """What was seen until now: a thread that was left behind may still go on looking."""
        return _Seen(
            dict(self.tables),
            dict(self.free),
            dict(self.readings),
            self.asked,
            self.aliased,
            dict(self.attended),
            list(self.oddities),
        )


@define(eq=False)
class _Checkpoints:
    """What an allocator calls wherever it may fail, which it does where the driver says so.

    It is an object of its own, so that an allocator which keeps it can be copied without the
    driver.
    """

    left: int = 0
    """So many checkpoints are to be passed until one fails; 0 where none is to fail."""
    failed: str | None = None
    """The checkpoint that failed in this call."""

    def __call__(self, point: str) -> None:
        if self.left:
            self.left -= 1
            if self.left == 0:
                self.failed = text_of(str, point, 60)
                raise InjectedFault(self.failed)


@define
class Driver:
    """Drives one fresh allocator. Raises `NotBuilt` where the factory makes none."""

    make: Callable[..., Any]
    spec: Specification
    timeout: float = DEFAULT_CALL_TIMEOUT
    _allocator: Any = field(init=False)
    _rows: Rows | None = field(init=False, default=None)
    _handles: dict[int, Any] = field(init=False, factory=dict)
    _given: dict[TableOf, Given] = field(init=False, factory=dict)
    _asking: "_Question | Operation | None" = field(init=False, default=None)
    _points: _Checkpoints = field(init=False, factory=_Checkpoints)

    def __attrs_post_init__(self) -> None:
        """Build the allocator."""
        checkpoint = self._points if self.spec.claims("injection") else None
        self._allocator = build(self.make, self.spec, self.timeout, checkpoint)
        if not self.spec.shadowed:
            self._rows = rows_of(self._allocator, self.spec, self.timeout)

    def perform(self, operation: Operation, state: State, look: Look, fault: int = 0) -> Outcome:
        """Call the allocator, let the caller write, and look at what `look` says.

        With a `fault`, the checkpoint of that number fails, counted from 1 within the call.
        """
        seen = _Seen()
        try:
            answer = within(self.timeout, self._called, operation, state, fault, seen.oddities)
        except TimeUp:
            return Outcome(Answer("hang"), fault=self._points.failed)
        failed = self._points.failed
        try:
            within(self.timeout, self._look_around, operation, state, answer, look, seen)
        except TimeUp:
            seen = seen.so_far()
            seen.oddities.append(f"{_name(self._asking)} did not come back")
        return Outcome(answer, seen.observation(), failed)

    def _called(
        self, operation: Operation, state: State, fault: int, oddities: list[str]
    ) -> Answer:
        """The answer, after what the caller writes first."""
        points = self._points
        points.failed = None
        if operation.writes_first and not self.spec.expect(state, operation).errors:
            self._write(operation, state, oddities)
        points.left = fault
        try:
            return self._call(operation, state)
        finally:
            points.left = 0

    def _look_around(
        self, operation: Operation, state: State, answer: Answer, look: Look, seen: _Seen
    ) -> None:
        """What the caller writes then, and all that is looked at."""
        after = self.spec.foreseen(state, operation, answer)
        if after is not state and answer.kind == "done" and not operation.writes_first:
            self._write(operation, state, seen.oddities)
        self._look(operation, state, after, look, seen)
        if look.full and isinstance(self._rows, HeadRows):
            self._attend(operation, state, after, self._rows, seen)

    # ------------------------------------------------------------------ copies

    def held(self, names: Sequence[int]) -> tuple[Any, ...]:
        """All that is kept of the allocator, to be copied as a whole; handles of these `names`."""
        self._points.failed = None
        # Tables as plain tuples, which take less time to copy, and in an order of their own.
        given = sorted(
            [
                (table.seq, table.group, *table.place, one.raw, one.entries)
                for table, one in self._given.items()
            ],
            key=itemgetter(0, 1, 2, 3),
        )
        handles = tuple(self._handles.get(name) for name in names)
        return self._allocator, self._points, handles, given, self._rows

    def with_held(self, held: tuple[Any, ...], names: Sequence[int]) -> "Driver":
        """The driver of a copy of what was `held`, under the same `names`."""
        other = copy(self)
        other._allocator, other._points, handles, given, other._rows = held
        other._handles = dict(zip(names, handles, strict=True))
        other._given = {
            table_of(seq, group, Place(tier, pool)): Given(raw, entries)
            for seq, group, tier, pool, raw, entries in given
        }
        return other

    # ------------------------------------------------------------------ the call

    def _call(self, operation: Operation, state: State) -> Answer:
        positional, keywords = operation.arguments()
        try:
            values_ = [a if type(a) is int else self._value(a) for a in positional]
            result = self._invoke(operation.method, *values_, **keywords)
            return self._answer(operation, state, result)
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            return Answer("nonsense", str(nonsense))
        except BaseException as error:  # SystemExit is an outcome too
            names = mro_names(error)
            if self._points.failed is not None and "InjectedFault" in names:
                return Answer("injected", self._points.failed)
            if "OutOfBlocks" in names:
                return Answer("refused")
            known = next((name for name in names if name in _ERRORS), None)
            return Answer("error", known) if known else Answer("raised", raised(error))

    def _invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        result = getattr(self._allocator, method)(*arguments, **keywords)
        if isinstance(result, CoroutineType):
            result.close()  # or Python would warn that nobody awaited it
            raise Nonsense("the answer is a coroutine, and the interface is not asynchronous")
        return result

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Handle):
            # A lease that was never begun is an object that the allocator cannot know.
            return self._handles.get(argument.name, object())
        if isinstance(argument, Values):
            assert self._rows is not None  # only the room of stores speaks of values
            return self._rows.zeros(argument.num_tokens)
        if isinstance(argument, Query):
            assert isinstance(self._rows, HeadRows)  # only the room of attention speaks of queries
            return self._rows.query([0.0] * (self._rows.heads.n_heads * self._rows.heads.d_k))
        if isinstance(argument, Array):
            return np.array(argument.numbers, dtype=np.int64)
        if isinstance(argument, tuple):
            return list(argument)  # of tokens: a caller's own list, which it may use again
        return argument

    def _answer(self, operation: Operation, state: State, result: object) -> Answer:
        match operation.answers:
            case "copies":
                if result is None or (type(result) is list and not result):
                    return DONE
                source, to = (state.tiers[tier] for tier in operation.tiers)
                return Answer(
                    "done", copies=values.copies(result, source, to, 4 * state.num_blocks)
                )
            case "admission":
                return Answer("done", values.admission(result))
            case "number":
                return Answer("done", str(values.count(result, "the answer")))
            case "blocks":
                blocks = values.block_set(result, state.tiers["device"], state.num_blocks)
                return Answer("done", " ".join(map(str, blocks)))
            case "handle" if operation.handle is not None:
                self._handles[operation.handle] = result
        return DONE

    # ------------------------------------------------------------------ the caller's write

    def _write(self, operation: Operation, state: State, oddities: list[str]) -> None:
        if self._rows is None:
            return
        for written in operation.all_writes(state, self.spec):
            if written.cells:
                self._write_rows(written, state, self._rows, oddities)

    def _write_rows(self, written: Written, state: State, store: Rows, oddities: list[str]) -> None:
        if store.many:
            needed = [cell for s in state.sequences.values() for cell in s.cells]
            needed += [cell for cells in state.contents.values() for cell in cells]
            store.keep(cell for cell in needed if cell is not None)
        rows = store.encode(written.cells)
        name = ("write", written.seq, (written.start, f"{len(rows)} rows"))
        self._ask(name, oddities, self._invoke, "write", written.seq, written.start, rows)
        rows.fill(0)  # a caller may use its buffer again, so a store must not have kept it

    # ------------------------------------------------------------------ the queries

    def _look(
        self, operation: Operation, before: State, after: State, look: Look, seen: _Seen
    ) -> None:
        spec, live, oddities = self.spec, after.sequences, seen.oddities
        wanted = spec.concerned(after, operation, look)
        for table in [table for table in self._given if table.seq not in live]:
            del self._given[table]
        most = 64 + 16 * max(before.num_blocks, after.num_blocks)
        for seq in wanted:
            for table, method, arguments in spec.tables(seq, after):
                were, are = before.tiers[table.place.tier], after.tiers[table.place.tier]
                # What is no block any more is not nonsense: whether a table may have it is for
                # the laws.
                blocks = are
                if were is not are:
                    blocks = range(min(were.start, are.start), max(were.stop, are.stop))
                entries = self._ask(
                    (method, seq, arguments[1:]),
                    oddities,
                    self._table,
                    table,
                    method,
                    arguments,
                    blocks,
                    most,
                    seen,
                )
                if entries is not None:
                    seen.tables[table] = entries
        if look.full:
            for place, method, arguments in spec.counts:
                asked = (method, None, arguments)
                free = self._ask(asked, oddities, self._count, method, arguments)
                if free is not None:
                    seen.free[place] = free
        if self._rows is not None:
            for seq in wanted:
                if live[seq].resident:
                    length = live[seq].length
                    cells = self._ask(("read", seq, ()), oddities, self._read, seq, length)
                    if cells is not None:
                        seen.readings[seq] = cells
        if look.full:
            for query in spec.queries(after):
                answer = self._ask(query, oddities, self._call, query, after)
                if answer is not None and answer.kind == "done":
                    seen.asked += (Asked(query, answer),)
                elif answer is not None:
                    said = f"{answer.kind} {answer.value}".rstrip()
                    oddities.append(f"{call_text(query)}: {said}")

    def _attend(
        self,
        operation: Operation,
        before: State,
        after: State,
        rows: HeadRows,
        seen: _Seen,
    ) -> None:
        """Ask what the sequences that the operation concerns attend to, and one more in turn.

        Not all of them: in many stores this takes longer than everything else.
        """
        new: dict[int, Written] = {}
        if after is not before:  # it succeeded, and the caller wrote
            new = {w.seq: w for w in operation.all_writes(before, self.spec)}
        live = tuple(after.sequences)
        asked = {*self.spec.concerned(after, operation, TOUCHED), *_one_in_turn(live, before.clock)}
        for seq in [seq for seq in live if seq in asked]:
            sequence, geometry = after.sequences[seq], self.spec.geometry
            cells = sequence.cells
            if seq in new:
                cells = cells[: new[seq].start] + new[seq].cells
            shown = seen.tables.get(after.home(seq), after.table(seq))
            if not sequence.resident or not attention.all_there(len(cells), shown, geometry):
                continue
            position, query = attention.probing(cells, before.clock, geometry, rows.heads)
            asked_of = ("attend", seq, (f"a query along position {position}",))
            output = self._ask(asked_of, seen.oddities, self._output, seq, query, rows)
            if output is not None:
                seen.attended[seq] = Attended(rows.heads, (Probe(query, output, position),))

    def _output(self, seq: int, query: tuple[float, ...], rows: HeadRows) -> tuple[float, ...]:
        return rows.output(self._invoke("attend", seq, rows.query(query)))

    def _ask(
        self,
        question: "_Question | Operation",
        oddities: list[str],
        query: Callable[..., Any],
        /,
        *arguments: Any,
    ) -> Any:
        """What `query` gives, or `None` and an oddity under the name of the question."""
        self._asking = question
        try:
            return query(*arguments)
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            oddities.append(f"{_name(question)}: {nonsense}")
        except BaseException as error:  # SystemExit is an outcome too
            oddities.append(f"{_name(question)} raised {raised(error)}")
        return None

    def _count(self, method: str, arguments: tuple[int, ...]) -> int:
        return values.whole_number(self._invoke(method, *arguments), "the count")

    def _read(self, seq: int, length: int) -> tuple[Cell | None, ...]:
        assert self._rows is not None  # asked only of stores
        return self._rows.decode(self._invoke("read", seq), length)

    def _table(
        self,
        table: TableOf,
        method: str,
        arguments: tuple[int, ...],
        blocks: range,
        most: int,
        seen: _Seen,
    ) -> Entries:
        window = self.spec.layout[table.group].window is not None
        as_entries = partial(values.table, blocks=blocks, most=most, window=window)
        ask = partial(self._invoke, method, *arguments)
        earlier, raw = self._given.get(table), UNASKED
        if earlier is not None:
            shared, raw = is_shared(earlier, ask, as_entries, blocks.stop + 6)
            if shared:
                seen.aliased += (table,)
        if raw is UNASKED:
            raw = ask()
        found = as_entries(raw)
        self._given[table] = Given(raw, found)
        return found


_Question = tuple[str, int | None, tuple[Any, ...]]
"""A method, the sequence that it is about, and its other arguments: for a text seldom wanted."""


def _name(question: _Question | Operation | None) -> str:
    """A question as a text names it."""
    if question is None:
        return "what follows the call"
    if isinstance(question, Operation):
        return call_text(question)
    method, seq, arguments = question
    of = () if seq is None else (sequence_name(seq),)
    return f"{method}({', '.join(map(str, (*of, *arguments)))})"


def _one_in_turn(live: tuple[int, ...], clock: int) -> tuple[int, ...]:
    return live[clock % len(live) :][:1] if live else ()
