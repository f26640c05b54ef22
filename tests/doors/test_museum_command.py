"""`kvspec museum`: what is found of a museum of faults, in each format, and what survives."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import kvspec.suite.museum_command as suite_command
from kvimpls.museum.command import museum as museum_of_kvimpls
from kvimpls.museum.core import OffByOneAtBoundary
from kvimpls.museum.registry import MUSEUM, Exhibit
from kvimpls.reference import Reference
from kvspec import museum_command
from kvspec.driver.making import TargetError
from kvspec.engines.machine import PROFILES, Profile
from kvspec.suite import kill_tables
from kvspec.suite.killing import Kill, KillTable, Row, from_data, kill_table

FAST = ("OffByOneAtBoundary", "CountsFromZero")
"""Found in a few operations, on any seed."""

CONTROL = Exhibit(Reference, "none", "free-set", "There is nothing wrong with it.", "nothing")

MISJUDGED = Exhibit(OffByOneAtBoundary, "core", "retry", "Not so.", "`_growth`")
"""Expected of a law that does not report it."""


@pytest.fixture
def command(folder, monkeypatch):
    """Runs the command of a museum, on few seeds, in a machine that gives up soon."""
    monkeypatch.setitem(PROFILES, "quick", Profile(episodes=20, steps=10))

    def run(*arguments, exhibits=None):
        command = museum_of_kvimpls if exhibits is None else museum_command(exhibits)
        few = ("--seeds", "2", *arguments)
        return CliRunner().invoke(command, [str(a) for a in few], catch_exceptions=False)

    return run


def test_the_terminal_shows_a_row_for_each_exhibit(command):
    """With source, laws, operations, seeds and steps, in the order of the museum; exit 0."""
    done = command(*reversed(FAST))
    assert done.exit_code == 0, done.output
    head, one, *lines = done.stdout.splitlines()
    [other] = [line for line in lines if line.startswith(FAST[1])]
    summary = " ".join(lines[lines.index("") + 1 :])
    assert " ".join(head.split()) == (
        "fault source law expected law that broke operations killed steps minimum"
    )
    assert one.split()[:4] == [FAST[0], "Wenyueh/MinivLLM#85", "bounded-waste", "bounded-waste"]
    assert one.split()[-5:] == ["2", "of", "2", "2", "2"]
    assert other.split()[-5:-2] == ["2", "of", "2"]
    assert re.fullmatch(
        r"2 exhibits, 2 seeds \(0 to 1\) of the machine, profile ci: all killed on every seed\. "
        r"Of (\d) stories whose true minimum is known, \1 are as short\.",
        summary,
    )


def test_markdown_has_links_and_what_is_wrong(command):
    """It is a page's table, with the summary above it."""
    done = command(*FAST, "--format", "markdown")
    assert done.exit_code == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(FAST)
    assert "[Wenyueh/MinivLLM#84](https://github.com/Wenyueh/MinivLLM/issues/84)" in rows[1]
    assert all(row.count("|") == 9 for row in rows)


def test_json_has_every_kill_and_can_be_read_again(command):
    """The medians are those of the kills, which are all there."""
    done = command(*FAST, "--format", "json", "--seed", 5)
    data = json.loads(done.stdout)
    assert (data["engine"], data["profile"], data["seconds"]) == ("machine", "ci", None)
    assert (data["seed"], data["seeds"], data["survivors"]) == (5, 2, [])
    for row in data["exhibits"]:
        assert [kill["seed"] for kill in row["kills"]] == [5, 6]
        assert row["killed"] == 2
        assert sum(kill["operations"] for kill in row["kills"]) == 2 * row["operations"]
    assert json.loads(json.dumps(from_data(data).as_data())) == data
    with pytest.raises(ValueError, match="format 2"):
        from_data({**data, "format": 2})


def test_the_same_seed_gives_the_same_table(command):
    """Byte for byte."""
    once, again = (command(*FAST, "--format", "json").stdout for _ in range(2))
    assert once == again


def test_the_true_minimum_is_searched_for_only_where_it_is_asked_for(command):
    """With no states to search through it is not known, and the summary says nothing of it."""
    done = command(FAST[0], "--minimum-states", 0)
    *_, row, _, summary = done.stdout.splitlines()
    assert row.split()[-2:] == ["2", "-"]
    assert "minimum" not in summary


def test_an_output_file_gets_the_table(command):
    """The summary is printed all the same."""
    for form in ("terminal", "markdown", "json"):
        done = command(FAST[0], "--format", form, "--output", form)
        assert done.stdout.startswith("1 exhibit, 2 seeds (0 to 1)")
        assert FAST[0] in Path(form).read_text(encoding="utf-8")
        assert Path(form).read_text(encoding="utf-8").endswith("\n")


def test_the_walk_is_an_engine_too(command):
    """It stops at the violation, long before the time is over."""
    done = command(FAST[0], "--engine", "walk", "--seconds", 30)
    assert done.exit_code == 0
    assert "of the walk, 30 s each" in done.stdout


def test_a_survivor_stays_in_the_table(command):
    """What is not found is told as such, in the row and in the summary; exit 1."""
    exhibits = (CONTROL, *(one for one in MUSEUM if one.name == FAST[0]))
    done = command("--profile", "quick", exhibits=exhibits)
    assert done.exit_code == 1
    row = next(line for line in done.stdout.splitlines() if line.startswith("Reference "))
    assert " ".join(row.split()) == "Reference - free-set survived - 0 of 2 - -"
    summary = "1 killed on every seed. Not on every seed: Reference (0 of 2)."
    assert summary in " ".join(done.stdout.split())
    done = command("--profile", "quick", "--format", "json", exhibits=exhibits)
    data = json.loads(done.stdout)
    assert data["survivors"] == ["Reference"]
    assert data["exhibits"][0]["kills"] == []
    assert data["exhibits"][0]["operations"] is None


def test_a_seed_that_it_survives_makes_a_survivor():
    """Medians are over the seeds that killed it, and reduced lengths over those that reduced."""
    kills = (Kill(0, 30, "admission", 3), Kill(2, 11, "conservation", None))
    row = Row("Half", "It is", (), "admission", ("admission",), 3, kills)
    table = KillTable("machine", "ci", None, 0, 3, (row,))
    assert (row.operations, row.length, row.survived) == (20.5, 3, True)
    assert table.exit_code == 1
    shown = kill_tables.as_markdown(table)
    cells = "none known | admission | admission 1, conservation (!) 1 | 20.5 | 2 of 3 | 3 |"
    assert cells in shown
    assert kill_tables.UNEXPECTED in shown


def test_an_unexpected_law_is_marked(command):
    """It was killed all the same."""
    done = command(exhibits=[MISJUDGED])
    assert done.exit_code == 0
    assert "bounded-waste (!)" in done.stdout
    assert done.stdout.splitlines()[-1] == kill_tables.UNEXPECTED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CountsFromOne"], "there is no exhibit CountsFromOne; did you mean CountsFromZero?"),
        (["?"], "there is no exhibit ?"),
        (["--seconds", "3"], "--seconds has a meaning only with --engine walk"),
        (
            ["--engine", "walk", "--profile", "ci"],
            "--profile has a meaning only with --engine machine",
        ),
        (["--output", "no/such.md"], "no/such.md: it cannot be written: there is no such folder"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line(command, arguments, said):
    """Before anything is run; exit 2."""
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"kvspec: {'' if 'no/' in said else 'museum: '}{said}"]


def test_an_exhibit_that_makes_nothing_is_one_line(command):
    """It is no survivor: exit 2."""

    def nothing(geometry):
        """Makes nothing."""

    exhibit = Exhibit(nothing, "none", "free-set", "It is none.", "nothing")
    done = command(exhibits=[exhibit])
    assert done.exit_code == 2
    assert done.stderr.startswith("kvspec: nothing: ")


def test_the_function_refuses_what_it_does_not_know():
    """An engine, a profile, a number of seeds."""
    with pytest.raises(TargetError, match="no engine search"):
        kill_table([CONTROL], engine="search")
    with pytest.raises(TargetError, match="no profile long"):
        kill_table([CONTROL], profile="long")
    with pytest.raises(ValueError, match="at least one"):
        kill_table([CONTROL], seeds=0)


def test_hypothesis_leaves_nothing_behind(command, folder, monkeypatch):
    """The folder of whoever runs it stays as it was, and a bar comes on a terminal only."""
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY", raising=False)
    assert command(FAST[0]).stderr == ""
    assert list(folder.iterdir()) == []


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    """It names the exhibit and counts the runs."""
    monkeypatch.setattr(suite_command.sys.stderr, "isatty", lambda: True, raising=False)
    told = []
    with suite_command._progress() as progress:
        kill_table(
            [one for one in MUSEUM if one.name in FAST],
            seeds=2,
            progress=lambda *given: (told.append(given), progress(*given)),
        )
    assert told == [(FAST[n // 2], n, 4) for n in range(4)]


def test_the_page_has_the_whole_museum():
    """What was measured and committed is of this catalogue, and of its expectations."""
    page = Path(__file__).parents[2] / "docs" / "data" / "museum.json"
    rows = from_data(json.loads(page.read_text(encoding="utf-8"))).exhibits
    measured = [(row.name, row.law, row.laws, row.sources) for row in rows]
    assert measured == [(one.name, one.law, one.laws, one.sources) for one in MUSEUM]
