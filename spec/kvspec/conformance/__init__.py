"""The conformance tests: `pytest --pyargs kvspec.conformance --allocator TARGET -k stateful`."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import Target, TargetError
from kvspec.suite.contracts import parse_contract, resolve

_NAMED = pytest.StashKey[Mapping[str, Target]]()


def option(config: pytest.Config, name: str) -> Any:
    """What an option of the plugin says."""
    return config.getoption(name)


def call_timeout_of(config: pytest.Config) -> float:
    """Seconds that one call may take. Raises `pytest.UsageError` for what is no such number."""
    seconds = option(config, "--call-timeout")
    if seconds is None:
        return DEFAULT_CALL_TIMEOUT
    if not 0 < seconds <= 86400:
        raise pytest.UsageError(f"--call-timeout: {seconds} is no number of seconds above 0")
    return float(seconds)


def named_targets(config: pytest.Config) -> Mapping[str, Target]:
    """The targets that `--allocator` names, each loaded once.

    Raises `pytest.UsageError` for the first that cannot be tested, or a contract that is none.
    """
    found = config.stash.get(_NAMED, None)
    if found is None:
        contract, timeout = option(config, "--contract"), call_timeout_of(config)
        try:
            if contract is not None:
                parse_contract(contract, Contract())
            found = {
                name: resolve(name, contract, timeout) for name in option(config, "--allocator")
            }
        except TargetError as error:
            raise pytest.UsageError(" ".join(str(error).split())) from None
        config.stash[_NAMED] = found
    return found
