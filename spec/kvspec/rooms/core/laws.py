"""The laws of the core, most specific first within a module; `rooms` has the published order.

Each is a predicate over one step. `relevant` is cheap; `broken` explains with the numbers.
"""

from kvspec.rooms.core.answers import (
    ADMISSION,
    MISUSE,
    RETRY,
    WELL_FORMED,
)
from kvspec.rooms.core.contents import (
    CONSERVATION,
    READ_BACK,
)
from kvspec.rooms.core.tables import (
    ATOMICITY,
    BOUNDED_WASTE,
    FRAME,
    NEEDLESS_COPY,
    NO_OVERLAP,
    PLACEMENT,
    SNAPSHOT,
)

LAWS = (
    MISUSE,
    WELL_FORMED,
    SNAPSHOT,
    NO_OVERLAP,
    NEEDLESS_COPY,
    PLACEMENT,
    ATOMICITY,
    BOUNDED_WASTE,
    FRAME,
    RETRY,
    ADMISSION,
    CONSERVATION,
    READ_BACK,
)
