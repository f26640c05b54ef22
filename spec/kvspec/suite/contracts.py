"""Contracts as the command line gives them: a name, a JSON file, or fields."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve

from kvspec.contract import Contract, Geometries, Reservation
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, TargetError, load, promised, target
from kvspec.traces.trace import CONVERTER, parse_json, reason

NAMED: dict[str, Contract] = {"paged": Contract()}
"""The contracts that have a name: `paged` is the strict one."""

_KINDS = {kind.__name__: kind for kind in Reservation.__args__}

_PYTHON = {"True": True, "False": False, "None": None}


class ContractError(TargetError, ValueError):
    """A text that names no contract; it says what is wrong and what to try."""


def resolve(
    text: str, contract: str | None = None, timeout: float = DEFAULT_CALL_TIMEOUT
) -> Target:
    """The target that `text` names, with its own contract or the one that `contract` gives it.

    Raises `TargetError` where there is nothing to check, or no such contract.
    """
    factory = load(text)
    promise = promised(factory, text)
    if contract is not None:
        promise = parse_contract(contract, promise)
    return target(factory, text, promise, timeout)


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
    if text.endswith(".json") and ("=" not in text or Path(text).is_file()):
        return _keeping_geometries(_from_file(Path(text)), promised)
    if "=" in text:
        data = CONVERTER.unstructure(promised)
        for part in _parts(text):
            name, equals, value = part.partition("=")
            if not equals:
                raise ContractError(f"contract {text}: {part!r} is no field=value")
            _set(data, name.strip(), value.strip(), text)
        return _structured(data, text)
    raise ContractError(
        f"contract {text!r} is no name ({', '.join(NAMED)}), no file ending in .json, and no "
        "field=value"
    )


def _parts(text: str) -> list[str]:
    """The fields of `text`: split at its commas, but for those between brackets."""
    return [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", text)]


def _keeping_geometries(contract: Contract, promised: Contract) -> Contract:
    if contract.geometries != Geometries():
        return contract
    try:
        return evolve(contract, geometries=promised.geometries)
    except ValueError as error:
        raise ContractError(f"contract: {error}") from None


def _set(data: dict[str, Any], name: str, value: str, text: str) -> None:
    head, dot, inner = name.partition(".")
    names = [f.name for f in attrs.fields(Contract)]
    if head not in names:
        raise ContractError(f"a contract has no field {head!r}; it has {', '.join(names)}")
    if dot and head != "geometries":
        raise ContractError(f"contract {text}: {head} has no fields of its own")
    if head == "reservation":
        data[head] = _reservation(value, text)
    elif head == "capabilities":
        data[head] = _capabilities(value, text)
    elif dot:
        data[head] = {**data[head], inner: _value(value)}
    else:
        data[head] = _value(value)


def _capabilities(value: str, text: str) -> list[str] | None:
    if value in ("null", "None"):
        return None
    words = [word.strip() for word in value.split("+")]
    if not all(words):
        raise ContractError(f"contract {text}: write them as in capabilities=core+sharing")
    return words


def _reservation(value: str, text: str) -> dict[str, Any]:
    kind, colon, tokens = value.partition(":")
    if kind not in _KINDS:
        raise ContractError(
            f"contract {text}: there is no reservation {kind!r}; there are {', '.join(_KINDS)}"
        )
    if bool(colon) != bool(attrs.fields_dict(_KINDS[kind])):
        wanted = f"write {kind} alone" if colon else f"write {kind}:TOKENS, as in {kind}:256"
        raise ContractError(f"contract {text}: {wanted}")
    return {"_type": kind, **({"tokens": _value(tokens)} if colon else {})}


def _value(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _from_file(path: Path) -> Contract:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContractError(f"contract {path}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ContractError(f"contract {path}: it is not JSON: it is not text") from None
    except ValueError as error:
        raise ContractError(f"contract {path}: {error}") from None
    if not isinstance(data, dict):
        raise ContractError(f"contract {path}: it is JSON, but no object with fields")
    return _structured(data, str(path))


def _structured(data: Any, what: str) -> Contract:
    try:
        return CONVERTER.structure(data, Contract)
    except Exception as error:  # whatever cattrs or a validator says of it
        raise ContractError(f"contract {what}: {reason(error)}") from None
