"""Every preset loads; what a token takes is what hand calculation, or its paper, says."""

import pytest

from kvspec.sizing import PRESETS, Measure
from kvspec.sizing.presets import preset

TOKEN_BYTES = {
    # layers × 2 × KV heads × head dimension × 2 bytes
    "llama-3-8b": 32 * 2 * 8 * 128 * 2,
    "llama-3-70b": 80 * 2 * 8 * 128 * 2,
    "qwen2.5-7b": 28 * 2 * 4 * 128 * 2,
    "qwen2.5-14b": 48 * 2 * 8 * 128 * 2,
    "qwen3-0.6b": 28 * 2 * 8 * 128 * 2,
    "qwen3-8b": 36 * 2 * 8 * 128 * 2,
    "qwen3-32b": 64 * 2 * 8 * 128 * 2,
    "qwen3-30b-a3b": 48 * 2 * 4 * 128 * 2,
    "qwen3-235b-a22b": 94 * 2 * 4 * 128 * 2,
    "mistral-7b-v0.1": 32 * 2 * 8 * 128 * 2,
    "phi-3.5-mini": 32 * 2 * 32 * 96 * 2,
    "gemma-2-2b": 26 * 2 * 4 * 256 * 2,
    "gemma-2-9b": 42 * 2 * 8 * 256 * 2,
    "gemma-2-27b": 46 * 2 * 16 * 128 * 2,
    "gemma-3-1b": 26 * 2 * 1 * 256 * 2,
    "gemma-3-4b": 34 * 2 * 4 * 256 * 2,
    "gemma-3-12b": 48 * 2 * 8 * 256 * 2,
    "gemma-3-27b": 62 * 2 * 16 * 128 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "gpt-oss-120b": 36 * 2 * 8 * 64 * 2,
    "llama-4-scout": 48 * 2 * 8 * 128 * 2,
    # layers × (latent + rope) × 2 bytes
    "deepseek-v2-lite": 27 * (512 + 64) * 2,
    "deepseek-v2": 60 * (512 + 64) * 2,
    "deepseek-v3": 61 * (512 + 64) * 2,
}
BEYOND = {
    # the layers that keep all tokens
    "mistral-7b-v0.1": 0,
    "phi-3.5-mini": 0,
    "gemma-2-2b": 13 * 2 * 4 * 256 * 2,
    "gemma-2-9b": 21 * 2 * 8 * 256 * 2,
    "gemma-2-27b": 23 * 2 * 16 * 128 * 2,
    "gemma-3-1b": 4 * 2 * 1 * 256 * 2,
    "gemma-3-4b": 5 * 2 * 4 * 256 * 2,
    "gemma-3-12b": 8 * 2 * 8 * 256 * 2,
    "gemma-3-27b": 10 * 2 * 16 * 128 * 2,
    "gpt-oss-20b": 12 * 2 * 8 * 64 * 2,
    "gpt-oss-120b": 18 * 2 * 8 * 64 * 2,
    "llama-4-scout": 12 * 2 * 8 * 128 * 2,
}
WINDOWS = {
    "mistral-7b-v0.1": 4096,
    "phi-3.5-mini": 262_144,
    "gemma-2-2b": 4096,
    "gemma-2-9b": 4096,
    "gemma-2-27b": 4096,
    "gemma-3-1b": 512,
    "gemma-3-4b": 1024,
    "gemma-3-12b": 1024,
    "gemma-3-27b": 1024,
    "gpt-oss-20b": 128,
    "gpt-oss-120b": 128,
    "llama-4-scout": 8192,
}


def test_every_preset_is_in_the_table():
    assert set(TOKEN_BYTES) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_takes_what_the_calculation_says(name):
    measure = Measure(PRESETS[name].architecture)
    assert measure.token_bytes == TOKEN_BYTES[name]
    slopes = measure.slopes()
    assert slopes[-1].token_bytes == BEYOND.get(name, TOKEN_BYTES[name])
    assert [slope.last for slope in slopes[:-1]] == ([WINDOWS[name]] if name in WINDOWS else [])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_where_it_is_from_and_assumes_nothing(name):
    found = PRESETS[name]
    assert found.checked
    assert "/" in found.repo
    assert found.architecture.notes == ()
    assert set(found.unchecked) < set(found.config)


def test_a_preset_is_found_by_its_repository_in_any_case():
    assert preset("qwen/QWEN3-8B") is preset("Qwen3-8b") is PRESETS["qwen3-8b"]
    assert preset("qwen3") is None


def test_deepseek_v2_saves_what_its_paper_says():
    """93.3 % of DeepSeek 67B's KV cache (95 layers, 8 KV heads of 128), at 6 bits an element."""
    v2 = Measure(PRESETS["deepseek-v2"].architecture).token_bytes * 6 // 16
    v1 = 95 * 2 * 8 * 128 * 2
    assert round(100 * (1 - v2 / v1), 1) == 93.3


def test_gpt_oss_without_windows_takes_what_is_published():
    """9.66 GB for 131,072 tokens of gpt-oss 120B in bf16, says AWS Neuron's documentation."""
    measure = Measure(PRESETS["gpt-oss-120b"].architecture)
    assert measure.unwindowed_bytes(131_072) == 9_663_676_416
