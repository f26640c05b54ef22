"""A museum of faults: allocators that each carry one, most of them from a public report.

Every exhibit is a correct allocator but for a few lines, and its docstring says what is wrong and
where it was seen. Most stand on the reference, and claim all that it does; those of the data
plane on `store`, which gives it real data. `registry` is the catalogue, in the order of the
reports, and `controls` has what was reported and is right. A suite that lets one of the exhibits
pass, or flags one of the controls, has a hole.
"""

from typing import Any

from kvimpls.museum.core import (
    AliasedTable,
    HalfDoneAppend,
    LeakOnRefusal,
    OffByOneAtBoundary,
    SpuriousRefusalAtExactFit,
)
from kvimpls.museum.lease import FirstLeaseReleases, ReuseWhileLeased
from kvimpls.museum.sharing import CountNotDecremented, DoubleHandOut, ForgottenCopyOnWrite
from kvimpls.reference import Reference

EXHIBITS: tuple[type[Reference], ...] = (
    LeakOnRefusal,
    OffByOneAtBoundary,
    AliasedTable,
    HalfDoneAppend,
    SpuriousRefusalAtExactFit,
    DoubleHandOut,
    ForgottenCopyOnWrite,
    CountNotDecremented,
    ReuseWhileLeased,
    FirstLeaseReleases,
)
"""Ten whose shortest stories are so short that they are known by search; `registry` has all."""

__all__ = [
    "EXHIBITS",
    "AliasedTable",
    "CountNotDecremented",
    "DoubleHandOut",
    "FirstLeaseReleases",
    "ForgottenCopyOnWrite",
    "HalfDoneAppend",
    "LeakOnRefusal",
    "OffByOneAtBoundary",
    "ReuseWhileLeased",
    "SpuriousRefusalAtExactFit",
]


def __dir__() -> list[str]:
    from kvimpls.museum.registry import MUSEUM

    return sorted({*globals(), *(exhibit.name for exhibit in MUSEUM)})


def __getattr__(name: str) -> Any:
    """Any exhibit by its name, as in `kvspec check kvimpls.museum:KeyDropped`."""
    if name[:1].isupper():  # a module is no exhibit, and is looked for here before it is imported
        from kvimpls.museum.registry import MUSEUM  # it imports all, which few ask for

        for exhibit in MUSEUM:
            if exhibit.name == name:
                return exhibit.factory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
