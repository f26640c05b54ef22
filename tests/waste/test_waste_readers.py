"""Traces are read, or the line that cannot be is named."""

from fractions import Fraction
from pathlib import Path

import pytest

from kvimpls.waste import Trace, WasteError, prefix_hits, read

SAMPLES = Path(__file__).parent / "samples"
SECOND = 10**9


def test_azure_is_read():
    """CRLF, no newline after the last row, seven digits of a second, over a leap day."""
    trace = read(SAMPLES / "azure.csv")
    assert (trace.name, trace.kind) == ("azure.csv", "azure")
    assert trace.prompts == (3, 5, 4, 6, 2)
    assert trace.outputs == (2, 4, 1, 3, 6)
    assert trace.arrivals is not None
    since = [time - trace.arrivals[0] for time in trace.arrivals]
    assert since == [0, SECOND // 2, SECOND, SECOND + 100, 86401 * SECOND + SECOND // 4]


def test_mooncake_is_read():
    """Milliseconds, and an id for each 512 tokens of the prompt."""
    trace = read(SAMPLES / "mooncake.jsonl")
    assert trace.kind == "mooncake"
    assert trace.prompts == (700, 1024, 1300, 90, 1536, 700)
    assert trace.outputs == (5, 3, 40, 1, 0, 7)
    assert trace.arrivals == (0, 0, 1500 * 10**6, 2 * SECOND, 2 * SECOND, 9 * SECOND)
    assert trace.blocks == ((0, 1), (0, 2), (0, 2, 3), (4,), (0, 2, 5), (0, 1))


def test_arxiv_is_read():
    """It has an order, and no times."""
    trace = read(SAMPLES / "worked-example.csv")
    assert trace.kind == "arxiv"
    assert (trace.prompts, trace.outputs) == ((3, 5, 4, 6, 2), (2, 4, 1, 3, 6))
    assert (trace.arrivals, trace.blocks) == (None, None)


@pytest.mark.parametrize("name", ["azure.csv", "mooncake.jsonl", "worked-example.csv"])
def test_a_limit_takes_the_head(name):
    """As many requests as asked for, or all there are."""
    whole = read(SAMPLES / name)
    assert read(SAMPLES / name, 2).prompts == whole.prompts[:2]
    assert read(SAMPLES / name, 99) == whole


def test_a_head_does_not_look_at_the_rest(tmp_path):
    """What is beyond the limit may be anything."""
    path = tmp_path / "t.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n1,2\nrubbish\n", encoding="utf-8")
    assert len(read(path, 1)) == 1


def test_columns_may_come_in_any_order_with_others(tmp_path):
    """A byte order mark, quotes, blank lines and blanks around numbers are passed over."""
    path = tmp_path / "t.csv"
    text = '\ufeffx,num_decode_tokens,"num_prefill_tokens"\n\n"a,b", 2 ,1\n\n'
    path.write_text(text, encoding="utf-8")
    trace = read(path)
    assert (trace.prompts, trace.outputs) == ((1,), (2,))


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ARXIV = b"num_prefill_tokens,num_decode_tokens\n"
TIME = b"2023-11-16 18:15:46.6805900"
MOONCAKE = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}'


def mooncake(time="0", prompt="600", output="1", ids="[0, 1]"):
    good = MOONCAKE % ("0", "600", "1", "[0, 1]")
    return f"{good}\n{MOONCAKE % (time, prompt, output, ids)}\n".encode()


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", None, "the file is empty"),
        (b"\n \r\n", None, "the file is empty"),
        (ARXIV, None, "the file has no requests"),
        (b"a,b\n1,2\n", 1, "no known format: neither the columns TIMESTAMP, ContextTokens"),
        (b"[1]\n", 1, "no known format"),
        (b"TIMESTAMP,ContextTokens\n", 1, "missing column GeneratedTokens"),
        (b"ContextTokens\n", 1, "missing columns TIMESTAMP, GeneratedTokens"),
        (b"num_prefill_tokens\n", 1, "missing column num_decode_tokens"),
        (ARXIV.strip() + b",num_decode_tokens\n", 1, "more than one column num_decode_tokens"),
        (ARXIV + b"1\n", 2, "1 fields, where the header has 2"),
        (ARXIV + b"1,2\n1,2,3\n", 3, "3 fields, where the header has 2"),
        (ARXIV + b"1,2\n\n1,-2\n", 4, "num_decode_tokens is '-2', which is no whole number"),
        (ARXIV + b"0,2\n", 2, "num_prefill_tokens is '0', which is no whole number of at least 1"),
        (ARXIV + b"1.5,2\n", 2, "num_prefill_tokens is '1.5'"),
        (ARXIV + "١,2\n".encode(), 2, "num_prefill_tokens is '١'"),
        (ARXIV + b"1" * 5000 + b",2\n", 2, "num_prefill_tokens is '1111"),
        (ARXIV + b',\n"1,2\n', 2, "num_prefill_tokens is ''"),
        (ARXIV + b'"1,2\n', 2, "no CSV: unexpected end of data"),
        (ARXIV + b"1,\xff\n", 2, "not UTF-8 text"),
        (AZURE + TIME + b",1,x\r\n", 2, "GeneratedTokens is 'x'"),
        (AZURE + b"yesterday,1,1\r\n", 2, "TIMESTAMP is 'yesterday', which is no time like"),
        (AZURE + b"2023-02-29 00:00:00.0,1,1\r\n", 2, "TIMESTAMP is '2023-02-29 00:00:00.0'"),
        (mooncake() + b"{\n", 3, "no JSON: "),
        (mooncake() + b"7\n", 3, "a JSON int, where an object is needed"),
        (mooncake() + b'{"timestamp": 0}\n', 3, "missing input_length, output_length, hash_ids"),
        (mooncake() + b"[" * 100_000, 3, "no JSON: "),
        (mooncake(prompt="0", ids="[]"), 2, "input_length is 0, which is no whole number"),
        (mooncake(prompt="true", ids="[1]"), 2, "input_length is True"),
        (mooncake(output="-1"), 2, "output_length is -1"),
        (mooncake(output="1.0"), 2, "output_length is 1.0"),
        (mooncake(time='"0"'), 2, "timestamp is '0'"),
        (mooncake(ids="[0]"), 2, "1 hash_ids, where a prompt of 600 tokens has 2"),
        (mooncake(ids="[0, null]"), 2, "hash_ids is no list of whole numbers"),
        (mooncake(ids="12"), 2, "hash_ids is no list of whole numbers"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(tmp_path, content, line, reason):
    """One clear line, whatever is wrong."""
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(WasteError) as error:
        read(path)
    text = str(error.value)
    assert text.startswith(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
    assert "\n" not in text


@pytest.mark.parametrize("place", ["missing.csv", "."])
def test_a_file_that_is_not_there_is_named(tmp_path, place):
    """Nor is a folder a trace."""
    with pytest.raises(WasteError, match="it cannot be read: "):
        read(tmp_path / place)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        ("0.5", (0, 1, 2, 3, 172803)),
        ("1", (0, 1, 1, 2, 86402)),
        ("100000", (0, 1, 1, 1, 1)),
        ("0.0000001", (0, 5 * 10**6, 10**7, 10**7 + 1, 864_012_500_000)),
    ],
)
def test_a_request_arrives_with_the_first_step_after_it(seconds, steps):
    """Exactly, not by floating point."""
    assert read(SAMPLES / "azure.csv").arrival_steps(Fraction(seconds)) == steps


def test_no_times_no_steps():
    """A trace with an order only cannot be timed."""
    with pytest.raises(WasteError, match=r"worked-example\.csv: the requests have no arrival"):
        read(SAMPLES / "worked-example.csv").arrival_steps(Fraction(1))


def test_prefix_hits_of_the_sample():
    """By hand: whole leading blocks of 512 tokens, the last one with what is left of it."""
    trace = read(SAMPLES / "mooncake.jsonl")
    hits = prefix_hits(trace, 10**6)
    assert hits is not None
    # Of the last prompt's 700 tokens the second block has 188.
    assert hits.infinite == 0 + 512 + 1024 + 0 + 1024 + 700
    assert hits.lru == hits.infinite
    assert hits.prompt_tokens == sum(trace.prompts)


@pytest.mark.parametrize(
    ("capacity", "lru"),
    [
        (511, 0),
        (512, 512 + 512 + 0 + 0 + 512),  # cached are 0, 0, 0, 4, 0
        (1024, 512 + 1024 + 0 + 512 + 512),  # 0 1, 0 2, 0 2, 4 0, 0 2
        (1536, 512 + 1024 + 0 + 1024 + 512),  # 0 1, 0 2 1, 0 2 3, 4 0 2, 0 2 5
    ],
)
def test_prefix_hits_of_a_small_cache(capacity, lru):
    """The least recently used block goes, within a prompt the last one first."""
    hits = prefix_hits(read(SAMPLES / "mooncake.jsonl"), capacity)
    assert hits is not None
    assert hits.lru == lru


def test_no_ids_no_prefix_hits():
    """Only Mooncake's traces have ids."""
    assert prefix_hits(Trace("t", "arxiv", (1,), (1,)), 512) is None
