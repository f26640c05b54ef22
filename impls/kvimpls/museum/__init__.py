"""A museum of faults: allocators that each carry one, most of them from a public report.

Every exhibit is the reference but for a few lines, and its docstring says what is wrong and
where it was seen. A suite that lets one of them pass has a hole.
"""

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
