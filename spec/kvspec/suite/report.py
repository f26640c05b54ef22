"""The report of one check: for each law whether it was held, and how often it bit."""

from collections.abc import Mapping
from enum import Enum, IntEnum

from attrs import frozen

from kvspec.contract import Contract
from kvspec.kernel.law import LawBroken
from kvspec.rooms import LAWS
from kvspec.traces.trace import Trace


class Verdict(Enum):
    """How a law ended in a run."""

    HELD = "held"
    BROKEN = "broken"
    NOT_CLAIMED = "not claimed"
    NOT_JUDGED = "not judged"
    VACUOUS = "vacuous"


class ExitCode(IntEnum):
    """What a command ends with. Where several apply: 2 before 1 before 3."""

    HELD = 0
    BROKEN = 1
    NOT_CARRIED_OUT = 2
    VACUOUS = 3


@frozen
class LawResult:
    """One law in one run: the verdict, in how many steps it was relevant, and how often it bit.

    Bites are looked for in a part of the relevant steps, so their count is a lower bound.
    """

    verdict: Verdict
    evaluations: int = 0
    bites: int = 0


@frozen
class Report:
    """What the check of one allocator found.

    `trace` is the violation, reduced where it came again in all `replays`; `seed`, `profile`
    and `steps` say how much was tried, and `coverage`, where it was asked for, in which
    situations (see `Coverage.table`).
    """

    allocator: str
    contract: Contract
    capabilities: tuple[str, ...]
    laws: Mapping[str, LawResult]
    steps: int
    profile: str
    seed: int
    trace: Trace | None = None
    reproduced: int = 0
    replays: int = 0
    coverage: Mapping[str, Mapping[str, int]] | None = None

    @property
    def exit_code(self) -> ExitCode:
        """1 for a broken law, 3 for a claimed law that never bit, else 0."""
        if self.trace is not None:
            return ExitCode.BROKEN
        if any(result.verdict is Verdict.VACUOUS for result in self.laws.values()):
            return ExitCode.VACUOUS
        return ExitCode.HELD

    def raise_for_status(self) -> None:
        """Raise the broken law's own exception with the counterexample, or for a vacuous law."""
        __tracebackhide__ = True  # pytest: the frame to look at is the caller's
        if self.trace is not None:
            from kvspec.traces.table import as_text

            law = next(law for law in LAWS if law.id == self.trace.law)
            raise law.exception(as_text(self.trace, self.reproduced, self.replays))
        vacuous = [id_ for id_, r in self.laws.items() if r.verdict is Verdict.VACUOUS]
        if vacuous:
            raise LawBroken(
                f"{self.allocator}: {', '.join(vacuous)} never bit, so nothing is known of them"
            )
