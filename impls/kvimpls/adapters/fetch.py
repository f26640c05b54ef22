"""`python -m kvimpls.adapters.fetch [NAME ...]`: engines, as published, for the adapters.

Each wheel is downloaded by pip, without what it depends on, and its Python files are unpacked into
a folder of its own under `KVSPEC_WILD` (default: build/wild). An engine that cannot be had is one
clear line, and its row in the matrix reads "not installed"; the others are fetched all the same.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from kvimpls.adapters.engines import folder, unpacked

ENGINES = {
    "vllm": "0.33.0",
    "sglang": "0.5.23",
    "lmdeploy": "0.18.0",
    "vllm-block": "0.1.0",
    "llm-infer": "0.8.0",
    "mini-infer": "0.2.5",
    "kvboost": "0.9.0",
    "kvstream": "0.1.0",
    "smol-vllm": "0.1.2",
    "bllm-inference": "0.1.0",
}
"""The distributions and versions that the adapters are for; transformers is an ordinary extra."""


class Unavailable(Exception):
    """An engine that could not be downloaded, and why."""


def fetch(distribution: str, version: str) -> Path:
    """The folder with the engine's Python files, downloaded unless it is there already.

    Raises `Unavailable` where pip cannot get it.
    """
    try:
        return folder(distribution, version)
    except ModuleNotFoundError:
        pass
    place = unpacked() / distribution
    unpacked().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=unpacked()) as downloads:
        asked = [
            "download",
            "-q",
            "--retries=1",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            downloads,
        ]
        command = [sys.executable, "-m", "pip", *asked, f"{distribution}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(downloads).glob("*.whl"))
        if done.returncode or not wheels:
            said = done.stderr.strip().splitlines() or ["pip gave no wheel"]
            raise Unavailable(said[-1])
        with ZipFile(wheels[0]) as wheel:
            wanted = [n for n in wheel.namelist() if n.endswith(".py") or ".dist-info/" in n]
            wheel.extractall(Path(downloads) / distribution, wanted)
        # As a whole or not at all, and with nothing of another version between.
        rmtree(place, ignore_errors=True)
        (Path(downloads) / distribution).rename(place)
    return place


def main(names: Sequence[str]) -> int:
    """Fetch the engines of these names, or all; 1 if one could not be had, 2 for a wrong name."""
    if unknown := sorted(set(names) - ENGINES.keys()):
        print(f"fetch: there is no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
        return 2
    failed = 0
    for name in names or ENGINES:
        try:
            print(f"{name} {ENGINES[name]}: {fetch(name, ENGINES[name])}")
        except Unavailable as error:
            failed = 1
            print(f"{name} {ENGINES[name]}: not fetched: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
