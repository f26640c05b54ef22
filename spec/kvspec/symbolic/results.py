"""What a tool said of an obligation and of its broken twins, as values and as a table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen
from rich.table import Table

from kvspec.symbolic.about import laws_of

TITLES = {
    "arithmetic": "CrossHair, the arithmetic: all sizes, unbounded",
    "steps": "CrossHair, one operation: at most three blocks a sequence",
    "wide": "CrossHair, one operation: at most four blocks a sequence",
    "operations": "z3, one operation: any number of blocks and sequences",
}
"""The parts of a run, in order, with how far each goes."""


@frozen
class Refutation:
    """What was said of a broken twin, in the tool's own words, and in how many seconds of CPU.

    `claim` is the part of the obligation's claim that must fail, where that has several.
    `counterexample` is where the twin's claim fails. `meets` says that the obligation itself was
    run on the same numbers, and meets its preconditions and its claim there; the twins of proofs,
    whose cases are shown by a question of their own, are not.
    """

    exchange: str
    verdict: str
    refuted: bool
    seconds: float
    counterexample: str = ""
    meets: bool = False
    claim: str = ""


@frozen
class Result:
    """What was said of one obligation, in the tool's own words, and in how many seconds of CPU.

    `confirmed` says that the verdict is the one that is asked for. `witness` is a case which the
    obligation is about, without which it would say nothing. `details` are the parts of the
    claim with the verdict on each, where there are several: each is to be refuted after a twin.
    """

    part: str
    name: str
    statement: str
    verdict: str
    confirmed: bool
    witness: str
    seconds: float
    twins: tuple[Refutation, ...] = ()
    details: dict[str, str] = field(factory=dict)

    @property
    def problem(self) -> str:
        """Why this shows nothing; empty if all is as it must be."""
        if not self.confirmed:
            return f"not confirmed: {self.verdict}"
        for twin in self.twins:
            if not twin.refuted:
                return f"the broken twin {twin.exchange} is not refuted: {twin.verdict}"
        if not self.twins:
            return "it has no broken twin"
        without = self.details.keys() - {twin.claim for twin in self.twins}
        if without:
            return f"no broken twin for {', '.join(sorted(without))}"
        return "" if self.witness else "no case is known that meets the preconditions"


def as_data(results: Iterable[Result]) -> list[dict[str, Any]]:
    """The results as JSON has them, each with its problem, and the laws that it bears on."""

    def data(result: Result) -> dict[str, Any]:
        laws = laws_of(result.part, result.name, result.details)
        return {**asdict(result), "problem": result.problem, "laws": laws}

    return [data(result) for result in results]


def twins_of(results: Iterable[Mapping[str, Any]]) -> int:
    """How many broken twins there are in what `as_data` gives: one may break several claims."""
    return len({(r["part"], r["name"], twin["exchange"]) for r in results for twin in r["twins"]})


def tables(results: Sequence[Result]) -> dict[str, Table]:
    """One table a part of the run: each obligation with its verdict, refutations and time."""
    shown = {}
    for part, title in TITLES.items():
        of_part = [result for result in results if result.part == part]
        if not of_part:
            continue
        table = Table(box=None, pad_edge=False)
        table.add_column("obligation", no_wrap=True)
        table.add_column("verdict")
        table.add_column("refutations", justify="right", no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        for result in of_part:
            refuted = sum(twin.refuted for twin in result.twins)
            table.add_row(
                result.name,
                result.problem or result.verdict,
                f"{refuted} of {len(result.twins)}" if result.twins else "",
                f"{result.seconds:.2f}",
            )
        shown[title] = table
    return shown
