"""The requests of a trace: their lengths in tokens, and when they arrive."""

from fractions import Fraction

from attrs import frozen

NANOSECONDS = 10**9
"""A second."""


class WasteError(Exception):
    """What cannot be carried out; its text is one clear line."""


@frozen
class Trace:
    """Requests in file order: `prompts[i]` and `outputs[i]` are the tokens of request `i`.

    `arrivals` are nanoseconds, counted from anywhere, or `None` where the file has no times.
    `blocks` are the ids of each prompt's blocks of 512 tokens, in order, or `None`; an id stands
    for a block and all that comes before it.
    """

    name: str
    kind: str
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    arrivals: tuple[int, ...] | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    def arrival_steps(self, step_seconds: Fraction) -> tuple[int, ...]:
        """The first step that begins when a request has arrived; step 0 begins with the first.

        Raises `WasteError` where the file has no times.

        >>> Trace("t", "azure", (1, 1, 1), (1, 1, 1), (5, 6, 1_000_000_005)).arrival_steps(
        ...     Fraction("0.5"))
        (0, 1, 2)
        """
        if self.arrivals is None:
            raise WasteError(f"{self.name}: the requests have no arrival times, only an order")
        first = min(self.arrivals)
        step = step_seconds * NANOSECONDS
        return tuple(int(-((first - time) // step)) for time in self.arrivals)
