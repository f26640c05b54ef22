"""The record of what was found in published engines: it is what the suite says, and can be shown.

Where an engine is not there, what needs it is skipped; `make wild` fetches all.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import records

from kvimpls import adapters
from kvimpls.adapters.engines import unpacked
from kvimpls.adapters.fetch import ENGINES as FETCHED
from kvspec.driver.target import ENGINES, NotInstalled, Target, registered
from kvspec.engines.replay import replay
from kvspec.rooms import ORDER
from kvspec.suite.check import check_allocator
from kvspec.suite.contracts import resolve
from kvspec.suite.report import Verdict
from kvspec.traces.trace import CONVERTER, load

ADAPTERS = Path(adapters.__file__).parent
ALL = records.engines()
FOUND = [finding for engine in ALL for finding in engine.findings]
SHOWN = {name for finding in FOUND for name in finding.by_default}
CLEAN = [name for engine in ALL for name in engine.targets if name not in SHOWN]

findings = pytest.mark.parametrize("finding", FOUND, ids=lambda finding: finding.slug)


def resolved(name: str, contract: str = "") -> Target:
    """The target, if its engine is there."""
    try:
        return resolve(name, contract or None)
    except NotInstalled as error:
        pytest.skip(str(error))


def test_every_engine_that_is_registered_has_a_record() -> None:
    """And nothing is recorded that is not registered."""
    assert {name for engine in ALL for name in engine.targets} == set(registered(ENGINES))


def test_the_versions_agree() -> None:
    """The record, what is fetched, the extra and the adapter are about one version."""
    asked = [Requirement(line) for line in requires("kvspec") or ()]
    extras = {r.name: r.specifier for r in asked if f'extra == "{r.name}"' in str(r.marker)}
    recorded = {engine.engine: engine.version for engine in ALL}
    assert recorded.keys() - FETCHED.keys() == {"transformers"}  # an ordinary extra
    modules = [path.read_text("utf-8") for path in ADAPTERS.rglob("*.py")]
    for name, version in recorded.items():
        assert FETCHED.get(name, version) == version
        assert str(extras[name]) == f"=={version}"
        [adapter] = [text for text in modules if re.search(rf'engine\(\s*"{name}"', text)]
        assert f'"{version}"' in adapter, name


def test_another_version_is_not_installed_and_the_row_says_so() -> None:
    """An adapter follows the code of one version: it asks for that before it imports anything."""
    script = """
from types import SimpleNamespace
from kvimpls.adapters import engines
engines.distributions = lambda **_: [SimpleNamespace(version="0.0.1")]
from kvspec.driver.target import ENGINES, NotInstalled, load, registered
for name in registered(ENGINES):
    try:
        load(name)
    except NotInstalled as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(registered(ENGINES)), done.stdout + done.stderr
    assert all("(the pinned version; here is 0.0.1), which is not installed" in x for x in lines)


def test_a_finding_is_told_in_full() -> None:
    """Each has its trace and its script, of its own engine, a law, and how it is reached."""
    for engine in ALL:
        for finding in engine.findings:
            assert finding.trace.is_file(), finding.slug
            assert finding.script.is_file(), finding.slug
            assert finding.slug.startswith(engine.engine)
            assert {finding.target, *finding.also} <= set(engine.targets)
            assert finding.law in ORDER
            assert finding.reach in records.REACH
    kept = {path.stem for path in records.FINDINGS.glob("*.json")}
    assert kept == {finding.slug for finding in FOUND}


@findings
def test_a_trace_breaks_its_law_again(finding: records.Finding) -> None:
    """The reduced story, told to a fresh allocator of the engine, by the contract of today.

    Three times of three, or once where the engine goes by the clock and by addresses.
    """
    tested = resolved(finding.target, finding.contract)
    trace = load(finding.trace)
    assert trace.law == finding.law
    assert trace.contract == tested.contract
    laws = {replay(tested.make, trace).law for _ in range(3)}
    assert finding.law in laws if finding.by_chance else laws == {finding.law}


@pytest.mark.parametrize(
    "script", sorted(records.FINDINGS.glob("*.py")), ids=lambda script: script.stem
)
def test_a_script_shows_it_without_kvspec(script: Path) -> None:
    """It needs the engine's package alone, asserts what is wrong, and prints it.

    There is one for each finding, and some for what was read and the suite cannot see.
    """
    about = [engine for engine in ALL if script.stem.startswith(f"{engine.engine}-")]
    resolved(max(about, key=lambda engine: len(engine.engine)).targets[0])
    assert "kvspec" not in script.read_text(encoding="utf-8").replace("KVSPEC_WILD", "")
    run, env = [sys.executable, str(script)], {**os.environ, "KVSPEC_WILD": str(unpacked())}
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", CLEAN)
def test_what_has_no_finding_holds_all_its_laws(name: str) -> None:
    """In the quick profile; `make wild` runs the default one."""
    check_allocator(resolved(name), profile="quick").raise_for_status()


@pytest.mark.skipif("KVSPEC_WILD_REPORT" not in os.environ, reason="`make wild` gives the report")
def test_the_matrix_says_what_is_recorded() -> None:
    """What breaks by the default profile is recorded, though one seed may miss what is."""
    report = json.loads(Path(os.environ["KVSPEC_WILD_REPORT"]).read_text(encoding="utf-8"))
    assert not report["not_checked"]
    for one in report["allocators"]:
        name = one["allocator"]
        ended = {verdict: set() for verdict in Verdict}
        for law, result in one["laws"].items():
            ended[Verdict(result["verdict"])].add(law)
        assert not ended[Verdict.VACUOUS], name
        recorded = {finding.law for finding in FOUND if name in finding.by_default}
        assert not ended[Verdict.BROKEN] or recorded & ended[Verdict.BROKEN], name


def test_the_table_is_one_measurement() -> None:
    """All rows come from one run: one profile, one seed, and no row for what is not a target."""
    kept = json.loads(records.MEASURED.read_text(encoding="utf-8"))
    assert len({(row["profile"], row["seed"]) for row in kept["allocators"]}) == 1
    assert {row["allocator"] for row in kept["allocators"]} <= set(registered(ENGINES))
    assert not kept["not_checked"]


@pytest.mark.parametrize("name", [name for engine in ALL for name in engine.targets])
def test_the_table_is_about_the_targets_as_they_are(name: str) -> None:
    """Each row was measured with the contract, the claims and the laws of today.

    If not: `make wild`, and `python docs/records.py build/wild/report.json`.
    """
    kept = json.loads(records.MEASURED.read_text(encoding="utf-8"))
    rows = {row["allocator"]: row for row in kept["allocators"]}
    assert name in rows
    tested = resolved(name)
    row = rows[name]
    assert row["contract"] == json.loads(json.dumps(CONVERTER.unstructure(tested.contract)))
    assert row["relaxations"] == list(tested.contract.relaxations())
    assert row["capabilities"] == list(tested.capabilities)
    assert list(row["laws"]) == list(ORDER)


def test_the_table_tells_what_is_vacuous_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A law that never bit was not held; what was not checked has a row with the reason."""
    row = {
        "allocator": "one",
        "capabilities": ["core"],
        "relaxations": [],
        "laws": {"retry": {"verdict": "vacuous"}, "frame": {"verdict": "held"}},
    }
    kept = {
        "allocators": [row],
        "not_installed": [{"allocator": "two", "reason": "it is not installed"}],
        "not_checked": [{"allocator": "three", "reason": "it cannot be built"}],
    }
    (tmp_path / "wild.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(records, "MEASURED", tmp_path / "wild.json")
    assert records.engines_table().splitlines()[2:] == [
        "| `one` | core | none | vacuous: retry |",
        "| `two` | | | it is not installed |",
        "| `three` | | | it cannot be built |",
    ]
