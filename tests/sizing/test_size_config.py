"""Configurations are read by their fields, and what is not understood is refused by its name."""

import json

import pytest

from kvspec.sizing import Heads, Latent, Layers, SizingError, Span, read_config, read_file

PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_size": 1024,
}
FULL = Span()


def read(**changes):
    return read_config({**PLAIN, **changes}, "model")


def spans(model):
    return [(group.count, group.span) for group in model.layers]


def test_the_head_dimension_is_a_share_of_the_hidden_size():
    assert read().layers == (Layers(8, Heads(4, 1024 // 16)),)


def test_the_head_dimension_of_the_file_comes_first():
    """Qwen3-0.6B: 16 heads of 128 with a hidden size of 1024."""
    assert read(model_type="qwen3", head_dim=128).layers[0].storage == Heads(4, 128)


def test_without_kv_heads_llama_has_as_many_as_heads():
    plain = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"}
    assert read_config(plain, "model").attention == "MHA"
    assert read(num_key_value_heads=None).attention == "MHA"


def test_a_latent_is_read_and_the_kv_heads_beside_it_are_not():
    model = read(model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128)
    assert model.layers == (Layers(8, Latent(512, 64)),)


def test_mistral_slides_everywhere_and_null_is_no_window():
    assert spans(read(model_type="mistral", sliding_window=4096)) == [(8, Span("sliding", 4096))]
    assert spans(read(model_type="mistral", sliding_window=None)) == [(8, FULL)]


def test_what_the_class_fills_in_is_said():
    model = read(model_type="mistral")
    assert spans(model) == [(8, Span("sliding", 4096))]
    assert model.notes == ("sliding_window is not in the file: 4096, as the class has it",)


def test_gemma_2_alternates_beginning_with_a_window():
    assert spans(read(model_type="gemma2", num_hidden_layers=5)) == [
        (3, Span("sliding", 4096)),
        (2, FULL),
    ]


def test_every_sixth_layer_of_gemma_3_is_full():
    """34 layers of Gemma-3 4B: 5 are full, the last four are not."""
    model = read(model_type="gemma3_text", num_hidden_layers=34, sliding_window=1024)
    assert spans(model) == [(29, Span("sliding", 1024)), (5, FULL)]


def test_layer_types_say_it_best():
    types = ["full_attention", "sliding_attention", "full_attention", "chunked_attention"]
    model = read(
        model_type="other",
        num_hidden_layers=4,
        layer_types=types,
        sliding_window=128,
        attention_chunk_size=512,
        sliding_window_pattern=2,
    )
    assert spans(model) == [(2, FULL), (1, Span("sliding", 128)), (1, Span("chunked", 512))]


def test_qwen_slides_only_if_it_says_so_and_from_a_layer_on():
    off = {"sliding_window": 4096, "max_window_layers": 6}
    assert spans(read(model_type="qwen2", **off)) == [(8, FULL)]
    assert spans(read(model_type="qwen2", use_sliding_window=False, **off)) == [(8, FULL)]
    on = spans(read(model_type="qwen2", use_sliding_window=True, **off))
    assert on == [(6, FULL), (2, Span("sliding", 4096))]


def test_chunks_are_where_the_rotary_embeddings_are():
    model = read(model_type="llama4_text")
    assert spans(model) == [(6, Span("chunked", 8192)), (2, FULL)]
    listed = read(model_type="llama4_text", no_rope_layers=[0, 1, 1, 1, 0, 1, 1, 1])
    assert spans(listed) == [(2, FULL), (6, Span("chunked", 8192))]
    assert spans(read(model_type="llama4_text", attention_chunk_size=None)) == [(8, FULL)]


def test_a_language_model_inside_a_multimodal_one_is_found():
    """The `config.json` of Gemma-3 4B, which leaves the numbers of heads to the class."""
    model = read_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "image_size": 896},
        },
        "gemma",
    )
    assert model.query_heads == 8
    assert model.layers == (
        Layers(29, Heads(4, 256), Span("sliding", 1024)),
        Layers(5, Heads(4, 256)),
    )
    assert len(model.notes) == 4


def test_an_older_wrapper_tells_the_type_of_what_it_wraps():
    inner = {key: value for key, value in PLAIN.items() if key != "model_type"}
    model = read_config({"model_type": "llama4", "text_config": inner}, "model")
    assert spans(model) == [(6, Span("chunked", 8192)), (2, FULL)]


def test_an_unknown_type_is_read_by_its_fields_and_that_is_said():
    model = read(model_type="new")
    assert model.layers == read().layers
    assert "'new' is not known" in model.notes[0]


def test_fields_that_are_off_do_not_matter():
    off = {"cross_attention_hidden_size": None, "mamba_layers": [], "use_cla": False, "swa_": 0}
    assert read(**off).layers == read().layers


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "model_type"])
def test_a_missing_field_is_named(field):
    config = {key: value for key, value in PLAIN.items() if key != field}
    with pytest.raises(SizingError, match=f"{field} is missing"):
        read_config(config, "model")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0: it must be a whole number"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000: more than"),
        ({"num_attention_heads": "16"}, 'num_attention_heads is "16"'),
        ({"num_attention_heads": True}, "num_attention_heads is true"),
        ({"num_key_value_heads": 4.0}, "num_key_value_heads is 4.0"),
        ({"num_key_value_heads": 5}, "must divide num_attention_heads, 16"),
        ({"num_key_value_heads": 32}, "must divide num_attention_heads, 16"),
        ({"model_type": "x", "num_key_value_heads": None}, "num_key_value_heads is missing"),
        ({"hidden_size": 1000}, "hidden_size, 1000, is no multiple"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"v_head_dim": 32}, "v_head_dim differs from head_dim"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"sliding_window": 4096}, "nor max_window_layers says which layers have it"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window is -1"),
        ({"use_sliding_window": "no"}, "use_sliding_window is"),
        (
            {"model_type": "gemma2", "sliding_window_pattern": "LLLG"},
            'sliding_window_pattern is "LLLG"',
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9},
            "max_window_layers is null",
        ),
        ({"attention_chunk_size": 8192}, "layer_types does not say where"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "no_rope_layers must say 0 or 1"),
        ({"layer_types": ["full_attention"]}, "the type of each of the 8 layers"),
        ({"layer_types": ["linear_attention"] * 8}, 'layer_types has "linear_attention"'),
        ({"layer_types": ["sliding_attention"] * 8}, "sliding_window is missing"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4: it may change what is cached"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"layers_block_type": ["mamba", "attention"]}, "layers_block_type"),
        ({"full_attention_interval": 4}, "full_attention_interval is 4"),
        ({"index_head_dim": 128}, "index_head_dim is 128"),
        ({"global_head_dim": 512}, "global_head_dim is 512"),
        ({"attn_type_list": [0, 1]}, "attn_type_list"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ({"text_config": 3}, "text_config is no object"),
    ],
)
def test_what_is_not_understood_is_refused(changes, why):
    with pytest.raises(SizingError, match=why):
        read(**changes)


def test_a_language_model_in_another_place_is_not_guessed_at():
    with pytest.raises(SizingError, match=r"language_config has one, but only text_config"):
        read_config({"model_type": "vl", "language_config": PLAIN}, "model")


@pytest.mark.parametrize("value", [None, 3, "x", [], [PLAIN]])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(SizingError, match="no object"):
        read_config(value, "model")


def test_a_folder_stands_for_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert read_file(tmp_path).layers == read_file(tmp_path / "config.json").layers


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", r"config.json:1: it is not JSON"),
        (b'{\n "a": 1,\n}', r"config.json:3: it is not JSON"),
        (b"\xff\xfe", r"not a text file in UTF-8"),
        (b"[" * 100_000, r"JSON that no config.json has"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"JSON that no config.json has"),
        (b"{}", r"config.json: model_type is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, why):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SizingError, match=why):
        read_file(path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(SizingError, match=r"config.json: it cannot be read: No such file"):
        read_file(tmp_path)
