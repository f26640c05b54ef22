"""What a model type's configuration leaves unsaid, as transformers' classes say it.

A `config.json` holds the fields that differ from the class's defaults, or all of them, as the
version that wrote it pleased; Gemma 3's files leave out the number of heads. And older files do
not say which layers have the window; the class's code does. Both are written down here for the
types whose classes were read (transformers 5.24); tests compare them with the classes.
"""

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

Rule = Literal["all", "pattern", "from", "rope"]
"""Which layers have the window, where the file lists no layer types.

`all`: every layer. `pattern`: all but every `sliding_window_pattern`-th. `from`: those from
number `max_window_layers` on. `rope`: those with rotary embeddings (`no_rope_layers`).
"""


@frozen
class Family:
    """What the class of a model type takes for granted."""

    defaults: Mapping[str, int | bool] = field(factory=dict)
    rule: Rule | None = None
    kv_heads_default_to_heads: bool = False


_QWEN = {"use_sliding_window": False}

FAMILIES: Mapping[str, Family] = {
    "cohere": Family(kv_heads_default_to_heads=True),
    "cohere2": Family({"sliding_window": 4096, "sliding_window_pattern": 4}, "pattern", True),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "gemma": Family({"head_dim": 256}),
    "gemma2": Family(
        {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2}, "pattern"
    ),
    "gemma3_text": Family(
        {
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        "pattern",
    ),
    "gpt_oss": Family(
        {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2}, "pattern"
    ),
    "granite": Family(kv_heads_default_to_heads=True),
    "llama": Family(kv_heads_default_to_heads=True),
    "llama4_text": Family(
        {
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_chunk_size": 8192,
            "no_rope_layer_interval": 4,
        },
        "rope",
    ),
    "mistral": Family({"sliding_window": 4096}, "all"),
    "mixtral": Family(rule="all"),
    "olmo2": Family(kv_heads_default_to_heads=True),
    "phi3": Family(rule="all", kv_heads_default_to_heads=True),
    "qwen2": Family(_QWEN, "from"),
    "qwen2_moe": Family(_QWEN, "from"),
    "qwen3": Family({"head_dim": 128, **_QWEN}, "from"),
    "qwen3_moe": Family(_QWEN, "all"),
    "starcoder2": Family(rule="all"),
}

WRAPPED: Mapping[str, str] = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""The type of the language model inside a multimodal one whose `text_config` does not say it."""
