"""The wheel: what is in it, and that it works in another place, without this repository."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("hatchling", reason="the build backend is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built by this environment's own backend, and unpacked."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [archive] = place.glob("*.whl")
    ZipFile(archive).extractall(place / "unpacked")
    return place / "unpacked"


@pytest.fixture
def elsewhere(wheel, python, folder):
    """Runs Python where the wheel is what is found, in a folder with one allocator's file."""
    Path("mine.py").write_text((ROOT / "docs/examples/mine.py").read_text())
    return lambda *arguments: python(*arguments, PYTHONPATH=str(wheel))


def test_the_wheel_has_both_packages_and_nothing_else(wheel):
    """The types are marked, the licence is there, and the entry points are those of the project."""
    [info] = wheel.glob("*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"kvimpls", "kvspec", info.name}
    for package in ("kvimpls", "kvspec"):
        assert (wheel / package / "py.typed").is_file()
    assert (info / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    points = (info / "entry_points.txt").read_text()
    for line in (
        "kvspec = kvspec.cli:main",
        "kvspec = kvspec.plugin",
        "[kvspec.allocators]",
        "reference = kvimpls.reference:StoredReference",
    ):
        assert line in points
    assert not list(wheel.rglob("*.pyc"))


def test_the_wheel_is_what_runs(elsewhere, wheel):
    """The other tests here are of the wheel, not of the working tree."""
    done = elsewhere("-c", "import kvspec, kvimpls; print(kvspec.__file__, kvimpls.__file__)")
    assert all(Path(path).is_relative_to(wheel) for path in done.out.split())


def test_the_command_of_the_wheel(elsewhere):
    """`check` works on a file in an otherwise empty folder, and leaves nothing there."""
    done = elsewhere("-m", "kvspec.cli", "check", "mine.py:Mine", "--profile", "quick")
    assert (done.code, done.err) == (0, "")
    assert [path.name for path in Path().iterdir() if path.name != "__pycache__"] == ["mine.py"]


def test_the_suite_of_the_wheel(elsewhere):
    """`pytest --pyargs kvspec.conformance` finds its tests in the wheel."""
    suite = ("-m", "pytest", "--pyargs", "kvspec.conformance", "-k", "stateful")
    done = elsewhere(*suite, "--allocator", "mine.py:Mine", "--kvspec-profile", "quick")
    assert "1 passed" in done.out
    assert done.code == 0
