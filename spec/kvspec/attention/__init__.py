"""Attention in numpy: why keys and values are cached, and what a block table must lead to.

`causal` is the definition. `decode` keeps keys and values from step to step, `paged` finds
them through a block table, `latent` caches less than them; each must give what the definition
gives, to float64 rounding, for which `rounding` has the bound. `cost` and `layers` count what
the cache saves.

Nothing here knows of allocators, and the kernel knows nothing of this package: it says what
the contents that the kernel reasons about are for.
"""

from kvspec.attention.causal import Array, causal_attention, seen, softmax
from kvspec.attention.cost import LLAMA_3_8B, Shape, Tally, cached_step, recomputed_step
from kvspec.attention.decode import KVCache, attend
from kvspec.attention.latent import LatentAttention, rotary
from kvspec.attention.layers import Decoder, Layer, random_layers, recompute
from kvspec.attention.paged import attend_by_block, attend_paged, slots
from kvspec.attention.rounding import attention_bound, bound, latent_bound

__all__ = [
    "LLAMA_3_8B",
    "Array",
    "Decoder",
    "KVCache",
    "LatentAttention",
    "Layer",
    "Shape",
    "Tally",
    "attend",
    "attend_by_block",
    "attend_paged",
    "attention_bound",
    "bound",
    "cached_step",
    "causal_attention",
    "latent_bound",
    "random_layers",
    "recompute",
    "recomputed_step",
    "rotary",
    "seen",
    "slots",
    "softmax",
]
