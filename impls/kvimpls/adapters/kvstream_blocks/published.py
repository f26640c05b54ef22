"""The engine's own classes, as it was published."""

from importlib import import_module
from typing import Any

from kvimpls.adapters.engines import engine

with engine("kvstream", "0.1.0", bare=("kvstream",)):
    BlockManager: Any = import_module("kvstream.memory.block_manager").BlockManager
    PrefixKVCache: Any = import_module("kvstream.memory.prefix_cache").PrefixKVCache
