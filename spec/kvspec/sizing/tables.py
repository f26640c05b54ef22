"""The report of `kvspec size` for the terminal, in 80 columns."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvspec.sizing.architecture import Heads, Layers
from kvspec.sizing.presets import PRESETS
from kvspec.sizing.report import Report
from kvspec.sizing.units import binary, decimal, half

WIDTH = 80
"""Columns of the output where there is no terminal."""

_ABREAST = 7
"""Block sizes that have room side by side."""


def render(report: Report) -> RenderableType:
    """The report as tables: the layers, a token, a sequence, what fits, and what blocks waste."""
    parts: list[RenderableType] = [*_heading(report), Text(), _token(report), Text()]
    parts.append(_sequences(report))
    if report.memory_bytes is not None:
        parts += [Text(), *_fits(report)]
    parts += [Text(), *_waste(report)]
    return Group(*parts)


def _heading(report: Report) -> Iterable[RenderableType]:
    model = report.architecture
    title = Text(model.name, style="bold")
    if report.source:
        title.append(f"  {report.source}", style="not bold dim")
    yield title
    scales = f", {report.element.scales}" if report.element.scales else ""
    yield Text(
        f"{model.attention}, {_count(model.num_layers, 'layer')}, "
        f"{_count(model.query_heads, 'query head')}, {report.element.dtype}{scales}"
    )
    if report.ranks > 1:
        yield Text(f"tensor parallel on {report.ranks} ranks; bytes are those of one rank")
    for group in model.layers:
        yield Text(f"  {group.count:>3} × {_stored(group, report.ranks)}, {_span(group)}")
    if report.unchecked:
        yield Text(f"  not checked against a published source: {', '.join(report.unchecked)}")
    for note in model.notes:
        yield Text(f"  assumed: {note}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _stored(group: Layers, ranks: int) -> str:
    storage = group.storage
    if isinstance(storage, Heads):
        heads = _count(storage.kv_heads, "KV head")
        if ranks > 1:
            heads += f" ({max(1, storage.kv_heads // ranks)} a rank)"
        return f"{heads} of dimension {storage.head_dim}"
    latent = f"one latent of {storage.rank} + {storage.rope_dim} elements"
    return f"{latent}, on each rank" if ranks > 1 else latent


def _span(group: Layers) -> str:
    span = group.span
    if span.tokens is None:
        return "all tokens"
    what = "the last" if span.kind == "sliding" else "chunks of"
    return f"{what} {span.tokens:,} tokens"


def _token(report: Report) -> RenderableType:
    table = _table("bytes a token", ("bytes", "units of 1024", "units of 1000"))
    for slope in report.slopes:
        if slope.last is None:
            label = "every token" if slope.first == 1 else f"from token {slope.first:,} on"
        else:
            label = f"tokens {slope.first:,} to {slope.last:,}"
        size = slope.token_bytes
        table.add_row(label, f"{size:,}", binary(size), decimal(size))
    return table


def _sequences(report: Report) -> RenderableType:
    columns = ["bytes", "units of 1024"]
    windowed = report.measure.windowed
    if windowed:
        columns.append("if no layer drops tokens")
    if report.ranks > 1:
        columns.append("all ranks together")
    table = _table("tokens", columns)
    for row in report.rows:
        cells = [f"{row.tokens:,}", f"{row.rank_bytes:,}", binary(row.rank_bytes)]
        if windowed:
            cells.append(binary(row.rank_bytes_if_no_layer_drops_tokens))
        if report.ranks > 1:
            cells.append(binary(row.all_ranks_bytes))
        table.add_row(*cells)
    return table


def _fits(report: Report) -> Iterable[RenderableType]:
    memory = report.memory_bytes or 0
    where = " on each rank" if report.ranks > 1 else ""
    yield Text(
        f"How many sequences fit in {memory:,} bytes ({binary(memory)}){where}, in whole blocks "
        "of so many tokens:"
    )
    sizes = list(dict.fromkeys(fit.block_size for fit in report.fits))
    for n in range(0, len(sizes), _ABREAST):
        table = _table("tokens", [f"{size:,}" for size in sizes[n : n + _ABREAST]])
        for length in dict.fromkeys(fit.tokens for fit in report.fits):
            fits = [f"{fit.sequences:,}" for fit in report.fits if fit.tokens == length]
            table.add_row(f"{length:,}", *fits[n : n + _ABREAST])
        yield table


def _waste(report: Report) -> Iterable[RenderableType]:
    windowed = any(waste.stale_bytes_worst for waste in report.waste)
    yield Text(
        "Internal waste a sequence: the unused end of its last block. The mean is for a length "
        "that is uniform modulo the block size."
    )
    columns = ["block bytes", "worst tokens", "mean tokens", "worst bytes", "mean bytes"]
    table = _table("block", columns)
    for waste in report.waste:
        table.add_row(
            f"{waste.block_size:,}",
            binary(waste.block_bytes),
            f"{waste.tail_tokens_worst:,}",
            half(waste.tail_tokens_twice_mean),
            binary(waste.tail_bytes_worst),
            binary(waste.tail_bytes_twice_mean // 2),
        )
    yield table
    if windowed:
        yield Text()
        yield Text(
            "Beyond the window, also the tokens in its oldest block that no token needs any more:"
        )
        table = _table("block", ["worst bytes", "mean bytes"])
        for waste in report.waste:
            table.add_row(
                f"{waste.block_size:,}",
                binary(waste.stale_bytes_worst),
                binary(waste.stale_bytes_twice_mean // 2),
            )
        yield table


def _table(first: str, columns: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    # A number that has no room is folded: cut off, it would be another number.
    table.add_column(
        first, justify="right" if first in ("tokens", "block") else "left", overflow="fold"
    )
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def presets() -> RenderableType:
    """The models that can be named, and what their layers keep."""
    table = _table("model", ())
    table.add_column("attention")
    table.add_column("layers", justify="right")
    table.add_column("Hugging Face")
    for one in PRESETS.values():
        model = one.architecture
        table.add_row(one.name, model.attention, str(model.num_layers), one.repo)
    return table
