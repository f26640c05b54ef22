"""What must hold for every model, and the block arithmetic against counting."""

from hypothesis import given
from hypothesis import strategies as st

from kvspec.sizing import Architecture, Heads, Latent, Layers, Measure, Span
from kvspec.sizing.element import element

LENGTHS = st.integers(1, 5000)
BLOCK_SIZES = st.integers(1, 64)
WINDOWS = st.integers(1, 300)


@st.composite
def spans(draw):
    kind = draw(st.sampled_from(["full", "sliding", "chunked"]))
    return Span() if kind == "full" else Span(kind, draw(WINDOWS))


@st.composite
def models(draw, span=None):
    """Models of up to three kinds of layers, whose heads two powers of two describe."""
    query = draw(st.integers(0, 5))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        storage = draw(
            st.one_of(
                st.builds(Heads, st.just(1 << draw(st.integers(0, query))), st.integers(1, 130)),
                st.builds(Latent, st.integers(1, 600), st.integers(1, 70)),
            )
        )
        layers.append(Layers(draw(st.integers(1, 60)), storage, span or draw(spans())))
    return Architecture("model", 1 << query, tuple(layers))


@st.composite
def elements(draw):
    dtype = draw(st.sampled_from(["bf16", "fp32", "fp8", "int8", "int4"]))
    if dtype in ("bf16", "fp32"):
        return element(dtype)
    scales = draw(st.sampled_from(["layer", "head", "group:32", "group:7"]))
    return element(dtype, scales, None if scales == "layer" else draw(st.integers(1, 8)))


@st.composite
def measures(draw, span=None):
    model = draw(models(span))
    ranks = 1 << draw(st.integers(0, model.query_heads.bit_length() - 1))
    return Measure(model, draw(elements()), ranks)


@given(measures(), LENGTHS, LENGTHS)
def test_longer_sequences_never_take_less(measure, one, other):
    short, long = sorted((one, other))
    assert 0 < measure.sequence_bytes(short) <= measure.sequence_bytes(long)


@given(measures(Span()), LENGTHS, LENGTHS)
def test_full_attention_is_linear(measure, one, other):
    assert measure.sequence_bytes(one) == one * measure.token_bytes
    assert measure.sequence_bytes(one + other) == sum(map(measure.sequence_bytes, (one, other)))


@given(st.data(), WINDOWS, LENGTHS)
def test_windows_are_flat_beyond_the_window(data, window, beyond):
    span = Span(data.draw(st.sampled_from(["sliding", "chunked"])), window)
    measure = data.draw(measures(span))
    assert measure.sequence_bytes(window) == window * measure.token_bytes
    assert measure.sequence_bytes(window + beyond) == measure.sequence_bytes(window)
    assert measure.slopes()[-1].token_bytes == 0


@given(measures(), LENGTHS)
def test_slopes_add_up_to_the_sequence(measure, length):
    total = sum(
        slope.token_bytes * max(0, min(length, slope.last or length) - slope.first + 1)
        for slope in measure.slopes()
    )
    assert total == measure.sequence_bytes(length)


@given(measures(), LENGTHS)
def test_no_window_takes_more_than_no_window(measure, length):
    assert measure.sequence_bytes(length) <= measure.unwindowed_bytes(length)


@given(models(), elements(), st.data(), LENGTHS)
def test_all_ranks_hold_at_least_the_whole(model, kind, data, length):
    ranks = 1 << data.draw(st.integers(0, model.query_heads.bit_length() - 1))
    whole = Measure(model, kind).sequence_bytes(length)
    together = ranks * Measure(model, kind, ranks).sequence_bytes(length)
    divisible = all(
        isinstance(group.storage, Heads) and group.storage.kv_heads % ranks == 0
        for group in model.layers
    )
    assert together == whole if divisible or ranks == 1 else together > whole


@given(measures(), st.integers(1, 1 << 45), LENGTHS, BLOCK_SIZES)
def test_what_fits_fits_and_one_more_does_not(measure, memory, length, block_size):
    each = measure.blocks_bytes(length, block_size)
    count = measure.fit(memory, length, block_size)
    assert count * each <= memory < (count + 1) * each
    assert count * measure.sequence_bytes(length) <= memory


@given(measures(), LENGTHS, BLOCK_SIZES)
def test_blocks_hold_the_sequence(measure, length, block_size):
    in_blocks = measure.blocks_bytes(length, block_size)
    assert in_blocks >= measure.sequence_bytes(length)
    assert measure.blocks_bytes(length, 1) == measure.sequence_bytes(length)


def held(span, length, block_size):
    """The blocks that a sequence of this length holds, counted slot by slot."""
    first = 0
    if span.kind == "sliding":
        first = max(0, length - span.tokens)
    if span.kind == "chunked":
        first = (length - 1) // span.tokens * span.tokens
    return {position // block_size for position in range(first, length)}


@given(spans(), st.integers(1, 400), st.integers(1, 24))
def test_the_most_blocks_are_those_of_some_length(span, length, block_size):
    counted = max(len(held(span, n, block_size)) for n in range(1, length + 1))
    claimed = span.blocks(length, block_size)
    exact = span.kind != "chunked" or span.tokens % block_size == 0
    assert claimed == counted if exact else claimed >= counted


@given(spans(), st.integers(1, 24))
def test_waste_is_what_counting_finds(span, block_size):
    """Over all lengths from the window on, for as long as the pattern needs to repeat."""
    period = block_size * (span.tokens if span.kind == "chunked" else 1)
    start = 2 * (span.tokens or 1)
    tails, stales = [], []
    for length in range(start, start + period):
        first = 0 if span.tokens is None else length - span.tokens
        if span.kind == "chunked":
            first = (length - 1) // span.tokens * span.tokens
        tails.append(-length % block_size)
        stales.append(first % block_size)
    waste = Measure(Architecture("model", 1, (Layers(1, Latent(1, 1), span),))).waste(block_size)
    a_token = 4
    assert waste.tail_tokens_worst == max(tails)
    assert waste.tail_tokens_twice_mean * period == 2 * sum(tails)
    assert waste.tail_bytes_worst == max(tails) * a_token
    assert waste.tail_bytes_twice_mean * period == 2 * sum(tails) * a_token
    assert waste.stale_bytes_worst == max(stales) * a_token
    assert waste.stale_bytes_twice_mean * period == 2 * sum(stales) * a_token
