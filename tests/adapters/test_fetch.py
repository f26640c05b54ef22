"""Fetching engines: what is unpacked, and what is said where one cannot be had."""

import subprocess
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from kvimpls.adapters import fetch
from kvimpls.adapters.engines import folder

NAME, VERSION = "smol-vllm", fetch.ENGINES["smol-vllm"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it goes, with what an earlier version left there."""
    monkeypatch.setenv("KVSPEC_WILD", str(tmp_path / "wild"))
    place = tmp_path / "wild" / NAME
    (place / "smol_vllm").mkdir(parents=True)
    (place / "smol_vllm" / "left_over.py").touch()
    (place / "smol_vllm-0.0.1.dist-info").mkdir()
    (place / "smol_vllm-0.0.1.dist-info" / "METADATA").write_text(f"Name: {NAME}\nVersion: 0.0.1\n")
    return place


def answering(monkeypatch: pytest.MonkeyPatch, wheel: dict[str, str], said: str) -> list[int]:
    """What pip downloads and says from now on; grows by one with each call of it."""
    calls: list[int] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(1)
        if wheel:
            target = Path(command[command.index("-d") + 1]) / "engine.whl"
            with ZipFile(target, "w") as archive:
                for name, text in wheel.items():
                    archive.writestr(name, text)
        return subprocess.CompletedProcess(command, int(not wheel), "", said)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    return calls


def test_the_python_files_of_one_version_are_unpacked_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else of the wheel, and nothing of another version between them."""
    metadata = f"smol_vllm-{VERSION}.dist-info/METADATA"
    wheel = {
        "smol_vllm/block_manager.py": "",
        "smol_vllm/kernel.so": "",
        metadata: f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
    }
    calls = answering(monkeypatch, wheel, "")
    assert fetch.main([NAME]) == fetch.main([NAME]) == 0
    assert len(calls) == 1
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert files == {"smol_vllm/block_manager.py", metadata}
    assert folder(NAME, VERSION) == place
    assert capsys.readouterr().out == f"{NAME} {VERSION}: {place}\n" * 2


def test_an_engine_that_cannot_be_had_is_one_line_and_asked_for_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was there stays, and is not the version that is wanted."""
    calls = answering(monkeypatch, {}, "a warning\nERROR: no such host\n")
    assert fetch.main([NAME]) == fetch.main([NAME]) == 1
    assert len(calls) == 2
    assert capsys.readouterr().out == f"{NAME} {VERSION}: not fetched: ERROR: no such host\n" * 2
    assert (place / "smol_vllm" / "left_over.py").is_file()
    with pytest.raises(ModuleNotFoundError, match=r"pinned version; here is 0\.0\.1"):
        folder(NAME, VERSION)


def test_a_wrong_name_is_said_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names that there are."""
    calls = answering(monkeypatch, {}, "")
    assert fetch.main(["nobodys-engine", NAME]) == 2
    assert not calls
    assert NAME in capsys.readouterr().out
