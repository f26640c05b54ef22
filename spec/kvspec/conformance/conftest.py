"""One test for each allocator that was named, or for each registered one."""

from pathlib import Path

import pytest

from kvspec.conformance import call_timeout_of, named_targets, option
from kvspec.driver.target import NotInstalled, Target, TargetError, registered
from kvspec.suite.contracts import resolve


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise by target."""
    if "allocator_name" in metafunc.fixturenames:
        named = option(metafunc.config, "--allocator")
        metafunc.parametrize("allocator_name", list(dict.fromkeys(named)) or list(registered()))


@pytest.fixture
def call_timeout(pytestconfig: pytest.Config) -> float:
    """Seconds that one call may take."""
    return call_timeout_of(pytestconfig)


@pytest.fixture
def tested(allocator_name: str, pytestconfig: pytest.Config, call_timeout: float) -> Target:
    """The target; skipped where it is registered and its dependencies are not installed."""
    named = named_targets(pytestconfig)
    if allocator_name in named:
        return named[allocator_name]
    try:
        return resolve(allocator_name, option(pytestconfig, "--contract"), call_timeout)
    except NotInstalled as error:
        missing, wrong = str(error), ""
    except TargetError as error:
        missing, wrong = "", str(error)
    if missing:
        pytest.skip(missing)
    pytest.fail(wrong, pytrace=False)


@pytest.fixture
def traces_folder(pytestconfig: pytest.Config) -> Path | None:
    """Where counterexamples are saved, if anywhere."""
    folder = option(pytestconfig, "--save-traces")
    return Path(folder) if folder else None
