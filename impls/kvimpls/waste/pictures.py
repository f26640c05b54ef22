"""The pictures of a replay as PNG files: who has the memory, over time, and by block size.

They need matplotlib (the extra `plots`), which is imported on use and draws without a display.
The colours are those of Okabe and Ito, which colour-blind people can tell apart; whatever they
tell apart differs in brightness or in the style of its line as well.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING, Any

from kvimpls.waste.requests import WasteError
from kvimpls.waste.result import Result
from kvimpls.waste.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORED, FUTURE, INTERNAL, FREE = "#0072B2", "#56B4E9", "#E69F00", "#E5E5E5"
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
_STYLES = ("-", "--", "-.", ":")
_MOST_LINES = 8
_DOTS_PER_INCH = 110

PARTS = (
    ("stored", STORED, "stored"),
    ("future", FUTURE, "reserved for this request's future"),
    ("internal", INTERNAL, "reserved, never used (internal)"),
    ("free", FREE, "free"),
)


def require_matplotlib() -> None:
    """Raise `WasteError`, saying how to get it, unless matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401  # only whether it is there
    except ImportError:
        raise WasteError(
            "--plots needs matplotlib, which is not installed: pip install 'kvspec[plots]'"
        ) from None


def figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, without pyplot, so without a display or global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")


def as_png(drawn: "Figure", colours: int | None = None) -> bytes:
    """The figure as a file; with so many colours at most, if it is to be small."""
    buffer = BytesIO()
    drawn.savefig(buffer, format="png", metadata={"Software": None})
    if colours is None:
        return buffer.getvalue()
    from PIL import Image  # matplotlib needs it, too

    with Image.open(buffer) as image:
        small = BytesIO()
        image.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(
            small, format="PNG", optimize=True
        )
    return small.getvalue()


def bars(results: Sequence[Result], title: str) -> "Figure":
    """A bar a scheme: the share of the capacity that is stored, future, internal and free."""
    drawn = figure(9, 1.9 + 0.33 * len(results))
    axes = drawn.subplots()
    _draw_bars(axes, results)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("percent of the capacity, mean over the saturated window")
    _legend_below(drawn, axes)
    return drawn


def many_bars(groups: Mapping[str, Sequence[Result]], title: str) -> "Figure":
    """The bars of several traces beside each other, with the same schemes in each."""
    most = max(len(results) for results in groups.values())
    drawn = figure(2.9 * len(groups) + 1, 1.7 + 0.27 * most)
    every = drawn.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (name, results) in zip(every, groups.items(), strict=True):
        _draw_bars(axes, results, decimals=0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("% of the capacity", fontsize=9)
        axes.set_xticks((0, 25, 50, 75, 100))
    drawn.suptitle(title, fontsize=10)
    # In inches: the last number of one panel stands beside the first of the next.
    drawn.set_layout_engine("constrained", w_pad=0.12)
    _legend_below(drawn, every[0])
    return drawn


def _draw_bars(axes: Any, results: Sequence[Result], decimals: int = 1) -> None:
    rows = range(len(results))
    left = [0.0] * len(results)
    for name, colour, label in PARTS:
        widths = [100 * getattr(result.shares, name, 0.0) for result in results]
        axes.barh(rows, widths, left=left, color=colour, label=label, height=0.75)
        if name == "stored":
            for row, width in zip(rows, widths, strict=True):
                inside = width > 12
                axes.text(
                    width - 1 if inside else width + 1,
                    row,
                    f"{width:.{decimals}f}",
                    ha="right" if inside else "left",
                    va="center",
                    color="white" if inside else "black",
                    fontsize=8,
                )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(rows, [result.scheme for result in results], fontsize=9)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(results) - 0.5, -0.5)  # the first at the top
    axes.spines[["top", "right"]].set_visible(False)


def _legend_below(drawn: "Figure", axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(4, len(labels)),
        fontsize=8,
        frameon=False,
    )


def over_time(runs: Sequence[Run], title: str) -> "Figure":
    """Two panels over the steps: percent of the capacity that stores tokens, and requests.

    Where one scheme takes more than twice as long as all others, its end is not shown.
    """
    drawn = figure(9, 6)
    upper, lower = drawn.subplots(2, 1, sharex=True)
    shown = [(run.result, run.series) for run in representative(runs) if run.series is not None]
    styles = cycle(_STYLES)
    for (result, series), colour in zip(shown, _LINES, strict=False):
        look: dict[str, Any] = {"color": colour, "linestyle": next(styles), "linewidth": 1.3}
        stored = [100 * tokens / result.capacity for tokens in series.stored]
        name = f"{result.scheme} ({result.total.steps:,} steps)"
        upper.plot(series.times, stored, label=name, **look)
        lower.plot(series.times, series.running, **look)
    upper.set_ylabel("stored, % of the capacity")
    upper.set_ylim(0, 100)
    lower.set_ylabel("running requests")
    lower.set_ylim(bottom=0)
    ends = sorted(result.total.steps for result, _ in shown)
    cut = len(ends) > 1 and ends[-1] > 2 * ends[-2]
    lower.set_xlim(0, 1.1 * ends[-2] if cut else ends[-1])
    lower.set_xlabel("step (one token for each running request)")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    with_thousands(lower.xaxis)
    upper.set_title(title, fontsize=10)
    _legend_below(drawn, upper)
    return drawn


def representative(runs: Sequence[Run]) -> list[Run]:
    """All runs, if their lines can be told apart, else one of each family: `paged` at its finest.

    Otherwise the first of a family stands for it.
    """
    if len(runs) <= _MOST_LINES:
        return list(runs)
    families: dict[str, Run] = {}
    for run in runs:
        family, _, variant = run.result.scheme.partition(":")
        before = families.setdefault(family, run)
        if family == "paged" and int(variant) < int(before.result.scheme.partition(":")[2]):
            families[family] = run
    return list(families.values())[:_MOST_LINES]


def with_thousands(axis: Any) -> None:
    """Number an axis like 131,072."""
    from matplotlib.ticker import StrMethodFormatter

    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def by_block_size(results: Sequence[Result], title: str) -> "Figure":
    """The capacity that stores nothing, by the block size of `paged`, and what half a block is."""
    drawn = figure(7.5, 4.5)
    axes = drawn.subplots()
    sizes = [int(result.scheme.partition(":")[2]) for result in results]
    bottom = [0.0] * len(results)
    places = range(len(results))
    for name, colour, label in PARTS[1:]:
        heights = [100 * getattr(result.shares, name, 0.0) for result in results]
        axes.bar(
            places,
            heights,
            bottom=bottom,
            label=label,
            width=0.7,
            color="#B0B0B0" if name == "free" else colour,
        )
        bottom = [before + height for before, height in zip(bottom, heights, strict=True)]
    for place, height in zip(places, bottom, strict=True):
        axes.annotate(
            f"{height:.2f}",
            (place, height),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    half = [
        100 * (size - 1) / 2 * (result.concurrency or 0.0) / result.capacity
        for size, result in zip(sizes, results, strict=True)
    ]
    axes.plot(places, half, "k--o", markersize=4, linewidth=1, label="(B − 1) / 2 a request")
    axes.set_xticks(places, [str(size) for size in sizes])
    axes.set_xlabel("block size B, tokens")
    axes.set_ylabel("not storing tokens, % of the capacity")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return drawn
