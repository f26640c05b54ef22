"""The page on sizes: its sessions run, its commands print what they print, its tables are right."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvspec.sizing import PRESETS, Heads, Measure
from kvspec.sizing.command import size
from kvspec.sizing.units import binary, decimal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "size.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def rows(first_header):
    """The cells of the table whose first column has this header."""
    lines = TEXT.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return table
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def number(cell):
    return int(cell.replace(",", ""))


def test_the_sessions_run():
    page = doctest.DocTestParser().get_doctest("".join(blocks("pycon")), {}, PAGE.name, None, 0)
    results = doctest.DocTestRunner().run(page)
    assert results.failed == 0
    assert results.attempted > 25


def console():
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.mark.parametrize(("command", "output"), list(console()))
def test_the_commands_print_what_the_page_shows(command, output):
    program, name, *args = shlex.split(command)
    assert (program, name) == ("kvspec", "size")
    result = CliRunner().invoke(size, args)
    printed = "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())
    assert doctest.OutputChecker().check_output(output, printed, doctest.ELLIPSIS), printed


def test_the_table_of_windows_is_complete_and_right():
    """All presets with a window that a sequence can outgrow."""
    measures = {name: Measure(one.architecture) for name, one in PRESETS.items()}
    expected = []
    for name, measure in measures.items():
        spans = [(group.count, group.span.tokens) for group in measure.architecture.layers]
        windows = [(count, tokens) for count, tokens in spans if tokens is not None]
        if windows and name != "phi-3.5-mini":
            ((count, tokens),) = windows
            short, beyond = (slope.token_bytes for slope in measure.slopes())
            figures = [measure.architecture.num_layers, count, tokens, short, beyond]
            expected.append([name, *(f"{figure:,}" for figure in figures)])
    assert rows("model | layers") == expected


REAL = {
    "Llama-3-8B": "llama-3-8b",
    "Qwen2.5-7B": "qwen2.5-7b",
    "Llama-3-70B": "llama-3-70b",
    "DeepSeek-V2-16B": "deepseek-v2-lite",
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
}

PRINTED = {
    # The text's figure, and the factors of its formula that give it.
    "Llama-3-8B": ("131.1 KB", (32, 8, 128, 2)),
    "Qwen2.5-7B": ("114.7 KB", (28, 4, 128, 4)),
    "Llama-3-70B": ("262.1 KB", (64, 8, 128, 2)),
    "DeepSeek-V2-16B": ("2.0 MB", (62, 128, 128, 1)),
}


def formula(layers, kv_heads, dim, element_bytes):
    return layers * 2 * kv_heads * dim * element_bytes


def test_the_four_figures_are_recomputed():
    table = rows("the text's model")
    assert [row[0] for row in table] == list(PRINTED)
    for name, factors, printed, by_formula, comes_out_with, real in table:
        layers, kv_heads, dim = map(int, factors.split(","))
        figure, culprit = PRINTED[name]
        assert (printed, decimal(formula(*culprit))) == (figure, figure)
        assert number(by_formula) == formula(layers, kv_heads, dim, 2)
        assert number(real) == Measure(PRESETS[REAL[name]].architecture).token_bytes
        changed = f"{culprit[0]} layers" if culprit[0] != layers else f"{culprit[3]} byte"
        assert comes_out_with.startswith(changed)


def test_the_table_of_lengths_is_recomputed():
    header = re.search(r"^\| tokens \| (Llama.*) \|$", TEXT, re.MULTILINE)
    assert header
    measures = [Measure(PRESETS[REAL[name]].architecture) for name in header[1].split(" | ")]
    table = rows("tokens")
    assert [row[0] for row in table] == ["1K", "2K", "4K", "8K", "16K", "32K"]
    for length, *cells in table:
        tokens = 1024 * int(length.removesuffix("K"))
        assert cells == [binary(measure.sequence_bytes(tokens)) for measure in measures]


def test_the_saving_of_shared_heads_is_recomputed():
    for name, query, shared, saving, alone in rows("model | query heads"):
        model = PRESETS[name].architecture
        ((storage, count),) = ((group.storage, group.count) for group in model.layers)
        assert isinstance(storage, Heads)
        assert (number(query), number(shared)) == (model.query_heads, storage.kv_heads)
        assert saving == f"{model.query_heads // storage.kv_heads} times"
        assert number(alone) == formula(count, model.query_heads, storage.head_dim, 2)
        assert number(alone) == Measure(model).token_bytes * int(saving.split()[0])
