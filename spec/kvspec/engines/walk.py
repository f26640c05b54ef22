"""The walk: a seeded generator, and nothing else between it and the allocator.

For soaking: many short episodes, each on a fresh allocator. What an episode did is forgotten as
soon as it ends without a violation, so memory does not grow. The same seed gives the same walk;
the clock only decides when it stops, and a number of steps makes even that exact.
"""

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from attrs import define, field

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target
from kvspec.driver.watchdog import watching
from kvspec.engines.distinct import Distinct, fingerprint, shape_of
from kvspec.engines.episode import begin
from kvspec.engines.ledger import Ledger
from kvspec.traces.trace import Trace

T = TypeVar("T")

STEPS = 60
"""So many steps an episode has: most small pools have been full for long by then."""

TELL = 0.25
"""Seconds between two reports of how far the walk has come."""


class SeededChooser:
    """A chooser that draws from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self._below_one = Random(seed).random

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """One of `near` in about half of the cases, where there are as many as in the range."""
        index = int(self._below_one() * (len(near) + high - low + 1))
        return near[index] if index < len(near) else low + index - len(near)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[int(self._below_one() * len(items))]


@define
class Walk:
    """How far a walk has come, and the violation that ended it, if one did."""

    ledger: Ledger
    states: Distinct = field(factory=Distinct)
    episodes: int = 0
    seconds: float = 0.0
    trace: Trace | None = None
    refused_geometries: int = 0

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.ledger.steps / self.seconds if self.seconds else 0.0

    def include(self, other: "Walk") -> None:
        """Count another walk in, which was made at the same time."""
        self.ledger.include(other.ledger)
        self.states.include(other.states)
        self.episodes += other.episodes
        self.seconds = max(self.seconds, other.seconds)
        self.trace = self.trace or other.trace
        self.refused_geometries += other.refused_geometries

    def _refused(self) -> None:
        self.refused_geometries += 1


def _untold(walk: Walk) -> None:
    pass


def walk(
    target: Target,
    seed: int = 0,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    ledger: Ledger | None = None,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Callable[[Walk], None] = _untold,
) -> Walk:
    """Walk until the first violation, or until so many `seconds` or `steps` are over.

    `timeout` is in seconds a call; `progress` is told a few times a second. Raises `NotBuilt`
    where the factory makes no allocator.

    >>> from kvimpls.reference import Reference
    >>> from kvspec.driver.target import target
    >>> walk(target(Reference), seed=1, steps=100).ledger.steps
    100
    """
    if seconds is None and steps is None:
        raise ValueError("a walk ends after some seconds or some steps: say which")
    if steps is not None and steps < 1:
        raise ValueError(f"a walk of {steps} steps is none")
    chooser, state = SeededChooser(seed), Walk(Ledger() if ledger is None else ledger)
    began = time.monotonic()
    told, last = began, None if seconds is None else began + seconds
    with watching():
        while True:
            episode = begin(chooser, target, state.ledger, timeout, state._refused)
            session = episode.session
            shape = shape_of(session.spec.geometry)
            held: object = None
            lengths: object = None
            state.episodes += 1
            for _ in range(STEPS):
                if episode.step(chooser):
                    state.trace = session.trace
                now_held = session.state.holds
                if now_held is not held or session.state.sequences is not lengths:
                    held, lengths = now_held, session.state.sequences
                    state.states.add(fingerprint(session.state, shape))
                now = time.monotonic()
                state.seconds = now - began
                if now - told >= TELL:
                    told = now
                    progress(state)
                if (
                    state.trace is not None
                    or state.ledger.steps == steps
                    or (last is not None and now >= last)
                ):
                    return state
