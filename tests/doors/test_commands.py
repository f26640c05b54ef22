"""Commands of other packages: found by entry point, imported when used."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvspec.cli import COMMANDS


@pytest.fixture
def commands(monkeypatch, folder):
    """Adds commands of other packages."""

    def add(**values):
        monkeypatch.syspath_prepend(folder)
        points = [EntryPoint(name, value, COMMANDS) for name, value in values.items()]
        monkeypatch.setattr("kvspec.cli.entry_points", lambda group: points)

    return add


def test_another_package_adds_a_command(kvspec, commands):
    """It is listed with its own help, and run as one of ours."""
    Path("theirs.py").write_text(
        'import click\n@click.command(help="Says hello.")\ndef hello(): click.echo("hello")\n'
    )
    commands(hello="theirs:hello")
    assert re.search(r"^  hello +Says hello\.$", kvspec("--help").out, re.MULTILINE)
    assert kvspec("hello").out == "hello\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_package", "waste: it needs no_such_package, which is not installed"),
        ("1 / 0", "waste: it cannot be imported: ZeroDivisionError: division by zero"),
        ("command = 3", "waste: absent:command is not a command"),
    ],
)
def test_a_command_that_cannot_be_imported_is_one_line(kvspec, commands, source, said):
    """It stands in nobody's way until it is used, and then says what it lacks."""
    Path("absent.py").write_text(source)
    commands(waste="absent:command")
    assert "Not available: " in kvspec("--help").out
    assert kvspec("waste", "trace.csv", "--plots", "there").refused() == said


def test_no_package_replaces_a_command_of_ours(kvspec, commands):
    """Our own names are taken."""
    commands(check="absent:command", size="absent:command")
    assert "Check TARGETS" in kvspec("check", "--help").out
    assert "Not available" not in kvspec("--help").out


def test_a_command_that_is_none_is_a_usage_error(kvspec):
    """A typing error is told with what to try."""
    done = kvspec("chekc")
    assert done.code == 2
    assert "No such command 'chekc'" in done.err
