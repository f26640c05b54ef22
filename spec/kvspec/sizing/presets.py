"""Well-known models as data: the fields of their `config.json` that decide the cache.

The fields have the names of the model's `config.json` on the Hugging Face hub (`repo`) and are
read as such a file is. `checked` says in which published sources the values were found;
`unchecked` names those that were found in none and rest on knowledge of the file. Nothing was
fetched from the hub itself.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from kvspec.sizing.architecture import Architecture
from kvspec.sizing.config import read_config

META = "meta-llama/llama-models: models/sku_list.py"
MLC = "mlc-ai/mlc-llm: python/mlc_llm/model/model_preset.py, the config.json itself"
LITGPT = "Lightning-AI/litgpt: litgpt/config.py, after the config.json"
GEMMA = "google/gemma_pytorch: gemma/config.py"
TRANSFORMERS = "transformers 5.24: the defaults of the configuration class"


@frozen
class Preset:
    """A model that can be named: where its configuration is published, and its fields."""

    name: str
    repo: str
    config: Mapping[str, Any]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def architecture(self) -> Architecture:
        """What its layers keep."""
        return read_config(self.config, self.name)


def _heads(model_type: str, layers: int, heads: int, kv_heads: int, dim: int, **more: Any) -> Any:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        **more,
    }


def _qwen(model_type: str, layers: int, heads: int, kv_heads: int) -> Any:
    # head_dim is 128 in all of them; Qwen2.5's files leave it to hidden_size / heads.
    return _heads(model_type, layers, heads, kv_heads, 128, use_sliding_window=False)


def _gemma2(layers: int, heads: int, kv_heads: int, dim: int) -> Any:
    return _heads(
        "gemma2", layers, heads, kv_heads, dim, sliding_window=4096, sliding_window_pattern=2
    )


def _gemma3(layers: int, heads: int, kv_heads: int, dim: int, window: int) -> Any:
    return _heads(
        "gemma3_text", layers, heads, kv_heads, dim, sliding_window=window, sliding_window_pattern=6
    )


def _gpt_oss(layers: int) -> Any:
    types = ["sliding_attention", "full_attention"] * (layers // 2)
    return _heads("gpt_oss", layers, 64, 8, 64, sliding_window=128, layer_types=types)


def _deepseek(model_type: str, layers: int, heads: int) -> Any:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }


_LLAMA4 = _heads("llama4_text", 48, 40, 8, 128, attention_chunk_size=8192, no_rope_layer_interval=4)
_MISTRAL = _heads("mistral", 32, 32, 8, 128, sliding_window=4096)
_PHI = _heads("phi3", 32, 32, 32, 96, sliding_window=262_144)
_UNUSED = ("use_sliding_window",)

_ALL = (
    Preset(
        "llama-3-8b", "meta-llama/Meta-Llama-3-8B", _heads("llama", 32, 32, 8, 128), (META, MLC)
    ),
    Preset(
        "llama-3-70b", "meta-llama/Meta-Llama-3-70B", _heads("llama", 80, 64, 8, 128), (META, MLC)
    ),
    Preset("qwen2.5-7b", "Qwen/Qwen2.5-7B", _qwen("qwen2", 28, 28, 4), (LITGPT,), _UNUSED),
    Preset("qwen2.5-14b", "Qwen/Qwen2.5-14B", _qwen("qwen2", 48, 40, 8), (LITGPT,), _UNUSED),
    Preset("qwen3-0.6b", "Qwen/Qwen3-0.6B", _qwen("qwen3", 28, 16, 8), (MLC, LITGPT)),
    Preset("qwen3-8b", "Qwen/Qwen3-8B", _qwen("qwen3", 36, 32, 8), (MLC, LITGPT)),
    Preset("qwen3-32b", "Qwen/Qwen3-32B", _qwen("qwen3", 64, 64, 8), (LITGPT,), _UNUSED),
    Preset(
        "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", _qwen("qwen3_moe", 48, 32, 4), (LITGPT,), _UNUSED
    ),
    Preset(
        "qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", _qwen("qwen3_moe", 94, 64, 4), (LITGPT,), _UNUSED
    ),
    Preset(
        "mistral-7b-v0.1",
        "mistralai/Mistral-7B-v0.1",
        _MISTRAL,
        (LITGPT, TRANSFORMERS),
    ),
    Preset("phi-3.5-mini", "microsoft/Phi-3.5-mini-instruct", _PHI, (MLC,)),
    Preset("gemma-2-2b", "google/gemma-2-2b", _gemma2(26, 8, 4, 256), (GEMMA, MLC)),
    Preset("gemma-2-9b", "google/gemma-2-9b", _gemma2(42, 16, 8, 256), (GEMMA, MLC)),
    Preset("gemma-2-27b", "google/gemma-2-27b", _gemma2(46, 32, 16, 128), (GEMMA, MLC)),
    Preset("gemma-3-1b", "google/gemma-3-1b-pt", _gemma3(26, 4, 1, 256, 512), (GEMMA, MLC)),
    Preset("gemma-3-4b", "google/gemma-3-4b-pt", _gemma3(34, 8, 4, 256, 1024), (GEMMA,)),
    Preset("gemma-3-12b", "google/gemma-3-12b-pt", _gemma3(48, 16, 8, 256, 1024), (GEMMA,)),
    Preset("gemma-3-27b", "google/gemma-3-27b-pt", _gemma3(62, 32, 16, 128, 1024), (GEMMA,)),
    Preset(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        _gpt_oss(24),
        ("jihengzhang/jihz-gpt-oss-20b: gpt-oss-20b/config.json, a copy of the file",),
    ),
    Preset(
        "gpt-oss-120b",
        "openai/gpt-oss-120b",
        _gpt_oss(36),
        ("openai/gpt-oss: gpt_oss/torch/model.py", TRANSFORMERS),
    ),
    Preset(
        "llama-4-scout",
        "meta-llama/Llama-4-Scout-17B-16E",
        _LLAMA4,
        (TRANSFORMERS,),
    ),
    Preset(
        "deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", _deepseek("deepseek_v2", 27, 16), (MLC,)
    ),
    Preset(
        "deepseek-v2",
        "deepseek-ai/DeepSeek-V2",
        _deepseek("deepseek_v2", 60, 128),
        (
            "inclusionAI/Ling: .../deepseekv2/config_deepseekv2.py (layers, heads)",
            "asantucci/deepseek: config.py, after arXiv:2405.04434 (heads, latent)",
        ),
    ),
    Preset(
        "deepseek-v3",
        "deepseek-ai/DeepSeek-V3",
        _deepseek("deepseek_v3", 61, 128),
        (TRANSFORMERS, "deepseek-ai/DeepSeek-V3: README_WEIGHTS.md (layers)"),
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}


def preset(text: str) -> Preset | None:
    """The preset of that name, or of that repository on the hub; case does not matter."""
    wanted = text.lower()
    return PRESETS.get(wanted) or next((one for one in _ALL if one.repo.lower() == wanted), None)
