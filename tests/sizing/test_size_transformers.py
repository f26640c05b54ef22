"""The reader against transformers: its classes' defaults, and the bytes that it really caches."""

import json
import warnings
from collections import Counter
from pathlib import Path

import pytest

from kvspec.sizing import Measure, SizingError, Span, read_config
from kvspec.sizing.element import element
from kvspec.sizing.families import FAMILIES, WRAPPED

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers", reason="transformers is an extra")
get_layer_types_and_kwargs = transformers.cache_utils.get_layer_types_and_kwargs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "size.md"

DEFAULT_RULE = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}
"""What the code of these classes has for `sliding_window_pattern`, which is no field of theirs."""

TINY = {
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "vocab_size": 32,
    "sliding_window": 5,
    "attention_chunk_size": 5,
    "kv_lora_rank": 24,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(kind):
    known = transformers.CONFIG_MAPPING[kind]()
    fields = {key: value for key, value in TINY.items() if hasattr(known, key)}
    if "kv_lora_rank" in fields:  # every head computes a key of its own from the latent
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    return transformers.CONFIG_MAPPING[kind](**fields)


def data(config):
    return json.loads(json.dumps(config.to_dict()))


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_defaults_are_those_of_the_class(kind):
    config = transformers.CONFIG_MAPPING[kind]()
    for field, value in FAMILIES[kind].defaults.items():
        if field == "sliding_window_pattern" and kind in DEFAULT_RULE:
            assert value == DEFAULT_RULE[kind]
        elif field == "sliding_window" and kind.startswith("qwen"):
            continue
        else:
            assert getattr(config, field) == value, field


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapper_wraps_what_its_class_wraps(kind):
    assert transformers.CONFIG_MAPPING[kind]().text_config.model_type == WRAPPED[kind]


@pytest.mark.parametrize("kind", FAMILIES)
def test_layers_are_those_of_transformers_cache(kind):
    """Read from the whole configuration, and from what a short file would leave to the class."""
    config = tiny(kind)
    kept = []
    for layer in transformers.DynamicCache(config=config).layers:
        window = getattr(layer, "sliding_window", None)
        kept.append(window)
    full = data(config)
    short = {
        key: full[key]
        for key in full
        if key in TINY or key in ("model_type", "head_dim", "layer_types")
    }
    short.pop("layer_types", None)
    for fields in (full, short):
        found = [
            group.span.tokens
            for group in read_config(fields, kind).layers
            for _ in range(group.count)
        ]
        assert sorted(found, key=str) == sorted(kept, key=str)


def test_every_other_configuration_is_refused_or_read_rightly():
    """The default configuration of every model type, against the layers of transformers' cache.

    Says nothing of what a layer stores; that is asked of the known types below.
    """
    accepted = []
    for kind in transformers.CONFIG_MAPPING:
        try:
            with warnings.catch_warnings(action="ignore"):
                config = transformers.CONFIG_MAPPING[kind]().get_text_config(decoder=True)
                types, options = get_layer_types_and_kwargs(config)
                fields = json.loads(json.dumps(config.to_dict(), default=repr))
        except Exception:  # many need arguments, or other packages
            continue
        if "num_hidden_layers" not in fields or "num_attention_heads" not in fields:
            continue
        try:
            model = read_config({"model_type": kind, **fields}, kind)
        except SizingError:
            continue
        accepted.append(kind)
        found = Counter({group.span: group.count for group in model.layers})
        kinds = {"full_attention": "full", "sliding_attention": "sliding"}
        assert found == Counter(
            Span(kinds.get(name, "chunked"), option.get("sliding_window"))
            for name, option in zip(types, options, strict=True)
        ), kind
    assert f"For {len(accepted)} of the model types" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", FAMILIES)
def test_bytes_are_those_that_transformers_caches(kind):
    """A prompt within the window, to the byte; then beyond it, where one token is not kept.

    The window includes the token that is being computed; between steps transformers keeps
    one less.
    """
    config = tiny(kind)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    architecture = read_config(data(config), kind)
    measure = Measure(architecture, element("fp32"))
    for tokens in (1, 4, 12):
        with torch.no_grad():
            prompt = torch.randint(3, 32, (1, tokens))
            cache = transformers.DynamicCache(config=config)
            model(input_ids=prompt, cache=cache, use_cache=True)
        cached = sum(
            tensor.numel() * tensor.element_size()
            for layer in cache.layers
            for tensor in (layer.keys, layer.values)
        )
        dropped = sum(
            group.count * measure.layer_bytes(group)
            for group in architecture.layers
            if group.span != Span() and tokens >= (group.span.tokens or 0)
        )
        assert cached == measure.sequence_bytes(tokens) - dropped
