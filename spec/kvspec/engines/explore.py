"""Breadth first through all that may happen in a small scope: the shortest story of any fault.

In one of three modes, which the report names in these words. *Specification alone*: every outcome
that is allowed, up to the names of blocks and sequences, with no allocator. *Exhausted over the
product*: every pair of what is believed and what the allocator has inside. *Every model transition
driven once*: every call in every believed state that the allocator leads to, up to names, on the
allocator that came there first; what hides in the order of a free list may be missed.
"""

import marshal
from collections import deque
from collections.abc import Iterator
from typing import Any

from attrs import define, evolve, field, frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, Driver
from kvspec.driver.target import Target
from kvspec.driver.watchdog import watching
from kvspec.engines.alike import exactly, stays, up_to_names
from kvspec.engines.copies import Copies, Prints, Seen
from kvspec.engines.exploration import (
    ALONE,
    DRIVEN,
    PRODUCT,
    Exploration,
    Move,
    Progress,
    trace_of,
    untold,
)
from kvspec.engines.replay import run
from kvspec.engines.scope import MOST_FAULTS, Kinds, Scope
from kvspec.kernel.law import Breach
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import FULL
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms.lease import Leases
from kvspec.traces.trace import Trace, TraceStep


def _bytes(key: Any) -> bytes:
    # Version 2 has no references, so that equal keys give equal bytes.
    return marshal.dumps(key, 2)


# ------------------------------------------------------------------------------ alone


def explore_alone(
    scope: Scope, most_states: int, progress: Progress = untold, name: str = "specification"
) -> Exploration:
    """Every state that the specification's own choices lead to, and every law on every choice.

    The scope is to be symmetric. A violation here is one of the specification itself. Raises
    `ValueError` for a contract whose choices are not enumerated.
    """
    spec, found = scope.spec, Exploration(ALONE, scope, most_states)
    seen, kinds = Seen(), Kinds(spec)
    queue: deque[tuple[int, State]] = deque()

    def edge(parent: int, move: Move, step: Step) -> int | None:
        """Judge one step; the number of the state that it leads to, if it breaks no law."""
        breaches = spec.judge(step)
        found.note(step, breaches)
        if breaches:
            if found.shorter(found.length(parent, (move,))):
                steps = list(_told(scope, found.story(parent, move)))
                found.trace = trace_of(scope, name, steps, breaches)
            return None
        number = parent
        if not stays(step):
            number = seen.number(_bytes(up_to_names(step.after, spec)))
        found.answers(number, step)
        if number == found.states:
            found.reached(parent, (move,))
            queue.append((number, step.after))
        return number

    state = spec.initial()
    seen.number(_bytes(up_to_names(state, spec)))
    found.reached(0, ())
    found.answers(0, None)
    queue.append((0, state))
    while queue and found.goes_on(progress, len(queue), queue[0][0]):
        parent, state = queue.popleft()
        for move, step in _chosen(scope, kinds, state):
            number = edge(parent, move, step)
            if number is not None and refused_first(step):
                for again, repeated in _choices(spec, step.after, move.operation):
                    edge(number, again, repeated)
    found.ended(len(queue))
    return found


def refused_first(step: Step) -> bool:
    """Whether a call was refused that was not just refused: it is worth repeating at once.

    What comes of that seldom makes a state of its own, and so it would not be tried otherwise.
    """
    return step.answer.kind == "refused" and step.after.refused is not None


def _chosen(scope: Scope, kinds: Kinds, state: State) -> Iterator[tuple[Move, Step]]:
    for operation in scope.right_calls(state):
        yield from _choices(scope.spec, state, operation)
    for operation in scope.wrong_calls(state) if kinds.new(state) else ():
        yield from _choices(scope.spec, state, operation)


def _choices(
    spec: Specification, state: State, operation: Operation
) -> Iterator[tuple[Move, Step]]:
    for choice, outcome in enumerate(spec.choices(state, operation)):
        yield Move(operation, choice=choice), spec.believe(state, operation, outcome)


def _told(scope: Scope, story: list[Move]) -> Iterator[TraceStep]:
    """The story with the outcomes that were chosen in it."""
    spec, state = scope.spec, scope.spec.initial()
    for move in story:
        outcomes = list(spec.choices(state, move.operation))
        step = spec.believe(state, move.operation, outcomes[move.choice])
        yield TraceStep(move.operation, FULL, bool(step.expected.errors), step.outcome)
        state = step.after


# ------------------------------------------------------------------------------ an allocator


def explore(
    target: Target,
    scope: Scope,
    most_states: int,
    copies: Copies | None,
    prints: Prints | None,
    progress: Progress = untold,
    timeout: float = DEFAULT_CALL_TIMEOUT,
) -> Exploration:
    """Every call in every state that the allocator leads to, each judged by every law.

    With `prints` over the product; without, up to names, and the scope is to be symmetric. Without
    `copies` each transition begins with a fresh allocator, to which the story is told again.
    Raises `NotBuilt` where the factory makes none, `Uncopied` where it cannot be copied after all,
    and `Uncompared` where its own `fingerprint()` fails.
    """
    found = Exploration(DRIVEN if prints is None else PRODUCT, scope, most_states)
    found.told_apart = "" if prints is None else prints.what
    search = _Search(target, scope, found, timeout, copies, prints)
    with watching():
        search.run(progress)
    return found


@frozen
class _Node:
    """A state with its number, what its allocator is made from again, and its fingerprint.

    Its story is that of the state numbered `parent`, and then `moves`.
    """

    parent: int
    moves: tuple[Move, ...]
    number: int
    state: State
    kept: Any = None
    inside: bytes | None = None


@define
class _Search:
    """A search through what one allocator does."""

    target: Target
    scope: Scope
    found: Exploration
    timeout: float
    copies: Copies | None
    prints: Prints | None
    seen: Seen = field(factory=Seen)
    queue: deque[_Node] = field(factory=deque)
    kinds: Kinds = field(init=False)

    def __attrs_post_init__(self) -> None:
        """No kind of state has been seen."""
        self.kinds = Kinds(self.scope.spec)

    def run(self, progress: Progress) -> None:
        """Until there is nothing new, or a violation, or too much."""
        spec, found = self.scope.spec, self.found
        state, driver = spec.initial(), Driver(self.target.make, spec, self.timeout)
        found.reached(0, ())
        found.answers(0, None)
        root = self._node(0, (), state, driver)
        self.queue.append(root)
        if self.kinds.new(state, None, root.inside):
            self._try(root, self.scope.wrong_calls(state))
        while self.queue and found.goes_on(progress, len(self.queue), self.queue[0].number):
            node = self.queue.popleft()
            self._try(node, self.scope.right_calls(node.state))
        found.ended(len(self.queue))

    def _try(self, node: _Node, operations: Iterator[Operation]) -> None:
        """Each of these calls, every time on an allocator as it was in that state.

        With injection each call also fails at each of its checkpoints. Calls are repeated, and
        wrong ones tried, where a state is reached and before its turn has come; so what breaks a
        law may be followed by a shorter story.
        """
        spec, spare = self.scope.spec, list[Driver]()
        length = self.found.length(node.parent, node.moves) + 1
        for operation in operations:
            if not self.found.shorter(length):
                return
            for fault in range(MOST_FAULTS if spec.claims("injection") else 1):
                driver = spare.pop() if spare else self._again(node)
                step = self._step(driver, node.state, operation, fault)
                after = self._edge(node, Move(operation, fault), step, driver)
                if after is not None and refused_first(step):
                    step = self._step(driver, step.after, operation)
                    after = self._edge(after, Move(operation), step, driver)
                if after is None:
                    break
                # What has changed nothing inside leaves the allocator as it was.
                if self.prints is not None and after.inside == node.inside:
                    spare.append(driver)
                if fault and step.outcome.fault is None:
                    break
                if fault == MOST_FAULTS - 1:
                    self.found.cut = f"{fault} checkpoints of one call"

    def _step(self, driver: Driver, state: State, operation: Operation, fault: int = 0) -> Step:
        outcome = driver.perform(operation, state, FULL, fault)
        return self.scope.spec.believe(state, operation, outcome)

    def _edge(self, node: _Node, move: Move, step: Step, driver: Driver) -> _Node | None:
        """Judge one step; the node that it leads to, if it breaks no law."""
        breaches = self.scope.spec.judge(step)
        self.found.note(step, breaches)
        parent, moves = node.parent, (*node.moves, move)
        if breaches:
            if self.found.shorter(self.found.length(parent, moves)):
                self.found.trace = self._trace(self.found.story(parent, *moves), step, breaches)
            return None
        before = self.found.states
        same = node if stays(step) else None
        after = self._node(parent, moves, step.after, driver, same)
        self.found.answers(after.number, step)
        if after.number == before:
            self.found.reached(parent, moves)
            after = evolve(after, parent=after.number, moves=())
            self.queue.append(after)
        # A wrong call that is answered as it must be leaves what was seen before.
        if not step.expected.errors and self.kinds.new(step.after, step, after.inside):
            if after.kept is None:
                after = evolve(after, kept=self._keep(driver, _handles(step.after)))
            self._try(after, self.scope.wrong_calls(step.after))
        return after

    def _node(
        self,
        parent: int,
        moves: tuple[Move, ...],
        state: State,
        driver: Driver,
        same: _Node | None = None,
    ) -> _Node:
        """The node of the state, and of the allocator's internals, with its number.

        `same` is a node in whose state the same matters. The allocator is kept where the node is
        new.
        """
        names, spec, known = _handles(state), self.scope.spec, self.seen.count
        kept = inside = None
        if self.prints is not None:
            inside = self.prints.of(driver, names)
            kept = inside if self.prints.pickles else None
        if same is not None and same.inside == inside:
            number = same.number
        elif inside is None:
            number = self.seen.number(_bytes(up_to_names(state, spec)))
        else:
            number = self.seen.number(_bytes(exactly(state, spec)), inside)
        if kept is None and number == known:
            kept = self._keep(driver, names)
        return _Node(parent, moves, number, state, kept, inside)

    def _keep(self, driver: Driver, names: tuple[int, ...]) -> Any:
        """What another allocator can be made from that is just as this one."""
        return None if self.copies is None else self.copies.keep(driver, names)

    def _again(self, node: "_Node") -> Driver:
        """An allocator as it was there."""
        if self.copies is not None:
            return self.copies.again(node.kept, _handles(node.state))
        spec = self.scope.spec
        driver, state = Driver(self.target.make, spec, self.timeout), spec.initial()
        for move in self.found.story(node.parent, *node.moves):
            outcome = driver.perform(move.operation, state, FULL, move.fault)
            state = spec.believe(state, move.operation, outcome).after
        return driver

    def _trace(self, story: list[Move], last: Step, breaches: tuple[Breach, ...]) -> Trace:
        """The story as a fresh allocator tells it, if it comes to the same."""
        steps = [TraceStep(move.operation, FULL, fault=move.fault) for move in story]
        name = self.target.name
        again = run(self.target.make, self.scope.spec, steps, name, self.timeout)
        if again.breaches:
            return again
        wrong, outcome = bool(last.expected.errors), last.outcome
        end = TraceStep(last.operation, FULL, wrong, outcome, story[-1].fault)
        return trace_of(self.scope, name, [*again.steps[:-1], end], breaches)


def _handles(state: State) -> tuple[int, ...]:
    """The names of the opaque answers that may yet be used: of open leases, and one that ended."""
    leases = state.slices.get("lease")
    if not isinstance(leases, Leases):
        return ()
    return (*leases.open, *leases.ended[-1:])
