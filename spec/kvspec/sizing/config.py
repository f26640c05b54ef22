"""Reads a model's `config.json`: what its layers keep, or one clear line about why not.

The fields decide, and the model type where they are silent (`families`). A field that speaks of
the cache in a way that is not understood here is a refusal: a number that ignored it would be a
guess.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvspec.sizing.architecture import (
    FULL,
    Architecture,
    Heads,
    Latent,
    SizingError,
    Span,
    Storage,
    grouped,
)
from kvspec.sizing.families import FAMILIES, WRAPPED, Family

MOST_LAYERS = 10_000
"""More layers than any model has: beyond it a number is a mistake."""

_SIZES = (
    "attention_chunk_size head_dim kv_lora_rank layer_types max_window_layers "
    "no_rope_layer_interval no_rope_layers num_attention_heads num_hidden_layers "
    "num_key_value_heads qk_rope_head_dim sliding_window sliding_window_pattern "
    "use_sliding_window v_head_dim"
)
_OTHERS = (
    "_attn_implementation _attn_implementation_autoset _sliding_window_pattern attention_bias "
    "attention_out_bias attn_implementation attn_temperature_tuning cache_implementation "
    "full_attn_mod mlp_layer_types mlp_only_layers num_mtp_layers num_nextn_predict_layers "
    "qk_head_dim qk_nope_head_dim qkv_bias query_pre_attn_scalar use_cache"
)
_UNDERSTOOD = frozenset(f"{_SIZES} {_OTHERS}".split())
"""The fields that are read here, and those that sound like it but change no size."""

_OF_THE_CACHE = re.compile(
    r"attn|attention|bidirectional|block_(config|type)|cache|chunk|compress|conv|cross|encoder_"
    r"|global|head_(dim|size)|hybrid|index_|indexer|key_value_heads|kv_|_kv|layers?_(block|type)"
    r"|linear_|local_layer|loop|mamba|mla|mtp|per_layer|recurrent|retention|rwkv|share_factor"
    r"|sliding|ssm|swa_|use_cla|window"
)
"""Names of fields that may say what is cached; only those that are understood may be set."""

_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


def read_file(path: Path) -> Architecture:
    """The architecture that the `config.json` at `path`, or in the folder at `path`, describes.

    Raises `SizingError`, which names the file and the field, for anything that is not understood.
    """
    if path.is_dir():
        path = path / "config.json"
    name = str(path).encode("utf-8", "replace").decode()  # some names of files are no text
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SizingError(f"{name}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SizingError(f"{name}: it is not a text file in UTF-8") from None
    except json.JSONDecodeError as error:
        raise SizingError(f"{name}:{error.lineno}: it is not JSON: {error.msg}") from None
    except (RecursionError, ValueError):
        raise SizingError(f"{name}: it is JSON that no config.json has") from None
    try:
        return read_config(config, name)
    except SizingError as error:
        raise SizingError(f"{name}: {error}") from None


def read_config(config: object, name: str) -> Architecture:
    """The architecture that a parsed `config.json` describes, under this name.

    Raises `SizingError`, which names the field.

    >>> read_config({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    ...              "hidden_size": 32}, "tiny").layers
    (Layers(count=2, storage=Heads(kv_heads=4, head_dim=8), span=Span(kind='full', tokens=None)),)
    """
    fields = _Fields.of(config)
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    heads = fields.whole("num_attention_heads")
    storage = _storage(fields, heads)
    spans = _spans(fields, layers)
    return Architecture(
        name, heads, grouped([(storage, span) for span in spans]), notes=tuple(fields.notes)
    )


class _Fields:
    """The fields of a configuration, with the defaults of its class, and what was assumed."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self.config = config
        self.model_type = model_type
        self.family = FAMILIES.get(model_type, Family())
        self.notes: list[str] = []
        if model_type not in FAMILIES:
            self.notes.append(
                f"model type {model_type!r} is not known: only what its fields say is counted"
            )

    @classmethod
    def of(cls, config: object) -> "_Fields":
        """Those of the language model, inside `text_config` where there is one."""
        if not isinstance(config, Mapping):
            raise SizingError("it is no object of fields")
        outer = config.get("model_type")
        _refuse_encoders(config)
        if config.get("text_config") is not None:
            config = config["text_config"]
            if not isinstance(config, Mapping):
                raise SizingError("text_config is no object of fields")
            _refuse_encoders(config)
        elif "num_hidden_layers" not in config:
            inner = [
                key
                for key, value in config.items()
                if isinstance(value, Mapping)
                and "num_hidden_layers" in value
                and "vision" not in key
            ]
            if inner:
                raise SizingError(
                    f"num_hidden_layers is missing; {inner[0]} has one, but only text_config "
                    "is looked into"
                )
        model_type = config.get("model_type", WRAPPED.get(str(outer), outer))
        if not isinstance(model_type, str):
            raise SizingError("model_type is missing")
        _refuse_unknown(config)
        return cls(config, model_type)

    def get(self, key: str) -> Any:
        """The value of a field, or the class's default, which is noted; `None` if there is none."""
        if key in self.config or key not in self.family.defaults:
            return self.config.get(key)
        value = self.family.defaults[key]
        if value is not False:
            self.notes.append(f"{key} is not in the file: {value}, as the class has it")
        return value

    def whole(self, key: str, most: int | None = None) -> int:
        """The value of a field that must be there, a whole number of at least 1."""
        value = self.get(key)
        if value is None:
            raise SizingError(f"{key} is missing")
        return _whole(key, value, most)

    def has(self, key: str) -> bool:
        """Whether a field has a value other than null, in the file or by default."""
        return (self.config if key in self.config else self.family.defaults).get(key) is not None


def _whole(key: str, value: object, most: int | None = None) -> int:
    if type(value) is not int or value < 1:
        raise SizingError(f"{key} is {_short(value)}: it must be a whole number of at least 1")
    if most is not None and value > most:
        raise SizingError(f"{key} is {_short(value)}: more than {most} is hardly meant")
    return value


def _short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _refuse_encoders(config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise SizingError("is_encoder_decoder: caches of cross-attention are not counted")


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    """Refuse a field that speaks of the cache and is not understood, unless it is off."""
    for key, value in config.items():
        if key in _UNDERSTOOD or value in (None, False, 0, "", [], {}):
            continue
        if _OF_THE_CACHE.search(key) and not isinstance(value, float):
            raise SizingError(
                f"{key} is {_short(value)}: it may change what is cached, and is not understood"
            )


def _storage(fields: _Fields, heads: int) -> Storage:
    if fields.has("kv_lora_rank"):
        return Latent(fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim"))
    if fields.has("num_key_value_heads"):
        kv_heads = fields.whole("num_key_value_heads")
    elif fields.family.kv_heads_default_to_heads:
        kv_heads = heads
    else:
        raise SizingError("num_key_value_heads is missing")
    if heads % kv_heads:
        raise SizingError(
            f"num_key_value_heads is {kv_heads}: it must divide num_attention_heads, {heads}"
        )
    if fields.has("head_dim"):
        head_dim = fields.whole("head_dim")
    elif "hidden_size" not in fields.config:
        raise SizingError("head_dim is missing, and so is hidden_size, of which it would be a part")
    else:
        hidden = fields.whole("hidden_size")
        if hidden % heads:
            raise SizingError(
                f"head_dim is missing, and hidden_size, {hidden}, is no multiple of "
                f"num_attention_heads, {heads}"
            )
        head_dim = hidden // heads
    if fields.has("v_head_dim") and fields.whole("v_head_dim") != head_dim:
        raise SizingError("v_head_dim differs from head_dim: that is not understood")
    return Heads(kv_heads, head_dim)


def _spans(fields: _Fields, layers: int) -> list[Span]:
    types = fields.get("layer_types")
    if types is not None:
        return _listed(fields, types, layers)
    rule = fields.family.rule
    if rule == "rope":
        return _by_rope(fields, layers)
    if fields.has("attention_chunk_size"):
        raise SizingError("attention_chunk_size is set, but layer_types does not say where")
    used = fields.get("use_sliding_window")
    if type(used) not in (bool, type(None)):
        raise SizingError(f"use_sliding_window is {_short(used)}: it must be true or false")
    if used is False or not fields.has("sliding_window"):
        return [FULL] * layers
    window = Span("sliding", fields.whole("sliding_window"))
    if rule == "all":
        return [window] * layers
    if rule == "pattern" or (rule is None and fields.has("sliding_window_pattern")):
        every = fields.whole("sliding_window_pattern")
        return [window if (n + 1) % every else FULL for n in range(layers)]
    if rule == "from" or fields.has("max_window_layers"):
        first = fields.get("max_window_layers")
        if type(first) is not int or first < 0:
            raise SizingError(f"max_window_layers is {_short(first)}: it must be a whole number")
        return [window if n >= first else FULL for n in range(layers)]
    raise SizingError(
        f"sliding_window is {window.tokens}, but neither layer_types nor sliding_window_pattern "
        "nor max_window_layers says which layers have it"
    )


def _listed(fields: _Fields, types: object, layers: int) -> list[Span]:
    if not isinstance(types, list) or len(types) != layers:
        raise SizingError(f"layer_types must name the type of each of the {layers} layers")
    spans = {"full_attention": FULL}
    for kind in types:
        if kind not in _LAYER_TYPES:
            raise SizingError(f"layer_types has {_short(kind)}: only {', '.join(_LAYER_TYPES)}")
        if kind == "sliding_attention" and kind not in spans:
            spans[kind] = Span("sliding", fields.whole("sliding_window"))
        if kind == "chunked_attention" and kind not in spans:
            spans[kind] = Span("chunked", fields.whole("attention_chunk_size"))
    return [spans[kind] for kind in types]


def _by_rope(fields: _Fields, layers: int) -> list[Span]:
    if not fields.has("attention_chunk_size"):
        return [FULL] * layers
    chunk = Span("chunked", fields.whole("attention_chunk_size"))
    rope = fields.config.get("no_rope_layers")
    if not rope:
        every = fields.whole("no_rope_layer_interval")
        rope = [(n + 1) % every for n in range(layers)]
    if not isinstance(rope, list) or len(rope) < layers:
        raise SizingError(f"no_rope_layers must say 0 or 1 for each of the {layers} layers")
    return [chunk if rope[n] else FULL for n in range(layers)]
