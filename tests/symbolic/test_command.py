"""`kvspec symbolic`: the table, the JSON and the exit codes; the tools are not run here."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Ran

from kvspec.symbolic import command
from kvspec.symbolic.results import Refutation, Result

REFUTED = Refutation("+ -> -", "AssertionError", True, 0.1, "sound(1)", True)
SOUND = Result(
    "steps", "sound", "It is.", "Confirmed over all paths.", True, "sound(1)", 0.25, (REFUTED,)
)
VACUOUS = Result("operations", "vacuous", "It is not.", "8 laws proved", True, "", 0.5, (REFUTED,))


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str, proved: Result = SOUND) -> Ran:
    """What the command does where the tools say this."""
    monkeypatch.setattr(command, "_confirmed", lambda tier, timeout, workers, say: [SOUND])
    monkeypatch.setattr(command, "_proved", lambda tier, say: [proved])
    return CliRunner().invoke(command.symbolic, arguments)


def test_all_confirmed_and_refuted_is_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the verdict, the twins and the time."""
    done = ran(monkeypatch, "--only", "crosshair")
    assert done.exit_code == 0
    assert "sound       Confirmed over all paths.       1 of 1     0.25" in done.output
    assert "1 obligation, 1 refutation by 1 broken twin " in done.output


def test_what_shows_nothing_is_exit_code_1_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An obligation without a witness is not counted, whatever its verdict."""
    done = ran(monkeypatch, proved=VACUOUS)
    assert done.exit_code == 1
    assert "1 of 2 obligations show nothing" in done.output
    assert "vacuous: no case is known that meets the preconditions" in done.output


def test_a_fast_tier_that_is_slow_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the verdicts; the slow tier may take as long as it likes."""
    clock = iter([0.0, 60.5, 0.0, 60.5])
    monkeypatch.setattr(command, "_busy", lambda: next(clock))
    done = ran(monkeypatch)
    assert done.exit_code == 1
    assert "2 obligations, 2 refutations by 1 broken twin " in done.output
    assert "the fast tier may take 60 s of CPU: move something to --slow" in done.output
    assert ran(monkeypatch, "--slow").exit_code == 0


@pytest.mark.parametrize(
    ("tool", "distribution"), [("crosshair", "crosshair-tool"), ("z3", "z3-solver")]
)
def test_a_tool_that_is_not_installed_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, tool: str, distribution: str
) -> None:
    """One line says what to install, and the other tool can be used alone."""

    def found(module: str) -> Any:
        return None if module == tool else module

    monkeypatch.setattr(command, "find_spec", found)
    done = ran(monkeypatch)
    assert done.exit_code == 2
    assert (
        done.output == f"kvspec: {distribution} is not installed: pip install 'kvspec[symbolic]'\n"
    )
    other = "z3" if tool == "crosshair" else "crosshair"
    assert ran(monkeypatch, "--only", other).exit_code == 0


def test_the_json_has_every_verdict_and_the_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the counterexamples of the twins, and the problem where there is one."""
    file = tmp_path / "symbolic.json"
    assert ran(monkeypatch, "--json", str(file), proved=VACUOUS).exit_code == 1
    data = json.loads(file.read_text(encoding="utf-8"))
    assert set(data["tools"]) == {"crosshair-tool", "z3-solver"}
    assert data["tier"] == "fast"
    first, second = data["results"]
    assert first["problem"] == ""
    assert first["twins"][0]["counterexample"] == "sound(1)"
    assert second["problem"] == "no case is known that meets the preconditions"


def test_it_is_a_command_of_kvspec() -> None:
    """It is imported when it is asked for, and so are the tools."""
    from kvspec.cli import main

    done = CliRunner().invoke(main, ["symbolic", "--help"])
    assert done.exit_code == 0
    assert "--only [crosshair|z3]" in done.output


def test_a_file_that_cannot_be_written_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is said before the tools are run."""
    done = ran(monkeypatch, "--json", str(tmp_path / "nowhere" / "file.json"))
    assert done.exit_code == 2
    assert "there is no such folder" in done.output
