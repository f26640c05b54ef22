"""One allocator under test: calls it, asks what the schedule says, hands the outcome on."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from attrs import define, field

from kvspec.driver import values
from kvspec.driver.store import HeadRows, Rows
from kvspec.driver.values import Nonsense, raised, text_of
from kvspec.driver.watchdog import TimeUp, within
from kvspec.geometry import Place
from kvspec.interface import AllocatorError, InjectedFault
from kvspec.kernel.events import Written
from kvspec.kernel.names import call_text, sequence_name
from kvspec.kernel.operation import Array, Handle, Operation, Query, Values
from kvspec.kernel.outcome import (
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
from kvspec.kernel.state import Cell, Entries, State, TableOf
from kvspec.rooms import attention

DEFAULT_CALL_TIMEOUT = 10.0
"""Seconds that one call may take, and the queries after it together."""

_ERRORS = {kind.__name__ for kind in AllocatorError.__subclasses__()} | {AllocatorError.__name__}


Checkpoint = Callable[[str], None]


class TargetError(Exception):
    """A target that cannot be checked; the text says what, where, and what to try."""


class NotBuilt(TargetError):
    """The factory did not make an allocator; the text says why."""


class GeometryRefused(NotBuilt):
    """The factory raised `UnsupportedGeometry`."""


def _mro_names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def build(
    make: Callable[..., Any],
    spec: Specification,
    timeout: float,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """A fresh allocator from the factory, or `NotBuilt`."""
    try:
        return within(timeout, partial(_build, make, spec, checkpoint))
    except TimeUp:
        raise NotBuilt(f"the factory did not come back for {spec.geometry}") from None


def _build(make: Callable[..., Any], spec: Specification, checkpoint: Checkpoint | None) -> Any:
    try:
        if checkpoint is None:
            made = make(spec.geometry)
        else:
            made = make(spec.geometry, checkpoint=checkpoint)
    except (TimeUp, KeyboardInterrupt):
        raise
    except BaseException as error:
        if "UnsupportedGeometry" in _mro_names(error):
            raise GeometryRefused(f"{spec.geometry} is refused: {raised(error)}") from None
        raise NotBuilt(f"the factory raised {raised(error)} for {spec.geometry}") from error
    if made is None:
        raise NotBuilt(f"the factory returned None for {spec.geometry}")
    return made


def rows_of(allocator: Any, spec: Specification, timeout: float) -> Rows:
    """The rows that fit the store which `allocator` is, or `NotBuilt`."""

    attends = any(room is attention.ROOM for room in spec.rooms)
    named = "its attributes width and dtype"
    named += f", {', '.join(attention.ROOM.attributes)}" if attends else ""

    def attributes() -> Rows:
        width, dtype, slots = allocator.width, allocator.dtype, spec.most_tokens
        if attends:
            return HeadRows(width, dtype, slots, allocator, spec.geometry)
        return Rows(width, dtype, slots)

    def checked() -> Rows:
        try:
            return attributes()
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            raise NotBuilt(str(nonsense)) from None
        except BaseException as error:
            raise NotBuilt(f"{named}: {raised(error)}") from error

    try:
        return within(timeout, checked)
    except TimeUp:
        raise NotBuilt(f"{named} did not come back") from None


@define
class _Given:
    """A table as the caller was given it, and what it read then."""

    raw: Any
    entries: Entries


@define
class _Seen:
    """An observation in the making."""

    tables: dict[TableOf, Entries] = field(factory=dict)
    free: dict[Place, int] = field(factory=dict)
    readings: dict[int, tuple[Cell | None, ...]] = field(factory=dict)
    asked: list[Asked] = field(factory=list)
    aliased: list[TableOf] = field(factory=list)
    attended: dict[int, Attended] = field(factory=dict)

    def observation(self, oddities: list[str]) -> Observation:
        """What was seen so far: a thread that was left behind may still go on looking."""
        return Observation(
            dict(self.tables),
            dict(self.free),
            dict(self.readings),
            tuple(self.asked),
            tuple(self.aliased),
            tuple(oddities),
            dict(self.attended),
        )


@define
class Driver:
    """Drives one fresh allocator. Raises `NotBuilt` where the factory makes none."""

    make: Callable[..., Any]
    spec: Specification
    timeout: float = DEFAULT_CALL_TIMEOUT
    _allocator: Any = field(init=False)
    _rows: Rows | None = field(init=False, default=None)
    _handles: dict[int, Any] = field(init=False, factory=dict)
    _given: dict[TableOf, _Given] = field(init=False, factory=dict)
    _asking: str = field(init=False, default="what follows the call")
    _left: int = field(init=False, default=0)
    """So many checkpoints are to be passed until one fails; 0 where none is to fail."""
    _failed: str | None = field(init=False, default=None)
    """The checkpoint that failed in this call."""

    def __attrs_post_init__(self) -> None:
        """Build the allocator."""
        checkpoint = self._checkpoint if self.spec.claims("injection") else None
        self._allocator = build(self.make, self.spec, self.timeout, checkpoint)
        if not self.spec.shadowed:
            self._rows = rows_of(self._allocator, self.spec, self.timeout)

    def perform(self, operation: Operation, state: State, look: Look, fault: int = 0) -> Outcome:
        """Call the allocator, let the caller write, and look at what `look` says.

        With a `fault`, the checkpoint of that number fails, counted from 1 within the call.
        """
        oddities: list[str] = []
        seen = _Seen()
        first = operation.writes_first and not self.spec.expect(state, operation).errors

        def call() -> Answer:
            if first:
                self._write(operation, state, oddities)
            self._left, self._failed = fault, None
            try:
                return self._call(operation, state)
            finally:
                self._left = 0

        try:
            answer = within(self.timeout, call)
        except TimeUp:
            return Outcome(Answer("hang"), fault=self._failed)
        failed = self._failed

        def look_around() -> None:
            after = self.spec.foreseen(state, operation, answer)
            if answer.kind == "done" and after is not state and not first:
                self._write(operation, state, oddities)
            self._look(operation, state, after, look, seen, oddities)
            if look.full and isinstance(self._rows, HeadRows):
                self._attend(operation, state, after, self._rows, seen, oddities)

        try:
            within(self.timeout, look_around)
        except TimeUp:
            oddities.append(f"{self._asking} did not come back")
        return Outcome(answer, seen.observation(oddities), failed)

    def _checkpoint(self, point: str) -> None:
        """What an allocator calls wherever it may fail."""
        if self._left:
            self._left -= 1
            if self._left == 0:
                self._failed = text_of(str, point, 60)
                raise InjectedFault(self._failed)

    # ------------------------------------------------------------------ the call

    def _call(self, operation: Operation, state: State) -> Answer:
        positional, keywords = operation.arguments()
        try:
            values_ = [self._value(argument) for argument in positional]
            result = self._invoke(operation.method, *values_, **keywords)
            return self._answer(operation, state, result)
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            return Answer("nonsense", str(nonsense))
        except BaseException as error:  # SystemExit is an outcome too
            names = _mro_names(error)
            if self._failed is not None and "InjectedFault" in names:
                return Answer("injected", self._failed)
            if "OutOfBlocks" in names:
                return Answer("refused")
            known = next((name for name in names if name in _ERRORS), None)
            return Answer("error", known) if known else Answer("raised", raised(error))

    def _invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        result = getattr(self._allocator, method)(*arguments, **keywords)
        if inspect.iscoroutine(result):
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
                source, to = (state.tiers[tier] for tier in operation.tiers)
                return Answer(
                    "done", copies=values.copies(result, source, to, 4 * self._most(state))
                )
            case "admission":
                return Answer("done", values.admission(result))
            case "number":
                return Answer("done", str(values.count(result, "the answer")))
            case "blocks":
                blocks = values.block_set(result, state.tiers["device"], self._most(state))
                return Answer("done", " ".join(map(str, blocks)))
            case "handle" if operation.handle is not None:
                self._handles[operation.handle] = result
        return Answer("done")

    @staticmethod
    def _most(state: State) -> int:
        """How many blocks there are in all."""
        return sum(len(blocks) for blocks in state.pools.values())

    # ------------------------------------------------------------------ the caller's write

    def _write(self, operation: Operation, state: State, oddities: list[str]) -> None:
        for written in operation.all_writes(state, self.spec):
            if self._rows is not None and written.cells:
                self._write_rows(written, state, self._rows, oddities)

    def _write_rows(self, written: Written, state: State, store: Rows, oddities: list[str]) -> None:
        if store.many:
            needed = [cell for s in state.sequences.values() for cell in s.cells]
            needed += [cell for cells in state.contents.values() for cell in cells]
            store.keep(cell for cell in needed if cell is not None)
        rows = store.encode(written.cells)
        name = f"write({sequence_name(written.seq)}, {written.start}, {len(rows)} rows)"
        self._ask(name, oddities, lambda: self._invoke("write", written.seq, written.start, rows))
        rows.fill(0)  # a caller may use its buffer again, so a store must not have kept it

    # ------------------------------------------------------------------ the queries

    def _look(
        self,
        operation: Operation,
        before: State,
        after: State,
        look: Look,
        seen: _Seen,
        oddities: list[str],
    ) -> None:
        wanted = self.spec.concerned(after, operation, look)
        for table in [table for table in self._given if table.seq not in after.sequences]:
            del self._given[table]
        for seq in wanted:
            for table, method, arguments in self.spec.tables(seq, after):
                name = f"{method}({', '.join([sequence_name(seq), *map(str, arguments[1:])])})"
                look_up = partial(self._table, table, method, arguments, (before, after), seen)
                entries = self._ask(name, oddities, look_up)
                if entries is not None:
                    seen.tables[table] = entries
        if look.full:
            for place, method, arguments in self.spec.counts(after):
                name = f"{method}({', '.join(map(str, arguments))})"
                free = self._ask(name, oddities, partial(self._count, method, arguments))
                if free is not None:
                    seen.free[place] = free
        if self._rows is not None:
            for seq in wanted:
                if after.sequences[seq].resident:
                    length = after.sequences[seq].length
                    name = f"read({sequence_name(seq)})"
                    cells = self._ask(name, oddities, partial(self._read, seq, length))
                    if cells is not None:
                        seen.readings[seq] = cells
        if look.full:
            for query in self.spec.queries(after):
                name = call_text(query)
                answer = self._ask(name, oddities, partial(self._call, query, after))
                if answer is not None and answer.kind == "done":
                    seen.asked.append(Asked(query, answer))
                elif answer is not None:
                    oddities.append(f"{name}: {answer.kind} {answer.value}".rstrip())

    def _attend(
        self,
        operation: Operation,
        before: State,
        after: State,
        rows: HeadRows,
        seen: _Seen,
        oddities: list[str],
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
            name = f"attend({sequence_name(seq)}, a query along position {position})"
            output = self._ask(name, oddities, partial(self._output, seq, query, rows))
            if output is not None:
                seen.attended[seq] = Attended(rows.heads, (Probe(query, output, position),))

    def _output(self, seq: int, query: tuple[float, ...], rows: HeadRows) -> tuple[float, ...]:
        return rows.output(self._invoke("attend", seq, rows.query(query)))

    def _ask(self, name: str, oddities: list[str], query: Callable[[], Any]) -> Any:
        """What `query` gives, or `None` and an oddity under its name."""
        self._asking = name
        try:
            return query()
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            oddities.append(f"{name}: {nonsense}")
        except BaseException as error:  # SystemExit is an outcome too
            oddities.append(f"{name} raised {raised(error)}")
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
        states: tuple[State, State],
        seen: _Seen,
    ) -> Entries:
        # What is no block any more is not nonsense: whether a table may have it is for the laws.
        were, are = (state.tiers[table.place.tier] for state in states)
        blocks = range(min(were.start, are.start), max(were.stop, are.stop))
        window = self.spec.geometry.layout[table.group].window is not None

        def entries(raw: object) -> Entries:
            return values.table(raw, blocks, 64 + 16 * max(map(self._most, states)), window)

        def ask() -> Any:
            return self._invoke(method, *arguments)

        earlier = self._given.get(table)
        if earlier is not None and self._is_shared(earlier, ask, entries, blocks.stop + 6):
            seen.aliased.append(table)
        raw = ask()
        found = entries(raw)
        self._given[table] = _Given(raw, found)
        return found

    @staticmethod
    def _is_shared(
        earlier: _Given, ask: Callable[[], Any], entries: Callable[[object], Entries], junk: int
    ) -> bool:
        """Whether the table that the caller holds is one with the allocator's own.

        It is when it has changed by itself, or when the caller's scribbling on it shows in the
        next answer, is gone with it, or brings the allocator to fall. It is undone at once. Junk
        is nobody's block; and not negative, since tables may be arrays of unsigned numbers.
        """
        try:
            same = type(earlier.raw) is list and tuple(earlier.raw) == earlier.entries
            if not same and entries(earlier.raw) != earlier.entries:
                return True
        except Nonsense:
            return True
        if not earlier.entries or not _overwrite(earlier.raw, 0, junk):
            return False
        try:
            answer = ask()
            return _starts_with(junk, answer) or not _starts_with(junk, earlier.raw)
        except (TimeUp, KeyboardInterrupt):
            raise
        except BaseException:  # whether it was the scribbling shows below
            pass
        finally:
            _overwrite(earlier.raw, 0, earlier.entries[0])
        ask()
        return True


def _one_in_turn(live: tuple[int, ...], clock: int) -> tuple[int, ...]:
    return live[clock % len(live) :][:1] if live else ()


def _starts_with(junk: int, raw: Any) -> bool:
    try:
        return bool(raw[0] == junk)
    except Exception:  # a hostile table shows nothing
        return False


def _overwrite(raw: Any, index: int, value: object) -> bool:
    try:
        raw[index] = value
    except Exception:  # immutable: there is nothing to scribble on
        return False
    return True
