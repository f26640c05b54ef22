"""Traces are data: whole they come back as they were, and anything else is one clear line."""

import contextlib
import json
import sys

import pytest
from hostile import answering, doing, raising

from kvimpls.museum import EXHIBITS
from kvimpls.torch_paged import TorchPaged
from kvimpls.unusual import FirstBlockOne, Granules, Prealloc
from kvspec.driver.driver import NotBuilt
from kvspec.engines.replay import replay
from kvspec.suite.check import check_allocator
from kvspec.traces.table import as_text
from kvspec.traces.trace import FORMAT, TraceError, from_json, load, save, to_json


def trace_of(make, **options):
    return check_allocator(make, profile="quick", **options).trace


class BrokenStore(TorchPaged):
    def read(self, seq):
        return super().read(seq)[:, ::-1].copy()


def odd(make):
    """An allocator with a contract of its own that has a fault."""

    class Odd(make):
        def num_free_blocks(self, pool=0):
            return super().num_free_blocks(pool) - (len(self._sequences) == 2)

    return Odd


FAULTY = (
    *EXHIBITS,
    BrokenStore,
    *(odd(make) for make in (FirstBlockOne, Granules, Prealloc)),
    raising("append", KeyError("k")),
    answering("num_free_blocks", 1.5),
    doing("block_table", lambda table: table[:1]),
)


@pytest.mark.parametrize("make", FAULTY, ids=lambda make: make.__name__)
def test_a_trace_comes_back_as_it_was(make, tmp_path):
    """Through text and file, with its outcomes; and then it replays to the byte."""
    trace = trace_of(make)
    text = to_json(trace)
    assert from_json(text) == trace
    assert to_json(from_json(text)) == text
    save(trace, tmp_path / "deep" / "trace.json")
    assert load(tmp_path / "deep" / "trace.json") == trace
    again = replay(make, from_json(text))
    assert (again.steps, again.breaches) == (trace.steps, trace.breaches)


@pytest.fixture(scope="module")
def data():
    """A trace as the JSON that it is in."""
    return json.loads(to_json(trace_of(EXHIBITS[0])))


def refused(text):
    """The one line for which `text` is no trace."""
    with pytest.raises(TraceError) as caught:
        from_json(text)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500
    return line


NONE = {
    "nothing": "",
    "white space": " \n ",
    "text": "no trace",
    "code": "__import__('os').abort()",
    "XML": "<trace/>",
    "two values": "{} {}",
    "a list": "[]",
    "an object": "{}",
    "null": "null",
    "a number": "1",
    "NaN": "NaN",
    "a package": '{"name": "kvspec", "version": "0.1.0"}',
    "only a format": json.dumps({"format": FORMAT}),
    "no known format": '{"format": null}',
    "a format of text": json.dumps({"format": str(FORMAT)}),
    "a large number": '{"format": 1' + "0" * 9999 + "}",
    "half a surrogate pair": '"\\ud800"',
    "zero bytes": "\0" * 100,
    "deep": "[" * 200_000,
    "deep and whole": "[" * 200_000 + "]" * 200_000,
    "deep in a trace": '{"format": 1, "steps": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "large": json.dumps({"format": FORMAT, "steps": list(range(10**5))}),
    "large garbage": "x" * 10**7,
    "a large text": json.dumps({"format": FORMAT, "allocator": "x" * 10**6}),
    "a large call": json.dumps({"format": FORMAT, "x" * 10**6: 0}),
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_what_is_no_trace_is_one_clear_line(text):
    """Anything else than a trace is a TraceError."""
    assert refused(text)


def test_a_trace_that_was_cut_off_is_refused(data):
    """Wherever a file ends too early, it says so."""
    text = json.dumps(data)
    for end in range(0, len(text), 97):
        assert "cut off" in refused(text[:end])


def test_a_later_format_is_refused(data):
    """A trace of a later version is named as one."""
    assert "a later kvspec may read it" in refused(json.dumps({**data, "format": FORMAT + 1}))


def places(data, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*path, key))


def changed(data, path, value):
    """The JSON value with another one at a place."""
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


def value_at(data, path):
    for key in path:
        data = data[key]
    return data


ODD_VALUES = (None, True, -1, 1.5, 10**30, "x", "", [], {}, [[]], {"call": "append"}, ["allocate"])


def test_a_wrong_value_anywhere_is_refused_or_harmless(data):
    """A value of another type is no trace, or one that can be shown and replayed like any other."""
    for path in places(data):
        for value in ODD_VALUES:
            if value == value_at(data, path):
                continue
            with contextlib.suppress(TraceError, NotBuilt):  # refused by us, or the allocator
                trace = from_json(json.dumps(changed(data, path, value)))
                assert as_text(trace)
                assert to_json(replay(EXHIBITS[0], trace))


def test_an_unknown_key_anywhere_is_refused(data):
    """A key that is not of the format is a typing error, or of a later version."""
    for path in places(data):
        inside = value_at(data, path)
        if isinstance(inside, dict) and "tables" not in path and "readings" not in path:
            assert refused(json.dumps(changed(data, path, {**inside, "surprise": 1})))


def test_a_missing_key_of_a_step_is_refused(data):
    """A call without its arguments is none."""
    for key in ("call", "seq", "num_tokens"):
        operation = dict(data["steps"][0]["operation"])
        del operation[key]
        assert refused(json.dumps(changed(data, ("steps", 0, "operation"), operation)))


def test_an_unknown_call_is_named(data):
    """A call of a later version, or of nobody's, is refused by its name."""
    assert "defragment" in refused(
        json.dumps(changed(data, ("steps", 0, "operation", "call"), "defragment"))
    )


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("missing.json", None, "it cannot be read"),
        ("folder", ..., "it cannot be read"),
        ("bytes.json", b"\xff\xfe\x00", "not"),
        ("empty.json", b"", "it is not JSON"),
    ],
)
def test_a_file_that_holds_none_is_named(tmp_path, name, content, text):
    """The line begins with the file."""
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_runs_nothing_that_a_trace_names(data, tmp_path, monkeypatch):
    """The allocator's name is for the reader: it is neither imported nor called."""
    (tmp_path / "bomb.py").write_text("import sys\nsys.bomb_went_off = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("bomb:make", "bomb", "bomb.py:make", f"{tmp_path}/bomb.py:make", "\x1b[31m[/red]"):
        trace = from_json(json.dumps({**data, "allocator": name}))
        assert trace.allocator == name
        assert as_text(trace)
        assert replay(EXHIBITS[0], trace).law == trace.law
    assert not hasattr(sys, "bomb_went_off")
    assert "bomb" not in sys.modules
