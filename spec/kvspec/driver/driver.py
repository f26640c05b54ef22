"""One allocator under test: calls it, asks what the schedule says, hands the outcome on."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field

from kvspec.driver import values
from kvspec.driver.store import HeadRows, Rows
from kvspec.driver.values import Nonsense, raised
from kvspec.driver.watchdog import TimeUp, within
from kvspec.interface import AllocatorError
from kvspec.kernel.names import sequence_name
from kvspec.kernel.operation import Handle, Operation, Query, Values
from kvspec.kernel.outcome import TOUCHED, Answer, Attended, Look, Observation, Outcome, Probe
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, Entries, State
from kvspec.rooms import attention

DEFAULT_CALL_TIMEOUT = 10.0
"""Seconds that one call may take, and the queries after it together."""

_ERRORS = frozenset(kind.__name__ for kind in AllocatorError.__subclasses__())


class TargetError(Exception):
    """A target that cannot be checked; the text says what, where, and what to try."""


class NotBuilt(TargetError):
    """The factory did not make an allocator; the text says why."""


class GeometryRefused(NotBuilt):
    """The factory raised `UnsupportedGeometry`."""


def _mro_names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def build(make: Callable[..., Any], spec: Specification, timeout: float) -> Any:
    """A fresh allocator from the factory, or `NotBuilt`."""
    try:
        return within(timeout, partial(_build, make, spec))
    except TimeUp:
        raise NotBuilt(f"the factory did not come back for {spec.geometry}") from None


def _build(make: Callable[..., Any], spec: Specification) -> Any:
    try:
        made = make(spec.geometry)
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
        width, dtype, capacity = allocator.width, allocator.dtype, spec.geometry.capacity
        if attends:
            return HeadRows(width, dtype, allocator, capacity)
        return Rows(width, dtype, capacity)

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

    tables: dict[int, Entries] = field(factory=dict)
    readings: dict[int, tuple[Cell | None, ...]] = field(factory=dict)
    free: int | None = None
    aliased: list[int] = field(factory=list)
    attended: dict[int, Attended] = field(factory=dict)

    def observation(self, oddities: list[str]) -> Observation:
        """What was seen so far: a thread that was left behind may still go on looking."""
        return Observation(
            dict(self.tables),
            self.free,
            dict(self.readings),
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
    _given: dict[int, _Given] = field(init=False, factory=dict)
    _asking: str = field(init=False, default="what follows the call")

    def __attrs_post_init__(self) -> None:
        """Build the allocator."""
        self._allocator = build(self.make, self.spec, self.timeout)
        if not self.spec.shadowed:
            self._rows = rows_of(self._allocator, self.spec, self.timeout)

    def perform(self, operation: Operation, state: State, look: Look) -> Outcome:
        """Call the allocator, let the caller write, and look at what `look` says."""
        try:
            answer = within(self.timeout, partial(self._call, operation))
        except TimeUp:
            return Outcome(Answer("hang"))
        oddities: list[str] = []
        seen = _Seen()

        def look_around() -> None:
            after = self.spec.foreseen(state, operation, answer)
            if answer.kind == "done" and after is not state:
                self._write(operation, state, oddities)
            self._look(operation, after, look, seen, oddities)
            if look.full and isinstance(self._rows, HeadRows):
                self._attend(operation, state, after, self._rows, seen, oddities)

        try:
            within(self.timeout, look_around)
        except TimeUp:
            oddities.append(f"{self._asking} did not come back")
        return Outcome(answer, seen.observation(oddities))

    # ------------------------------------------------------------------ the call

    def _call(self, operation: Operation) -> Answer:
        positional, keywords = operation.arguments()
        try:
            values_ = [self._value(argument) for argument in positional]
            result = self._invoke(operation.method, *values_, **keywords)
            return self._answer(operation, result)
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            return Answer("nonsense", str(nonsense))
        except BaseException as error:  # SystemExit is an outcome too
            names = _mro_names(error)
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
        return argument

    def _answer(self, operation: Operation, result: object) -> Answer:
        match operation.answers:
            case "copies":
                most = 4 * self.spec.geometry.num_blocks
                return Answer("done", copies=values.copies(result, self.spec.blocks, most))
            case "admission":
                return Answer("done", values.admission(result))
            case "handle" if operation.handle is not None:
                self._handles[operation.handle] = result
        return Answer("done")

    # ------------------------------------------------------------------ the caller's write

    def _write(self, operation: Operation, state: State, oddities: list[str]) -> None:
        written = operation.writes(state, self.spec)
        if self._rows is None or written is None or not written.cells:
            return
        if self._rows.many:
            self._rows.keep(cell for s in state.sequences.values() for cell in s.cells)
        rows = self._rows.encode(written.cells)
        name = f"write({sequence_name(written.seq)}, {written.start}, {len(rows)} rows)"
        self._ask(name, oddities, lambda: self._invoke("write", written.seq, written.start, rows))
        rows.fill(0)  # a caller may use its buffer again, so a store must not have kept it

    # ------------------------------------------------------------------ the queries

    def _look(
        self,
        operation: Operation,
        after: State,
        look: Look,
        seen: _Seen,
        oddities: list[str],
    ) -> None:
        wanted = self.spec.concerned(after, operation, look)
        for seq in [seq for seq in self._given if seq not in after.sequences]:
            del self._given[seq]
        for seq in wanted:
            name = f"block_table({sequence_name(seq)})"
            entries = self._ask(name, oddities, partial(self._table, seq, seen))
            if entries is not None:
                seen.tables[seq] = entries
        if look.full:
            seen.free = self._ask("num_free_blocks()", oddities, self._count)
        if self._rows is not None:
            for seq in wanted:
                length = after.sequences[seq].length
                name = f"read({sequence_name(seq)})"
                cells = self._ask(name, oddities, partial(self._read, seq, length))
                if cells is not None:
                    seen.readings[seq] = cells

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
        written = None
        if after is not before:  # it succeeded, and the caller wrote
            written = operation.writes(before, self.spec)
        live = tuple(after.sequences)
        asked = {*self.spec.concerned(after, operation, TOUCHED), *_one_in_turn(live, before.clock)}
        for seq in [seq for seq in live if seq in asked]:
            sequence = after.sequences[seq]
            cells = sequence.cells
            if written is not None and written.seq == seq:
                cells = cells[: written.start] + written.cells
            if not cells:
                continue
            geometry = self.spec.geometry
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

    def _count(self) -> int:
        return values.whole_number(self._invoke("num_free_blocks"), "the count")

    def _read(self, seq: int, length: int) -> tuple[Cell | None, ...]:
        assert self._rows is not None  # asked only of stores
        return self._rows.decode(self._invoke("read", seq), length)

    def _table(self, seq: int, seen: _Seen) -> Entries:
        earlier = self._given.get(seq)
        if earlier is not None and self._is_shared(seq, earlier):
            seen.aliased.append(seq)
        raw = self._invoke("block_table", seq)
        entries = self._entries(raw)
        self._given[seq] = _Given(raw, entries)
        return entries

    def _entries(self, raw: object) -> Entries:
        most = 64 + 16 * self.spec.geometry.num_blocks
        return values.table(raw, self.spec.blocks, most)

    def _is_shared(self, seq: int, earlier: _Given) -> bool:
        """Whether the table that the caller holds is one with the allocator's own.

        It is when it has changed by itself, or when the caller's scribbling on it shows in the
        next answer, is gone with it, or brings the allocator to fall. It is undone at once.
        """
        try:
            same = type(earlier.raw) is list and tuple(earlier.raw) == earlier.entries
            if not same and self._entries(earlier.raw) != earlier.entries:
                return True
        except Nonsense:
            return True
        # Nobody's block; and not negative, since tables may be arrays of unsigned numbers.
        junk = self.spec.blocks.stop + 6
        if not earlier.entries or not _overwrite(earlier.raw, 0, junk):
            return False
        try:
            answer = self._invoke("block_table", seq)
            return _starts_with(junk, answer) or not _starts_with(junk, earlier.raw)
        except (TimeUp, KeyboardInterrupt):
            raise
        except BaseException:  # whether it was the scribbling shows below
            pass
        finally:
            _overwrite(earlier.raw, 0, earlier.entries[0])
        self._invoke("block_table", seq)
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
