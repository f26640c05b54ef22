"""The kill table: which faults of a museum are found, how soon, by which law, and how short.

The scripted witnesses are not run: each seed is a run of one engine alone. What survives stays in
the table as a survivor.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, Protocol

import cattrs
from attrs import asdict, evolve, frozen

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, TargetError, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import PROFILES, run_machine
from kvspec.engines.walk import walk
from kvspec.suite.check import explain
from kvspec.suite.minimum import true_minimum
from kvspec.suite.report import ExitCode
from kvspec.traces.trace import Trace

ENGINES = ("machine", "walk")

DEFAULT_SECONDS = 10.0
"""How long a walk looks for one fault."""

MOST_STATES = 600
"""Through so many states the shortest story of a fault is searched for."""


class Exhibit(Protocol):
    """An allocator with one fault, and the law that is expected to report it.

    `laws` are all by which it may be reported, the expected one among them; `sources` are public
    reports of the fault, as owner/repository#number.
    """

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def factory(self) -> Callable[..., Any]:
        """What makes the allocator; the first sentence of its docstring says what is wrong."""
        ...

    @property
    def law(self) -> str:
        """The law that is expected to report it."""
        ...

    @property
    def laws(self) -> tuple[str, ...]:
        """All laws by which it may be reported."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the fault was reported."""
        ...


@frozen
class Kill:
    """How one run found the fault: after how many operations, and by which law.

    `length` is how many steps the reduced trace has, or `None` where the violation did not come
    again in every replay, so that it was not reduced.
    """

    seed: int
    operations: int
    law: str
    length: int | None


@frozen
class Row:
    """One exhibit in a kill table; a seed without a kill is one that it survived.

    `minimum` is how many steps the shortest story has that there is, by the law that broke most
    often; `None` where that is not known.
    """

    name: str
    fault: str
    sources: tuple[str, ...]
    law: str
    laws: tuple[str, ...]
    seeds: int
    kills: tuple[Kill, ...]
    minimum: int | None = None

    @property
    def survived(self) -> bool:
        """Whether it survived at least one seed."""
        return len(self.kills) < self.seeds

    @property
    def broke(self) -> dict[str, int]:
        """The laws that broke, each on how many seeds, the most frequent first."""
        counts = Counter(kill.law for kill in self.kills)
        return {law: counts[law] for law in sorted(counts, key=lambda law: (-counts[law], law))}

    @property
    def operations(self) -> float | None:
        """Operations up to the violation: the median over the seeds that killed it."""
        return median(kill.operations for kill in self.kills) if self.kills else None

    @property
    def length(self) -> float | None:
        """Steps of the reduced trace: the median over the seeds in which it was reduced."""
        lengths = [kill.length for kill in self.kills if kill.length is not None]
        return median(lengths) if lengths else None

    @property
    def comparable(self) -> tuple[int, ...]:
        """The lengths of the reduced stories whose true minimum is known: those of its law."""
        if self.minimum is None:
            return ()
        law = next(iter(self.broke))
        return tuple(k.length for k in self.kills if k.law == law and k.length is not None)


@frozen
class KillTable:
    """What one engine found of a museum, on `seeds` seeds from `seed` on.

    `profile` is how much the machine tried, and `seconds` how long the walk did; what does not
    belong to the engine is `None`.
    """

    engine: str
    profile: str | None
    seconds: float | None
    seed: int
    seeds: int
    exhibits: tuple[Row, ...]

    @property
    def survivors(self) -> tuple[Row, ...]:
        """The exhibits that survived at least one seed."""
        return tuple(row for row in self.exhibits if row.survived)

    @property
    def minimal(self) -> tuple[int, int]:
        """How many reduced stories are as short as can be, of those where that is known."""
        pairs = [(n, row.minimum) for row in self.exhibits for n in row.comparable]
        return sum(length == least for length, least in pairs), len(pairs)

    @property
    def exit_code(self) -> ExitCode:
        """1 where an exhibit survived at least one seed, else 0."""
        return ExitCode.BROKEN if self.survivors else ExitCode.HELD

    def as_data(self) -> dict[str, Any]:
        """The table as plain data, the medians with every single kill."""
        data = asdict(self)
        for row, plain in zip(self.exhibits, data["exhibits"], strict=True):
            plain |= {"killed": len(row.kills), "broke": row.broke}
            plain |= {"operations": row.operations, "length": row.length}
        versions = {name: _version(name) for name in ("kvspec", "hypothesis")}
        survivors = [row.name for row in self.survivors]
        return {"format": 1, "versions": versions, **data, "survivors": survivors}


def from_data(data: Mapping[str, Any]) -> KillTable:
    """The kill table that `as_data` made this of; `ValueError` where it is none."""
    if data.get("format") != 1:
        raise ValueError(f"a kill table of format {data.get('format')!r} cannot be read")
    return cattrs.structure(data, KillTable)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a folder in which it was not installed
        return None


def _untold(name: str, done: int, of: int) -> None:
    pass


def kill_table(
    exhibits: Iterable[Exhibit],
    *,
    seeds: int = 20,
    seed: int = 0,
    engine: str = "machine",
    profile: str = "ci",
    seconds: float = DEFAULT_SECONDS,
    most_states: int = MOST_STATES,
    timeout: float = DEFAULT_CALL_TIMEOUT,
    progress: Callable[[str, int, int], None] = _untold,
) -> KillTable:
    """What the engine finds of the exhibits, on each of the seeds `seed` to `seed + seeds - 1`.

    The machine runs to the end of its `profile` or the first violation, the walk for so many
    `seconds`. The same seed gives the same table; but for a walk the clock decides what survives.
    The shortest story of each is searched through `most_states`, or not at all for 0.
    `timeout` is in seconds a call; `progress` is told an exhibit's name, and the runs done and
    planned. Raises `TargetError` for an exhibit that cannot be run, and `NotBuilt` where its
    factory makes nothing.

    >>> from kvimpls.museum.registry import MUSEUM
    >>> [row] = kill_table([e for e in MUSEUM if e.name == "KeepsWhatItTook"], seeds=1).exhibits
    >>> row.broke, row.length
    ({'injection': 1}, 1)
    """
    if engine not in ENGINES:
        raise TargetError(f"there is no engine {engine}; there are {', '.join(ENGINES)}")
    if profile not in PROFILES:
        raise TargetError(f"there is no profile {profile}; there are {', '.join(PROFILES)}")
    if seeds < 1:
        raise ValueError(f"{seeds} seeds measure nothing: there must be at least one")

    def violation(tested: Target, number: int, ledger: Ledger) -> Trace | None:
        if engine == "walk":
            return walk(tested, number, seconds=seconds, ledger=ledger, timeout=timeout).trace
        return run_machine(tested, PROFILES[profile], ledger, number, timeout).trace

    museum, rows = tuple(exhibits), []
    for place, exhibit in enumerate(museum):
        tested = target(exhibit.factory, exhibit.name, timeout=timeout)
        kills, told = [], []
        for number in range(seeds):
            progress(exhibit.name, place * seeds + number, len(museum) * seeds)
            killed = _killed(tested, seed + number, violation, timeout)
            if killed is not None:
                kills.append(killed[0])
                told.append(killed[1])
        row = _row(exhibit, seeds, tuple(kills))
        rows.append(evolve(row, minimum=_minimum(tested, row, told, most_states, timeout)))
    machine = engine == "machine"
    return KillTable(
        engine=engine,
        profile=profile if machine else None,
        seconds=None if machine else seconds,
        seed=seed,
        seeds=seeds,
        exhibits=tuple(rows),
    )


def _killed(
    tested: Target,
    seed: int,
    violation: Callable[[Target, int, Ledger], Trace | None],
    timeout: float,
) -> tuple[Kill, Trace] | None:
    operations = 0

    def count(_: object) -> None:
        # Hypothesis runs what fails once more, which is no search.
        nonlocal operations
        if not operations and ledger.broken:
            operations = ledger.steps

    ledger = Ledger(watch=count)
    trace = violation(tested, seed, ledger)
    if trace is None:
        return None
    told, _ = explain(tested, trace, timeout)
    assert told.law is not None  # it is a violation
    length = len(told.steps) if told.reduced else None
    return Kill(seed, operations, told.law, length), told


def _minimum(
    tested: Target, row: Row, told: list[Trace], most_states: int, timeout: float
) -> int | None:
    """The true minimum of the law that broke most often, searched where it was told shortest."""
    stories = [one for one in told if one.reduced and one.law == next(iter(row.broke))]
    if not (stories and most_states):
        return None
    shortest = min(stories, key=lambda one: len(one.steps))
    return true_minimum(tested, shortest, most_states, timeout)


def _row(exhibit: Exhibit, seeds: int, kills: tuple[Kill, ...]) -> Row:
    doc = (exhibit.factory.__doc__ or "").strip()
    sentence = " ".join(doc.split("\n\n")[0].split(".\n")[0].split()).rstrip(".")
    sources, laws = tuple(exhibit.sources), tuple(exhibit.laws)
    return Row(exhibit.name, sentence, sources, exhibit.law, laws, seeds, kills)
