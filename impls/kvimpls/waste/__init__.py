"""Real request traces replayed through the real allocators: what each scheme does with memory.

`read` gives the requests of a file, `parse_schemes` the schemes of a text, and `replay` serves
the requests with a scheme's allocator, one decode token per running request per step, and
measures every step. `docs/waste.md` defines each quantity and shows the figures.
"""

from kvimpls.waste.prefix import PrefixHits, prefix_hits
from kvimpls.waste.readers import read
from kvimpls.waste.replay import Replay, replay
from kvimpls.waste.requests import Trace, WasteError
from kvimpls.waste.result import Result
from kvimpls.waste.schemes import DEFAULT_SCHEMES, Scheme, parse_schemes

__all__ = [
    "DEFAULT_SCHEMES",
    "PrefixHits",
    "Replay",
    "Result",
    "Scheme",
    "Trace",
    "WasteError",
    "parse_schemes",
    "prefix_hits",
    "read",
    "replay",
]
