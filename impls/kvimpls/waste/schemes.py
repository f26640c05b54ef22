"""The schemes by name: the allocator of each, and what the definitions say that it reserves.

| scheme | reserves |
|---|---|
| `prealloc:M` | one slot of M tokens a request |
| `oracle:ff`, `oracle:bf` | one extent of the final length, first fit or best fit |
| `pow2:ff`, `pow2:bf` | one extent of the prompt and the output's next power of two |
| `ondemand:ff`, `ondemand:bf` | one extent from the prompt on, doubled when full |
| `growp2:ff`, `growp2:bf` | the same, from the next power of two on |
| `buddy:oracle`, `buddy:pow2` | a power of two from a binary buddy system |
| `paged:B` | blocks of B tokens, anywhere |

The arithmetic here says what can never be served, and how much the queue's head asks for. What
is reserved comes from the allocator alone; a replay stops if the two ever disagree.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from kvimpls import traditional
from kvimpls.reference import Reference
from kvimpls.waste.requests import WasteError
from kvspec import Geometry

DEFAULT_MAXIMUM = 8192
"""Tokens that `prealloc` without a number sets aside for each request."""

DEFAULT_BLOCK_SIZES = (256, 16)
"""Tokens a block of `paged` without a number."""

DEFAULT_SCHEMES = "prealloc,oracle,pow2,ondemand,growp2,buddy,paged"
"""Every family, in all its variants."""


class Pool(Protocol):
    """What a replay asks of an allocator."""

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> Any:
        """Start `seq`, or raise `OutOfBlocks`."""
        ...

    def append(self, seq: int, num_tokens: int) -> Iterable[tuple[int, int]] | None:
        """Grow `seq`, or raise `OutOfBlocks`; give the copies that are needed."""
        ...

    def free(self, seq: int) -> Any:
        """End `seq`."""
        ...

    def block_table(self, seq: int) -> Sequence[int | None]:
        """The blocks of `seq`."""
        ...

    def num_free_blocks(self) -> int:
        """How many blocks are in no table."""
        ...


@frozen
class Scheme:
    """One row of the comparison. All sizes are tokens.

    `make` builds the allocator for a geometry of `geometry(capacity)`, `reserved` asks it what a
    sequence holds, and `demand(length, final)` is what is asked for at admission.
    """

    name: str
    make: Callable[[Geometry], Any]
    demand: Callable[[int, int], int]
    reserved: Callable[[Any, int], int]
    block_size: int = 1
    unit: int = 1
    """The capacity is used in multiples of this."""
    max_tokens: int | None = None
    told: bool = False
    """Whether the allocator learns the final length, as the limit."""
    pool: Callable[[int], int] = field(default=lambda usable: usable)
    """How much of what is usable one request can have."""
    contiguous: bool = False
    """Whether the free space has holes that matter: one extent a request, anywhere it fits."""

    def geometry(self, capacity: int) -> Geometry:
        """The pool for `capacity` tokens; `WasteError` if it would have no room at all."""
        usable = capacity // self.unit * self.unit
        if usable == 0:
            raise WasteError(
                f"{self.name} needs a capacity of at least {self.unit} tokens, not {capacity}"
            )
        return Geometry(usable // self.block_size, self.block_size, max_tokens=self.max_tokens)

    def servable(self, prompt: int, final: int, capacity: int) -> bool:
        """Whether a request could be served if it were alone."""
        if self.max_tokens is not None and final > self.max_tokens:
            return False
        most = self.pool(self.geometry(capacity).capacity)
        return max(final, self.demand(prompt, final)) <= most


def power_of_two(tokens: int) -> int:
    """The least power of two that is not below `tokens`; 0 for none.

    >>> [power_of_two(n) for n in (0, 1, 2, 3, 4, 5)]
    [0, 1, 2, 4, 4, 8]
    """
    return 1 << (tokens - 1).bit_length() if tokens else 0


def _by_observer(pool: Any, seq: int) -> int:
    reserved: int = pool.reserved(seq)
    return reserved


def _largest_power(usable: int) -> int:
    return 1 << (usable.bit_length() - 1)


def _preallocation(maximum: int) -> Scheme:
    return Scheme(
        f"prealloc:{maximum}",
        traditional.Preallocation,
        demand=lambda length, final: maximum,
        reserved=_by_observer,
        unit=maximum,
        max_tokens=maximum,
        pool=lambda usable: maximum,
    )


def _paged(block_size: int) -> Scheme:
    return Scheme(
        f"paged:{block_size}",
        Reference,
        demand=lambda length, final: -(-length // block_size) * block_size,
        reserved=lambda pool, seq: len(pool.block_table(seq)) * block_size,
        block_size=block_size,
        unit=block_size,
    )


def _extent(name: str, make: Any, demand: Callable[[int, int], int], **more: Any) -> Scheme:
    return Scheme(name, make, demand, _by_observer, contiguous=True, **more)


def _exact(length: int, final: int) -> int:
    return final


def _pow2(length: int, final: int) -> int:
    return length + power_of_two(final - length)


def _known(name: str, make: Any, demand: Callable[[int, int], int], **more: Any) -> Scheme:
    return _extent(name, make, demand, told=True, **more)


def _buddy(name: str, make: Any, demand: Callable[[int, int], int]) -> Scheme:
    def rounded(length: int, final: int) -> int:
        return power_of_two(demand(length, final))

    return _known(name, make, rounded, pool=_largest_power)


def _from_prompt(length: int, final: int) -> int:
    return max(length, 1)


def _from_power(length: int, final: int) -> int:
    return power_of_two(max(length, 1))


_EXTENTS = {
    scheme.name: scheme
    for scheme in (
        _known("oracle:ff", traditional.OracleFirstFit, _exact),
        _known("oracle:bf", traditional.OracleBestFit, _exact),
        _known("pow2:ff", traditional.Pow2FirstFit, _pow2),
        _known("pow2:bf", traditional.Pow2BestFit, _pow2),
        _extent("ondemand:ff", traditional.DoublingFirstFit, _from_prompt),
        _extent("ondemand:bf", traditional.DoublingBestFit, _from_prompt),
        _extent("growp2:ff", traditional.GrowingPow2FirstFit, _from_power),
        _extent("growp2:bf", traditional.GrowingPow2BestFit, _from_power),
        _buddy("buddy:oracle", traditional.BuddyOracle, _exact),
        _buddy("buddy:pow2", traditional.BuddyPow2, _pow2),
    )
}

KNOWN = ("prealloc:M", *_EXTENTS, "paged:B")
"""How the schemes are written."""


def parse_schemes(
    text: str, block_sizes: Sequence[int] = DEFAULT_BLOCK_SIZES
) -> tuple[Scheme, ...]:
    """The schemes of a list with commas; a family without a variant is all its variants.

    Raises `WasteError` for an unknown one.

    >>> [scheme.name for scheme in parse_schemes("prealloc:2048,oracle,paged", [16, 8])]
    ['prealloc:2048', 'oracle:ff', 'oracle:bf', 'paged:16', 'paged:8']
    """
    schemes = [s for name in text.split(",") for s in _named(name.strip(), block_sizes)]
    return tuple({scheme.name: scheme for scheme in schemes}.values())


def _named(name: str, block_sizes: Sequence[int]) -> list[Scheme]:
    family, colon, variant = name.partition(":")
    sized = {"prealloc": (_preallocation, [DEFAULT_MAXIMUM]), "paged": (_paged, block_sizes)}
    if family in sized:
        make, sizes = sized[family]
        return [make(size) for size in ([_size(name, variant)] if colon else sizes)]
    found = [s for s in _EXTENTS.values() if name in (s.name, s.name.partition(":")[0])]
    if not found:
        raise WasteError(f"unknown scheme {name!r}; there are {', '.join(KNOWN)}")
    return found


def _size(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,17}", text, re.ASCII):
        raise WasteError(f"{name}: {text!r} is no whole number of tokens above 0")
    return int(text)
