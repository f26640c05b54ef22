"""One test for each allocator that was named, or for each registered one."""

from pathlib import Path

import pytest

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.target import (
    NotInstalled,
    Target,
    TargetError,
    load,
    promised,
    registered,
    target,
)
from kvspec.suite.contracts import ContractError, parse_contract


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise by target."""
    if "allocator_name" in metafunc.fixturenames:
        named = metafunc.config.getoption("--allocator")
        metafunc.parametrize("allocator_name", named or list(registered()))


@pytest.fixture
def call_timeout(pytestconfig: pytest.Config) -> float:
    """Seconds that one call may take."""
    return float(pytestconfig.getoption("--call-timeout") or DEFAULT_CALL_TIMEOUT)


@pytest.fixture
def tested(allocator_name: str, pytestconfig: pytest.Config, call_timeout: float) -> Target:
    """The target; skipped where it is registered and its dependencies are not installed."""
    contract = pytestconfig.getoption("--contract")
    try:
        factory = load(allocator_name)
        promise = promised(factory, allocator_name)
        if contract is not None:
            promise = parse_contract(contract, promise)
        return target(factory, allocator_name, promise, call_timeout)
    except NotInstalled as error:
        if pytestconfig.getoption("--allocator"):
            raise pytest.UsageError(str(error)) from None
        pytest.skip(str(error))
    except (TargetError, ContractError) as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def traces_folder(pytestconfig: pytest.Config) -> Path | None:
    """Where counterexamples are saved, if anywhere."""
    folder = pytestconfig.getoption("--save-traces")
    return Path(folder) if folder else None
