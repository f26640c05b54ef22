"""The machines, for every allocator: all claimed laws hold, and none is vacuous."""

from pathlib import Path

import pytest

from kvspec.driver.target import Target
from kvspec.suite.check import check_allocator
from kvspec.traces.trace import save


def test_stateful(
    tested: Target, pytestconfig: pytest.Config, call_timeout: float, traces_folder: Path | None
) -> None:
    """No run of the machine breaks a claimed law, and every claimed law bites."""
    report = check_allocator(
        tested,
        profile=pytestconfig.getoption("--kvspec-profile"),
        seed=pytestconfig.getoption("--kvspec-seed"),
        timeout=call_timeout,
    )
    if report.trace is not None and traces_folder is not None:
        save(report.trace, traces_folder / f"{tested.name.replace(':', '-')}.json")
    report.raise_for_status()
