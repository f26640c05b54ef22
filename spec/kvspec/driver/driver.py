"""One allocator under test: calls it, asks what the schedule says, hands the outcome on."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field

from kvspec.driver import values
from kvspec.driver.store import Rows
from kvspec.driver.values import Nonsense, shown
from kvspec.driver.watchdog import TimeUp, within
from kvspec.interface import AllocatorError
from kvspec.kernel.names import sequence_name
from kvspec.kernel.operation import Handle, Operation, Values
from kvspec.kernel.outcome import Answer, Look, Observation, Outcome
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, Entries, State

DEFAULT_CALL_TIMEOUT = 10.0
"""Seconds that one operation, with the queries after it, may take."""

_ERRORS = frozenset(kind.__name__ for kind in AllocatorError.__subclasses__())

_JUNK = -7
"""What the caller scribbles on tables that it was given, to see whether it shows."""


class NotBuilt(Exception):
    """The factory did not make an allocator; the text says why."""


class GeometryRefused(NotBuilt):
    """The factory raised `UnsupportedGeometry`."""


def _mro_names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _raised(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a hostile str must not take the report down
        text = ""
    text = text.split(" at 0x")[0].split("\n")[0][:80]
    return f"{type(error).__name__}({text!r})" if text else type(error).__name__


def build(make: Callable[..., Any], spec: Specification, timeout: float) -> Any:
    """A fresh allocator from the factory, or `NotBuilt`."""
    try:
        return within(timeout, lambda: make(spec.geometry))
    except TimeUp:
        raise NotBuilt("the factory did not come back") from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if "UnsupportedGeometry" in _mro_names(error):
            raise GeometryRefused(f"{spec.geometry} is refused: {error}") from None
        raise NotBuilt(f"the factory raised {_raised(error)} for {spec.geometry}") from error


@define
class _Given:
    """A table as the caller was given it, and what it read then."""

    raw: Any
    entries: Entries


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
    _asking: str = field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        """Build the allocator."""
        self._allocator = build(self.make, self.spec, self.timeout)
        if not self.spec.shadowed:
            try:
                self._rows = Rows(self._allocator.width, self._allocator.dtype)
            except Nonsense as nonsense:
                raise NotBuilt(str(nonsense)) from None

    def perform(self, operation: Operation, state: State, look: Look) -> Outcome:
        """Call the allocator, let the caller write, and look at what `look` says."""
        answers: list[Answer] = []
        oddities: list[str] = []
        seen: dict[str, Any] = {"tables": {}, "readings": {}, "free": None, "aliased": ()}

        def work() -> None:
            answers.append(self._call(operation))
            after = self.spec.foreseen(state, operation, answers[0])
            if answers[0].kind == "done" and after is not state:
                self._write(operation, state, oddities)
            self._look(operation, after, look, seen, oddities)

        try:
            within(self.timeout, work)
        except TimeUp:
            if not answers:
                answers.append(Answer("hang"))
            else:
                oddities.append(f"{self._asking} did not come back")
        return Outcome(answers[0], Observation(**seen, oddities=tuple(oddities)))

    # ------------------------------------------------------------------ the call

    def _call(self, operation: Operation) -> Answer:
        positional, keywords = operation.arguments()
        try:
            method = getattr(self._allocator, operation.method)
            result = method(*(self._value(argument) for argument in positional), **keywords)
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
            return Answer("error", known) if known else Answer("raised", _raised(error))

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Handle):
            # A lease that was never begun is an object that the allocator cannot know.
            return self._handles.get(argument.name, object())
        if isinstance(argument, Values):
            assert self._rows is not None  # only the room of stores speaks of values
            return self._rows.zeros(argument.num_tokens)
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
        rows = self._rows.encode(written.cells)
        name = f"write({sequence_name(written.seq)}, {written.start}, {len(rows)} rows)"
        self._ask(name, oddities, lambda: self._allocator.write(written.seq, written.start, rows))

    # ------------------------------------------------------------------ the queries

    def _look(
        self,
        operation: Operation,
        after: State,
        look: Look,
        seen: dict[str, Any],
        oddities: list[str],
    ) -> None:
        wanted = self.spec.concerned(after, operation, look)
        for seq in [seq for seq in self._given if seq not in after.sequences]:
            del self._given[seq]
        for seq in wanted:
            name = f"block_table({sequence_name(seq)})"
            entries = self._ask(name, oddities, partial(self._table, seq, seen))
            if entries is not None:
                seen["tables"][seq] = entries
        if look.full:
            seen["free"] = self._ask("num_free_blocks()", oddities, self._count)
        if self._rows is not None:
            for seq in wanted:
                length = after.sequences[seq].length
                name = f"read({sequence_name(seq)})"
                cells = self._ask(name, oddities, partial(self._read, seq, length))
                if cells is not None:
                    seen["readings"][seq] = cells

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
            oddities.append(f"{name} raised {_raised(error)}")
        return None

    def _count(self) -> int:
        return values.whole_number(self._allocator.num_free_blocks(), "the count")

    def _read(self, seq: int, length: int) -> tuple[Cell | None, ...]:
        assert self._rows is not None  # asked only of stores
        return self._rows.decode(self._allocator.read(seq), length)

    def _table(self, seq: int, seen: dict[str, Any]) -> Entries:
        earlier = self._given.get(seq)
        raw = self._shared(seq, earlier) if earlier else None
        if raw is not None:
            seen["aliased"] = (*seen["aliased"], seq)
        else:
            raw = self._allocator.block_table(seq)
        entries = self._entries(raw)
        self._given[seq] = _Given(raw, entries)
        return entries

    def _entries(self, raw: object) -> Entries:
        most = 64 + 16 * self.spec.geometry.num_blocks
        return values.table(raw, self.spec.blocks, most)

    def _shared(self, seq: int, earlier: _Given) -> Any:
        """The allocator's table, if it is the one that the caller holds; else `None`.

        It is when the caller's changed by itself, or when the caller's scribbling on it shows
        in the next answer. The scribbling is undone at once.
        """
        try:
            if self._entries(earlier.raw) != earlier.entries:
                return self._allocator.block_table(seq)
        except Nonsense:
            return self._allocator.block_table(seq)
        if not earlier.entries or not _overwrite(earlier.raw, 0, _JUNK):
            return None
        try:
            answer = self._allocator.block_table(seq)
            return answer if shows(answer) else None
        finally:
            _overwrite(earlier.raw, 0, earlier.entries[0])


def shows(answer: Any) -> bool:
    """Whether the scribbled value shows at the head of a table."""
    try:
        return bool(answer[0] == _JUNK)
    except Exception:  # a hostile table shows nothing
        return False


def _overwrite(raw: Any, index: int, value: object) -> bool:
    try:
        raw[index] = value
    except Exception:  # immutable: there is nothing to scribble on
        return False
    return True


__all__ = ["DEFAULT_CALL_TIMEOUT", "Driver", "GeometryRefused", "NotBuilt", "build", "shown"]
