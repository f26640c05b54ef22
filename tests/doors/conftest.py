"""What the tests of the doors share: a folder of one's own, the command, and other processes."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvspec.cli import main
from kvspec.engines.machine import PROFILES, Profile
from kvspec.traces.trace import load

FORGETFUL = "kvimpls.museum:ForgottenCopyOnWrite"
"""Found by a witness, so that its check is quick."""


@dataclass
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    def refused(self):
        """The one line that says why the command could not be carried out."""
        assert self.code == 2, self
        assert "Traceback" not in self.out + self.err, self
        assert self.err.startswith("kvspec: "), self
        assert self.err.endswith("\n"), self
        assert len(self.err.splitlines()) == 1, self
        return self.err.removeprefix("kvspec: ").strip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder; what is imported from it does not outlive the test."""
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def kvspec(folder):
    """Runs the command in this process."""

    def run(*arguments):
        result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def check(kvspec, monkeypatch):
    """Runs `kvspec check` with the quick profile, made quicker: witnesses do most of the work."""
    monkeypatch.setitem(PROFILES, "quick", Profile(episodes=15, steps=20))
    return lambda *arguments: kvspec("check", "--profile", "quick", *arguments)


@pytest.fixture
def python(folder):
    """Runs Python in a process of its own, without what this one has in its environment."""

    def run(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COLUMNS"))}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**clean, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=60,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def counterexample(check, folder):
    """The file of a trace that breaks copy-on-write."""
    assert check(FORGETFUL, "--save-traces", "traces").code == 1
    [path] = Path("traces").iterdir()
    assert load(path).law == "copy-on-write"
    return path
