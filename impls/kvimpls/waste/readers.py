"""Readers of the three formats in which request traces are published.

The format is told by the first line, not by the file's name. Every row must be readable: what
is not stops the reading, with the file and the line. Blank lines, and columns or keys that are
not named here, are passed over.

- *Azure* (AzurePublicDataset, LLM inference 2023): CSV with `TIMESTAMP` (wall time, up to nine
  fractional digits), `ContextTokens` and `GeneratedTokens`.
- *arXiv* (Vidur, processed traces): CSV with `num_prefill_tokens` and `num_decode_tokens`;
  no times.
- *Mooncake* (FAST'25 release): a JSON object a line, with `timestamp` (milliseconds),
  `input_length`, `output_length` and `hash_ids` (an id for each 512 tokens of the prompt).

A prompt has at least one token, an output may have none.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from kvimpls.waste.requests import NANOSECONDS, Trace, WasteError

PREFIX_BLOCK = 512
"""Tokens that an id of Mooncake's `hash_ids` stands for; the last of a prompt may have fewer."""

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
ARXIV = ("num_prefill_tokens", "num_decode_tokens")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?", re.ASCII)
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_EPOCH = datetime(1970, 1, 1)


class _Unreadable(Exception):
    """Why a line cannot be read."""


@contextmanager
def _line(path: Path, number: int) -> Iterator[None]:
    """Whatever cannot be read is in this line."""
    try:
        yield
    except _Unreadable as error:
        raise WasteError(f"{path}:{number}: {error}") from None


@frozen
class _Row:
    """One request as it was read; the time is in nanoseconds."""

    prompt: int
    output: int
    arrival: int | None = None
    blocks: tuple[int, ...] = ()


def read(path: Path, limit: int | None = None) -> Trace:
    """The requests of a file, or its first `limit` ones; later lines are then not looked at.

    Raises `WasteError`, with the file and the line, if anything cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = ((number, raw) for number, raw in enumerate(file, 1) if raw.strip())
            first = next(lines, None)
            if first is None:
                raise WasteError(f"{path}: the file is empty")
            with _line(path, first[0]):
                kind, parse, is_row = _format(_text(first[1]))
            rows = []
            for number, raw in islice(chain([first] if is_row else [], lines), limit):
                with _line(path, number):
                    rows.append(parse(_text(raw)))
    except OSError as error:
        raise WasteError(f"{path}: it cannot be read: {error.strerror}") from None
    if not rows:
        raise WasteError(f"{path}: the file has no requests")
    arrivals = [row.arrival for row in rows if row.arrival is not None]
    return Trace(
        name=path.name,
        kind=kind,
        prompts=tuple(row.prompt for row in rows),
        outputs=tuple(row.output for row in rows),
        arrivals=tuple(arrivals) or None,
        blocks=tuple(row.blocks for row in rows) if kind == "mooncake" else None,
    )


def _format(first: str) -> tuple[str, Callable[[str], _Row], bool]:
    """The name of the format, its parser of a line, and whether the first line is a row."""
    if first.lstrip().startswith("{"):
        return "mooncake", _mooncake, True
    columns = [column.strip() for column in _fields(first)]
    for kind, wanted, parse in (("azure", AZURE, _azure), ("arxiv", ARXIV, _arxiv)):
        if set(wanted) & set(columns):
            return kind, _by_column(columns, wanted, parse), False
    raise _Unreadable(
        f"no known format: neither the columns {', '.join(AZURE)}, nor {', '.join(ARXIV)}, "
        f"nor a JSON object with {', '.join(MOONCAKE)}"
    )


def _by_column(
    columns: Sequence[str], wanted: Sequence[str], parse: Callable[..., _Row]
) -> Callable[[str], _Row]:
    """A parser of a line, from one of the wanted fields."""
    missing = [column for column in wanted if column not in columns]
    if missing:
        _fail(f"missing {_columns(missing)}")
    twice = [column for column in wanted if columns.count(column) > 1]
    if twice:
        _fail(f"more than one {_columns(twice)}")
    places = [columns.index(column) for column in wanted]

    def of_line(line: str) -> _Row:
        fields = _fields(line)
        if len(fields) != len(columns):
            _fail(f"{len(fields)} fields, where the header has {len(columns)}")
        return parse(*(fields[place] for place in places))

    return of_line


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _azure(time: str, prompt: str, output: str) -> _Row:
    match = _TIME.fullmatch(time.strip())
    try:
        moment = datetime.fromisoformat(match[1]) if match else None
    except ValueError:
        moment = None
    if match is None or moment is None:
        _fail(f"TIMESTAMP is {time!r}, which is no time like 2023-11-16 18:15:46.6805900")
    since = moment - _EPOCH
    seconds = since.days * 86400 + since.seconds
    fraction = int((match[2] or "0").ljust(9, "0"))
    lengths = _number("ContextTokens", prompt, 1), _number("GeneratedTokens", output, 0)
    return _Row(*lengths, arrival=seconds * NANOSECONDS + fraction)


def _arxiv(prompt: str, output: str) -> _Row:
    return _Row(_number(ARXIV[0], prompt, 1), _number(ARXIV[1], output, 0))


def _mooncake(line: str) -> _Row:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        _fail(f"no JSON: {error}")
    if not isinstance(data, dict):
        _fail(f"a JSON {type(data).__name__}, where an object is needed")
    missing = [key for key in MOONCAKE if key not in data]
    if missing:
        _fail(f"missing {', '.join(missing)}")
    prompt = _whole("input_length", data["input_length"], 1)
    output = _whole("output_length", data["output_length"], 0)
    time = _whole("timestamp", data["timestamp"], 0)
    blocks = data["hash_ids"]
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        _fail("hash_ids is no list of whole numbers")
    needed = -(-prompt // PREFIX_BLOCK)
    if len(blocks) != needed:
        _fail(f"{len(blocks)} hash_ids, where a prompt of {prompt} tokens has {needed}")
    return _Row(prompt, output, time * (NANOSECONDS // 1000), tuple(blocks))


def _number(name: str, text: str, least: int) -> int:
    """A whole number of a CSV field."""
    text = text.strip()
    if not _WHOLE.fullmatch(text) or int(text) < least:
        _fail(f"{name} is {text!r}, which is no whole number of at least {least}")
    return int(text)


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number of a JSON object."""
    if type(value) is not int or value < least:
        _fail(f"{name} is {value!r:.40}, which is no whole number of at least {least}")
    return value


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        _fail(f"no CSV: {error}")


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        _fail("not UTF-8 text")


def _fail(reason: str) -> NoReturn:
    raise _Unreadable(reason)
