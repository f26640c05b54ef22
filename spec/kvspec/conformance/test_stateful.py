"""The machines, for every allocator: all claimed laws hold, and none is vacuous."""

from pathlib import Path

import pytest

from kvspec.conformance import option
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import Target, TargetError
from kvspec.kernel.law import LawBroken
from kvspec.suite.check import check_allocator
from kvspec.traces.trace import Trace, file_name, save


def test_stateful(
    tested: Target, pytestconfig: pytest.Config, call_timeout: float, traces_folder: Path | None
) -> None:
    """No run of the machine breaks a claimed law, and every claimed law bites."""
    # The story is what there is to read: where in the suite it was found is not, nor is what
    # pytest adds of an exception that is being handled.
    failure, report = "", None
    try:
        report = check_allocator(
            tested,
            profile=option(pytestconfig, "--kvspec-profile"),
            seed=option(pytestconfig, "--kvspec-seed"),
            timeout=call_timeout,
            backend=option(pytestconfig, "--kvspec-hypothesis-backend"),
        )
        report.raise_for_status()
    except LawBroken as broken:
        failure = str(broken).strip()
        if report and report.trace and traces_folder:
            failure += f"\n\n{_saved(report.trace, traces_folder)}"
    except (TargetError, NotBuilt) as error:
        failure = f"{tested.name}: {error}"
    if failure:
        pytest.fail(failure, pytrace=False)


def _saved(trace: Trace, folder: Path) -> str:
    path = folder / file_name(trace)
    try:
        save(trace, path)
    except OSError as error:
        return f"{path}: it cannot be written: {error.strerror}"
    return f"saved {path}"
