"""The arithmetic against calculations by hand, written out with their numbers."""

import pytest

from kvspec.sizing import (
    Architecture,
    Element,
    Heads,
    Latent,
    Layers,
    Measure,
    Scales,
    SizingError,
    Slope,
    Span,
)
from kvspec.sizing.element import element


def model(*layers, heads=32):
    return Architecture("model", heads, layers)


def test_multi_head_attention_stores_two_vectors_a_head():
    """Phi-3.5-mini: 32 layers × 2 × 32 heads × 96 elements × 2 bytes."""
    measure = Measure(model(Layers(32, Heads(32, 96))))
    assert measure.token_bytes == 32 * 2 * 32 * 96 * 2 == 393_216


def test_grouped_query_attention_stores_them_for_its_kv_heads_only():
    """Llama-3-8B: 8 of 32 heads, so a quarter of what MHA would take."""
    gqa = Measure(model(Layers(32, Heads(8, 128))))
    mha = Measure(model(Layers(32, Heads(32, 128))))
    assert gqa.token_bytes == 32 * 2 * 8 * 128 * 2 == 131_072
    assert 4 * gqa.token_bytes == mha.token_bytes


def test_multi_query_attention_stores_one_head():
    """Gemma-3 1B: 26 layers × 2 × 1 head × 256 × 2 bytes."""
    assert Measure(model(Layers(26, Heads(1, 256)), heads=4)).token_bytes == 26 * 2 * 256 * 2


def test_a_latent_is_stored_once_and_without_the_factor_2():
    """DeepSeek-V2-Lite: 27 layers × (512 + 64) × 2 bytes."""
    assert Measure(model(Layers(27, Latent(512, 64)))).token_bytes == 27 * 576 * 2 == 31_104


def test_a_sliding_window_grows_up_to_the_window_and_then_not():
    """Mistral-7B v0.1: 131,072 bytes a token, at most 4096 tokens: 512 MiB for ever."""
    measure = Measure(model(Layers(32, Heads(8, 128), Span("sliding", 4096))))
    assert measure.sequence_bytes(4095) == 4095 * 131_072
    assert measure.sequence_bytes(4096) == measure.sequence_bytes(1_000_000) == 512 << 20
    assert measure.slopes() == (Slope(1, 4096, 131_072), Slope(4097, None, 0))


def test_a_hybrid_has_two_slopes():
    """Gemma-3 27B: 2 × 16 × 128 × 2 = 8192 bytes a token and layer; 62 layers, then 10."""
    storage = Heads(16, 128)
    measure = Measure(model(Layers(52, storage, Span("sliding", 1024)), Layers(10, storage)))
    assert measure.slopes() == (Slope(1, 1024, 62 * 8192), Slope(1025, None, 10 * 8192))
    assert measure.sequence_bytes(8192) == 52 * 1024 * 8192 + 10 * 8192 * 8192
    assert measure.unwindowed_bytes(8192) == 62 * 8192 * 8192


def test_two_windows_have_three_slopes():
    layers = [Layers(1, Heads(1, 8), Span("sliding", n)) for n in (4, 9)]
    measure = Measure(model(*layers, Layers(1, Heads(1, 8))))
    assert [(s.first, s.last, s.token_bytes) for s in measure.slopes()] == [
        (1, 4, 96),
        (5, 9, 64),
        (10, None, 32),
    ]


def test_chunked_layers_need_at_most_a_chunk():
    """Llama-4 Scout: 36 of 48 layers in chunks of 8192; 2 × 8 × 128 × 2 = 4096 bytes a layer."""
    storage = Heads(8, 128)
    measure = Measure(
        model(Layers(36, storage, Span("chunked", 8192)), Layers(12, storage), heads=40)
    )
    assert measure.token_bytes == 48 * 4096
    assert measure.sequence_bytes(1 << 20) == 36 * 4096 * 8192 + 12 * 4096 * (1 << 20)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bf16", 16), ("fp16", 16), ("fp32", 32), ("fp8", 8), ("int8", 8)]
)
def test_an_element_takes_its_bits(dtype, bits):
    assert 8 * Element(dtype).vector_bytes(128) == 128 * bits


def test_four_bits_are_packed_and_rounded_up_a_vector():
    assert [Element("int4").vector_bytes(dim) for dim in (1, 2, 3, 128)] == [1, 1, 2, 64]


def test_scales_a_layer_take_nothing_of_the_pool():
    """fp8 as vLLM has it: half of bf16, to the byte."""
    assert element("fp8").vector_bytes(128) == 128


def test_scales_a_head_are_one_for_the_key_and_one_for_the_value():
    """vLLM's int8_per_token_head: 2 × 8 heads × (128 + 4) bytes a token and layer."""
    measure = Measure(model(Layers(1, Heads(8, 128))), element("int8"))
    assert measure.token_bytes == 2 * 8 * (128 + 4)


def test_a_latent_has_one_scale():
    assert Measure(model(Layers(1, Latent(512, 64))), element("int8")).token_bytes == 576 + 4


def test_scales_a_group_round_up_to_whole_groups():
    """llama.cpp's q8_0 has 34 bytes for 32 elements, q4_0 has 18; 100 elements are 4 groups."""
    q8, q4 = (Element(kind, Scales("group", 2, group=32)) for kind in ("int8", "int4"))
    assert (q8.vector_bytes(32), q4.vector_bytes(32)) == (34, 18)
    assert (q8.vector_bytes(100), q4.vector_bytes(100)) == (100 + 4 * 2, 50 + 4 * 2)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_kv_heads_are_divided_among_ranks(ranks):
    whole = model(Layers(32, Heads(8, 128)))
    assert ranks * Measure(whole, ranks=ranks).token_bytes == Measure(whole).token_bytes


@pytest.mark.parametrize("ranks", [16, 32])
def test_fewer_kv_heads_than_ranks_are_replicated(ranks):
    """A rank cannot hold less than one head: 32 layers × 2 × 128 × 2 bytes."""
    assert Measure(model(Layers(32, Heads(8, 128))), ranks=ranks).token_bytes == 32 * 512


def test_a_latent_is_on_every_rank():
    lite = model(Layers(27, Latent(512, 64)), heads=16)
    assert Measure(lite, ranks=16).token_bytes == Measure(lite).token_bytes


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "why"),
    [
        (32, 8, 3, "32 query heads, which 3 ranks cannot share equally"),
        (40, 8, 5, "8 KV heads, which 5 ranks can neither share nor replicate equally"),
        (4, 1, 8, "4 query heads, which 8 ranks"),
    ],
)
def test_heads_that_do_not_divide_are_refused(heads, kv_heads, ranks, why):
    """With 40 query heads, 8 KV heads and 5 ranks some ranks would need 2 KV heads, others 3."""
    with pytest.raises(SizingError, match=why):
        Measure(model(Layers(1, Heads(kv_heads, 64)), heads=heads), ranks=ranks)


def test_sequences_have_whole_blocks():
    """1000 tokens take 63 blocks of 16; a block of 1 MiB: 16 sequences in 1 GiB, not 16.4."""
    measure = Measure(model(Layers(16, Heads(8, 128))))
    assert measure.block_bytes(16) == 1 << 20
    assert measure.blocks_bytes(1000, 16) == 63 << 20
    assert measure.fit(1 << 30, 1000, 16) == 1024 // 63 == 16


def test_a_window_holds_a_block_more_than_it_fills():
    """4096 tokens fill 256 blocks of 16 and touch 257, unless they begin where a block does."""
    measure = Measure(model(Layers(1, Heads(1, 8), Span("sliding", 4096))))
    assert measure.blocks_bytes(100_000, 16) == 257 * 16 * 32
    assert measure.blocks_bytes(4096, 16) == 256 * 16 * 32
    assert measure.blocks_bytes(4097, 16) == 257 * 16 * 32


def test_waste_of_a_block_size():
    """Blocks of 16 of Llama-3-8B: at most 15 tokens, 7.5 on average, of 131,072 bytes."""
    waste = Measure(model(Layers(32, Heads(8, 128)))).waste(16)
    assert (waste.tail_tokens_worst, waste.tail_tokens_twice_mean) == (15, 15)
    assert (waste.tail_bytes_worst, waste.tail_bytes_twice_mean) == (15 << 17, 15 << 17)
    assert (waste.stale_bytes_worst, waste.stale_bytes_twice_mean) == (0, 0)


def test_windows_also_waste_the_beginning_of_their_oldest_block():
    window, chunk = (
        Measure(model(Layers(1, Heads(1, 8), Span(kind, 64)))).waste(16)
        for kind in ("sliding", "chunked")
    )
    assert (window.stale_bytes_worst, window.stale_bytes_twice_mean) == (15 * 32, 15 * 32)
    assert (chunk.stale_bytes_worst, chunk.stale_bytes_twice_mean) == (0, 0)


def test_the_kind_of_attention_is_named():
    kinds = {Heads(32, 8): "MHA", Heads(8, 8): "GQA", Heads(1, 8): "MQA", Latent(8, 8): "MLA"}
    for storage, name in kinds.items():
        assert model(Layers(1, storage)).attention == name
