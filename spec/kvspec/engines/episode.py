"""One episode: a fresh allocator, what it is about, and how its steps are drawn.

Every engine that tries at random draws its episodes here, so that they differ in nothing but
their chooser.
"""

from collections.abc import Callable

from attrs import frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, GeometryRefused
from kvspec.driver.target import Target
from kvspec.engines.ledger import Ledger
from kvspec.engines.session import Session
from kvspec.kernel import generation
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.law import Breach
from kvspec.kernel.outcome import FULL, TOUCHED
from kvspec.kernel.room import Room
from kvspec.rooms import specification

EVERY = 4
"""In an episode that looks sparsely, every so manieth step is looked at in full."""

_ATTEMPTS = 20
"""So many geometries are drawn until the allocator can be built with one."""

_FAULTS = (0, 0, 0, 0, 1, 1, 2, 3)
"""At which checkpoint a call fails, in an episode in which calls fail; at 0 none does. The other
choice is the last of the blocks that it takes: there most is to be undone."""

_FAULTY = (None, None, None, 0, 12)
"""From which step on calls fail in an episode. In most none do, since what fails on the way hides
what goes wrong without; and before they do much may have been built up that they can spoil."""


def _unheeded() -> None:
    pass


@frozen
class Episode:
    """A session with a small geometry, a mix of operations, a schedule of looks, and faults.

    `sparse` says whether most steps look only at what they touched, and `faulty` from which step
    on some calls are made to fail on the way, if they are.
    """

    session: Session
    mix: generation.Mix
    sparse: bool
    faulty: int | None

    def step(self, chooser: Chooser) -> tuple[Breach, ...]:
        """One operation that the chooser draws; the laws that it broke."""
        session = self.session
        operation = generation.operation(chooser, self.mix, session.state, session.spec)
        sparse = self.sparse and session.state.clock % EVERY
        fault = 0
        if self.faulty is not None and session.state.clock >= self.faulty:
            last = session.spec.expect(session.state, operation).fresh
            fault = chooser.pick((*_FAULTS, last, last, last))
        return session.perform(operation, TOUCHED if sparse else FULL, fault)


def begin(
    chooser: Chooser,
    target: Target,
    ledger: Ledger,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    refused: Callable[[], None] = _unheeded,
) -> Episode:
    """An episode of `target` on a fresh allocator, as the chooser draws it.

    `refused` is told of each geometry that the allocator cannot be built with. Raises `NotBuilt`
    where the factory makes none.
    """
    sparse = chooser.pick((False, False, True))
    rooms = generation.focus(chooser, target.rooms)
    session = _session(chooser, target, rooms, ledger, timeout, refused)
    mix = generation.mix(chooser, session.spec, rooms)
    faulty = chooser.pick(_FAULTY) if session.spec.claims("injection") else None
    return Episode(session, mix, sparse, faulty)


def _session(
    chooser: Chooser,
    target: Target,
    rooms: tuple[Room, ...],
    ledger: Ledger,
    timeout: float,
    refused: Callable[[], None],
) -> Session:
    for _ in range(_ATTEMPTS):
        geometry = generation.geometry(chooser, target.contract, rooms)
        spec = specification(geometry, target.contract, target.capabilities)
        try:
            return Session(target.make, spec, target.name, timeout, ledger)
        except GeometryRefused:
            refused()
    # It refuses nearly all, but not the one that it was looked at with.
    return Session(target.make, target.specification(), target.name, timeout, ledger)
