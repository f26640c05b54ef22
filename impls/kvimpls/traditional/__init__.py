"""The schemes that paging replaced, each a working allocator with an honest contract.

Preallocation to the longest length, one contiguous extent a sequence (sized in advance, or
grown on demand), the binary buddy system, and coarse granules. What they share: a sequence's
blocks are where its scheme wants them, so a request may be refused although enough is free,
and what is reserved may be far more than what is stored.
"""

from kvimpls.traditional.buddy import BuddyOracle, BuddyPow2
from kvimpls.traditional.granular import Granular256
from kvimpls.traditional.known import (
    ContiguousBestFit,
    ContiguousFirstFit,
    OracleBestFit,
    OracleFirstFit,
    Pow2BestFit,
    Pow2FirstFit,
)
from kvimpls.traditional.on_demand import (
    DoublingBestFit,
    DoublingFirstFit,
    GrowingPow2BestFit,
    GrowingPow2FirstFit,
)
from kvimpls.traditional.preallocation import Preallocation

__all__ = [
    "BuddyOracle",
    "BuddyPow2",
    "ContiguousBestFit",
    "ContiguousFirstFit",
    "DoublingBestFit",
    "DoublingFirstFit",
    "Granular256",
    "GrowingPow2BestFit",
    "GrowingPow2FirstFit",
    "OracleBestFit",
    "OracleFirstFit",
    "Pow2BestFit",
    "Pow2FirstFit",
    "Preallocation",
]
