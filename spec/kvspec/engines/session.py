"""A session: one fresh allocator, driven and judged step by step, and recorded."""

from collections.abc import Callable
from typing import Any

from attrs import define, field

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, Driver
from kvspec.engines.ledger import Ledger
from kvspec.kernel.law import Breach
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import FULL, Look, Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.traces.trace import Trace, TraceStep

CROSS_CHECK = 32
"""Every so manieth step is judged once more without shortcuts."""


@define
class Session:
    """Drives a fresh allocator from `make`, believes what it shows, and judges every step.

    Raises `NotBuilt` where the factory makes none. After the first breach nothing more is
    done: what follows a broken law says nothing.
    """

    make: Callable[..., Any]
    spec: Specification
    name: str = "allocator"
    timeout: float = DEFAULT_CALL_TIMEOUT
    ledger: Ledger | None = None
    state: State = field(init=False)
    breaches: tuple[Breach, ...] = field(init=False, default=())
    _driver: Driver = field(init=False)
    _steps: list[tuple[Operation, Look, bool, Outcome, int]] = field(init=False, factory=list)
    """What a `TraceStep` has; most sessions end without a trace."""

    def __attrs_post_init__(self) -> None:
        """Build the allocator."""
        self.state = self.spec.initial()
        self._driver = Driver(self.make, self.spec, self.timeout)

    def perform(
        self, operation: Operation, look: Look = FULL, fault: int = 0
    ) -> tuple[Breach, ...]:
        """One step; the laws that it broke. With a `fault` that checkpoint of the call fails."""
        assert not self.breaches, "the session has ended"
        outcome = self._driver.perform(operation, self.state, look, fault)
        step = self.spec.believe(self.state, operation, outcome)
        self.breaches = self.spec.judge(step)
        if self.state.clock % CROSS_CHECK == CROSS_CHECK - 1 and self.spec.shortcuts:
            assert self.spec.agrees(step, self.breaches), f"shortcuts mislead at {operation}"
        wrong = bool(step.expected.errors)
        self._steps.append((operation, look, wrong, outcome, fault))
        if self.ledger is not None:
            self.ledger.note(step, self.breaches)
        self.state = step.after
        return self.breaches

    def call(
        self, method: str, look: Look = FULL, fault: int = 0, /, **arguments: Any
    ) -> tuple[Breach, ...]:
        """One step, the operation being named by its method; the laws that it broke."""
        return self.perform(self.spec.operation(Call(method, arguments)), look, fault)

    @property
    def answered(self) -> bool:
        """Whether the last call succeeded."""
        return bool(self._steps) and self._steps[-1][3].answer.kind == "done"

    @property
    def trace(self) -> Trace:
        """What has been done so far."""
        return Trace(
            allocator=self.name,
            geometry=self.spec.geometry,
            contract=self.spec.contract,
            capabilities=tuple(room.capability for room in self.spec.rooms),
            steps=tuple(TraceStep(*step) for step in self._steps),
            breaches=self.breaches,
        )
