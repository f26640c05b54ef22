"""Contracts as the command line gives them: a name, a JSON file, or fields."""

import json
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve

from kvspec.contract import Contract, Geometries
from kvspec.traces.trace import CONVERTER

NAMED: dict[str, Contract] = {"paged": Contract()}
"""The contracts that have a name: `paged` is the strict one."""


class ContractError(ValueError):
    """A text that names no contract; it says what is wrong and what to try."""


def parse_contract(text: str, promised: Contract) -> Contract:
    """The contract that `text` gives to an allocator that has `promised` one of its own.

    A name or a JSON file replaces the promise, but for the geometries that the allocator can
    be built with, where it does not say any; `field=value,...` changes fields of the promise.
    A value is JSON, or a bare word; a reservation is its kind, as in `reservation=Granular:256`;
    capabilities are joined by `+`.

    >>> parse_contract("eager_fork=tail,first_block=1", Contract()).relaxations()
    ('eager_fork', 'first_block')
    """
    if text in NAMED:
        return _keeping_geometries(NAMED[text], promised)
    if text.endswith(".json"):
        return _keeping_geometries(_from_file(Path(text)), promised)
    if "=" not in text:
        raise ContractError(
            f"contract {text!r} is no name ({', '.join(NAMED)}), no file ending in .json, and no "
            "field=value"
        )
    data = CONVERTER.unstructure(promised)
    for part in text.split(","):
        name, _, value = part.partition("=")
        _set(data, name.strip(), value.strip())
    return _structured(data, text)


def _keeping_geometries(contract: Contract, promised: Contract) -> Contract:
    if contract.geometries == Geometries():
        return evolve(contract, geometries=promised.geometries)
    return contract


def _set(data: dict[str, Any], name: str, value: str) -> None:
    names = [f.name for f in attrs.fields(Contract)]
    head, _, inner = name.partition(".")
    if head not in names:
        raise ContractError(f"a contract has no field {name!r}; it has {', '.join(names)}")
    if head == "reservation":
        kind, _, tokens = value.partition(":")
        data[head] = {"_type": kind, **({"tokens": _value(tokens)} if tokens else {})}
    elif head == "capabilities":
        data[head] = value.split("+")
    elif inner:
        data[head][inner] = _value(value)
    else:
        data[head] = _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _from_file(path: Path) -> Contract:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContractError(f"contract {path}: it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ContractError(f"contract {path}: it is not JSON: {error}") from None
    return _structured(data, str(path))


def _structured(data: Any, what: str) -> Contract:
    try:
        return CONVERTER.structure(data, Contract)
    except Exception as error:  # whatever cattrs or a validator says of it
        reason: BaseException = error
        while isinstance(reason, BaseExceptionGroup) and reason.exceptions:
            reason = reason.exceptions[0]
        text = str(reason).split("\n")[0]
        raise ContractError(f"contract {what}: {type(reason).__name__}: {text}") from None
