"""Several walks at once, each in a process of its own.

A walk keeps one core busy, and a soak has all of them. Each walk has a seed of its own, and is the
very walk of that seed alone. The processes are spawned and not forked: a fork has the locks of
threads that it has not, those of tensors' libraries among them. What is walked on cannot be handed
to them, so each makes it anew.

The clock decides nothing but the end, as in one walk. The law that is found broken is the one that
breaks at the earliest step, counted within each walk, and of those in the first of the walks. So
the others go on as far as that step before it is told; how far beyond they were is not counted.
"""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import Array, c_longlong
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Protocol, TypeVar

from attrs import define, field, frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, TargetError
from kvspec.engines.ledger import Ledger
from kvspec.engines.walk import TELL, Walk, walk
from kvspec.kernel.step import Step

_NEVER = 2**63 - 1
"""A step that no walk comes to."""

_UNBEGUN = -1
"""The step of a walk that has not begun."""

_PATIENCE = 2.0
"""Seconds that processes have for their own end, once nothing more is expected of them."""


class Watcher(Protocol):
    """Somebody who looks at every step of a walk, and can be sent home when it is over."""

    def note(self, step: Step) -> None:
        """Take in one judged step."""


W = TypeVar("W", bound=Watcher)


class Died(TargetError):
    """The process of a walk died; the text says of which walk, when and how."""


@frozen
class Ended(Generic[W]):
    """A walk that is over, its seed, and who watched it."""

    seed: int
    walk: Walk
    watcher: W | None


def together(walks: Iterable[Walk]) -> Walk:
    """What walks that were made at the same time come to: it lasted as long as the longest."""
    whole = Walk(Ledger())
    for one in walks:
        whole.include(one)
    return whole


def seeds(seed: int, processes: int) -> list[int]:
    """The seeds of so many walks: the first is `seed`, the others are far from whatever is near it.

    Away from zero, since a generator has the same numbers for a seed and its negative.

    >>> seeds(3, 2), seeds(-3, 2)
    ([3, 4294967299], [-3, -4294967299])
    """
    away = 1 if seed >= 0 else -1
    return [seed + away * (number << 32) for number in range(processes)]


def shares(steps: int, processes: int) -> list[int]:
    """How many of the `steps` each walk makes, the first ones one more; no walk makes none.

    >>> shares(8, 3), shares(2, 3)
    ([3, 3, 2], [1, 1])
    """
    each, more = divmod(steps, processes)
    return [count for n in range(processes) if (count := each + (n < more))]


def _untold(walk: Walk) -> None:
    pass


def walks(
    name: str,
    again: Callable[[], Target],
    seed: int = 0,
    *,
    processes: int,
    seconds: float | None = None,
    steps: int | None = None,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    watcher: Callable[[], W] | None = None,
    progress: Callable[[Walk], None] = _untold,
) -> tuple[Ended[W], ...]:
    """So many walks at once: all of them, or the one alone that is the first to break a law.

    `again` makes the target in each process, where `watcher` makes who watches: both are pickled.
    So many `seconds` are for each walk, and so many `steps` for all of them. `progress` is told
    what they come to. With the same seed, number and steps it is the same to the last count. Raises
    the `TargetError` of a walk that could not go on, if no law broke before; one whose process died
    is `Died`.
    """
    if seconds is None and steps is None:
        raise ValueError("walks end after some seconds or some steps: say which")
    if processes < 1 or (steps is not None and steps < 1):
        raise ValueError(f"{processes} processes and {steps} steps are no walks")
    counts = [None] * processes if steps is None else shares(steps, processes)
    children: list[_Child[W]] = []
    try:
        board = _start(children, name, seed, counts, _Plan(again, seconds, timeout, watcher))
        _hear(children, board, progress)
        until = time.monotonic() + _PATIENCE
        for child in children:
            child.process.join(max(0.0, until - time.monotonic()))
    finally:
        # An allocator may outlast a request to end, and whatever else is gentle.
        for child in children:
            child.process.kill()
        for child in children:
            child.process.join()
            child.pipe.close()
    first = min(children, key=lambda child: child.decided)
    if isinstance(first.end, TargetError):
        raise first.end
    ends = [first.end] if first.decided < _NEVER else [child.end for child in children]
    return tuple(end for end in ends if isinstance(end, Ended))


# ------------------------------------------------------------------------- in this process


@define
class _Child(Generic[W]):
    """One of the walks as it is seen from here."""

    name: str
    number: int
    seed: int
    process: SpawnProcess
    pipe: Connection
    board: "Array[c_longlong]"
    walk: Walk = field(factory=lambda: Walk(Ledger()))
    """How far it was when it was heard of last."""
    over: bool = False
    end: "Ended[W] | TargetError | None" = None
    """What came of it, unless it was broken off because what comes now is too late."""
    decided: int = _NEVER
    """The step in which it broke a law, or with which it could not go on."""

    def hear(self) -> None:
        """Take in what it says next, or that it says no more."""
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            self.bury()
            return
        if isinstance(said, Walk):
            self.walk = said
            return
        self.over, self.end = True, said
        if isinstance(said, TargetError):
            self.decided = self.board[self.number] + 1
        elif isinstance(said, Ended):
            self.walk = said.walk
            if said.walk.trace is not None:
                self.decided = said.walk.ledger.steps

    def bury(self) -> None:
        """It ended without a word."""
        self.process.join(_PATIENCE)
        self.over, self.decided = True, self.board[self.number] + 1
        how = _how(self.process.exitcode)
        if self.board[self.number] == _UNBEGUN:
            self.end = Died(
                f"{self.name}: the process of the walk with seed {self.seed} died before it began, "
                f'{how}; a script that walks does so under `if __name__ == "__main__":`'
            )
        else:
            self.end = Died(
                f"{self.name}: the walk with seed {self.seed} died in its step {self.decided:,}, "
                f"{how}; to see more, walk with that seed alone"
            )


def _how(code: int | None) -> str:
    if code is None:
        return "still running, but not to be heard"
    if code < 0:
        return f"of signal {-code} ({signal.strsignal(-code)})"
    return f"with exit code {code}"


def _start(
    children: list[_Child[W]],
    name: str,
    seed: int,
    counts: Sequence[int | None],
    plan: "_Plan[W]",
) -> "Array[c_longlong]":
    """Start a walk of each count. On the board each writes its step; the last place is the bound.

    The bound is the step that no walk has to go beyond, and only this process writes it.
    """
    context = get_context("spawn")
    try:
        board = context.RawArray(c_longlong, len(counts) + 1)
        board[-1] = _NEVER
        for number in range(len(counts)):
            board[number] = _UNBEGUN
        for number, own in enumerate(seeds(seed, len(counts))):
            here, there = context.Pipe(duplex=False)
            what = (there, board, number, own, counts[number], plan)
            process = context.Process(target=_walk, args=what)
            with there, _uninterrupted():  # that end is the child's alone, and is shut with it
                process.start()
                children.append(_Child(name, number, own, process, here, board))
    except OSError as error:
        raise TargetError(
            f"{name}: {len(counts):,} processes cannot be started at once: {error}"
        ) from None
    return board


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started meanwhile is deaf to Ctrl-C, which a terminal sends to all: this one ends it.

    Blocked and not ignored, so that an interruption that comes meanwhile is not lost for this one.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would unblock it, if it were started meanwhile
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear(
    children: Sequence[_Child[W]], board: "Array[c_longlong]", progress: Callable[[Walk], None]
) -> None:
    """Listen until all have ended; a step that decided is the last one for the others too."""
    looked = time.monotonic()
    while running := {child.pipe: child for child in children if not child.over}:
        for pipe in wait(list(running), TELL):
            running[pipe].hear()  # type: ignore[index]  # one of those that it was given
        now = time.monotonic()
        if now - looked >= TELL:
            looked = now
            for child in running.values():
                # A process of the allocator's own may keep the pipe of a dead one open.
                if not child.over and not child.process.is_alive() and not child.pipe.poll():
                    child.bury()
            progress(together(child.walk for child in children))
        board[-1] = min(child.decided for child in children)


# --------------------------------------------------------------------- in the one of a walk


@frozen
class _Plan(Generic[W]):
    """What all walks have in common."""

    again: Callable[[], Target]
    seconds: float | None
    timeout: float
    watcher: Callable[[], W] | None


class _Enough(Exception):
    """What comes now would be told of no more."""


def _walk(
    pipe: Connection,
    board: "Array[c_longlong]",
    number: int,
    seed: int,
    steps: int | None,
    plan: _Plan[W],
) -> None:
    board[number] = 0
    watcher = plan.watcher() if plan.watcher is not None else None

    def watch(step: Step) -> None:
        board[number] = ledger.steps
        if ledger.steps > board[-1]:
            raise _Enough
        if watcher is not None:
            watcher.note(step)

    def tell(so_far: Walk) -> None:
        _say(pipe, together([so_far]))

    ledger = Ledger(watch=watch)
    try:
        done = walk(
            plan.again(),
            seed,
            seconds=plan.seconds,
            steps=steps,
            ledger=ledger,
            timeout=plan.timeout,
            progress=tell,
        )
    except TargetError as error:
        _say(pipe, error)
    except _Enough:
        _say(pipe, None)
    else:
        _say(pipe, Ended(seed, together([done]), watcher))


def _say(pipe: Connection, what: Any) -> None:
    # Where nobody listens any more, there is nobody to walk for.
    try:
        pipe.send(what)
    except BrokenPipeError:
        raise SystemExit(1) from None
