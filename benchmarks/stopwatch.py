"""Where the time goes: what is spent in some functions, each without those within it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Stage = tuple[str, Any, str]
"""What it is called, and the owner and the attribute of the function."""


class Stopwatch:
    """Seconds by stage, while `watching` some."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._within = [0]

    @contextmanager
    def watching(self, stages: Sequence[Stage]) -> Iterator[None]:
        """Time these functions from now on, until the end."""
        before = [(owner, name, getattr(owner, name)) for _, owner, name in stages]
        for stage, owner, name in stages:
            setattr(owner, name, self._timed(stage, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def shares(self, stages: Sequence[Stage], total: float, rest: str) -> dict[str, float]:
        """By stage its share of `total` seconds, and last that of the rest."""
        found: dict[str, float] = {}
        for stage, _, _ in stages:
            found[stage] = self.spent[stage] / 1e9 / total
        found[rest] = 1 - sum(found.values())
        return found

    def _timed(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter_ns()
            self._within.append(0)
            try:
                return work(*arguments, **keywords)
            finally:
                took = time.perf_counter_ns() - start
                self.spent[stage] += took - self._within.pop()
                self._within[-1] += took

        return run
