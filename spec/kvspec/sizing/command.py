"""`kvspec size`: how many bytes the KV cache of a model takes.

What cannot be sized is one clear line on standard error and exit code 2; nothing is printed
before everything is known.
"""

import difflib
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvspec.sizing import tables
from kvspec.sizing.architecture import Architecture, SizingError
from kvspec.sizing.config import read_file
from kvspec.sizing.element import element
from kvspec.sizing.presets import PRESETS, preset
from kvspec.sizing.report import BLOCK_SIZES, LENGTHS, Report, report
from kvspec.sizing.units import memory as parse_memory
from kvspec.sizing.units import shown, sizes

MOST_RANKS = 1 << 20


class _Stop(click.ClickException):
    """What cannot be carried out: one line, exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"kvspec: {' '.join(self.message.split())}", err=True)


class _OneLine(click.Command):
    """A command whose usage errors are one line, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _Stop(error.format_message()) from None


@click.command("size", cls=_OneLine)
@click.argument("model", metavar="MODEL_OR_CONFIG", required=False)
@click.option("--list", "list_models", is_flag=True, help="List the models that can be named.")
@click.option(
    "--tokens",
    metavar="N,...",
    default=",".join(f"{length >> 10}K" for length in LENGTHS),
    show_default=True,
    help="Lengths of a sequence in tokens; K is 1024.",
)
@click.option(
    "--dtype",
    metavar="TYPE",
    default="bf16",
    show_default=True,
    help="Type of the stored elements: bf16, fp16, fp32, fp8, int8 or int4.",
)
@click.option(
    "--scales",
    metavar="layer|head|group:N",
    help="One scale a layer, outside the pool (default for fp8); one a token and head, for K and "
    "for V (default for int8 and int4); or one for N elements.",
)
@click.option("--scale-bytes", metavar="S", help="Bytes of one scale. [default: 4]")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory for the cache on each rank, such as 24GiB (1024) or 24GB (1000).",
)
@click.option(
    "--tensor-parallel",
    metavar="RANKS",
    default="1",
    show_default=True,
    help="Ranks that share the heads.",
)
@click.option(
    "--block-size",
    metavar="N,...",
    default=",".join(map(str, BLOCK_SIZES)),
    show_default=True,
    help="Block sizes in tokens.",
)
@click.option("--json", "as_json", is_flag=True, help="Print exact integers as JSON.")
def size(
    model: str | None,
    list_models: bool,
    tokens: str,
    dtype: str,
    scales: str | None,
    scale_bytes: str | None,
    memory: str | None,
    tensor_parallel: str,
    block_size: str,
    as_json: bool,
) -> None:
    """Say how many bytes the KV cache of a model takes.

    MODEL_OR_CONFIG is a name (--list shows them), a repository on the Hugging Face hub that one
    of them is from, or the path of a config.json.
    """
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = tables.WIDTH
    if list_models:
        console.print(tables.presets())
        return
    try:
        if model is None:
            raise SizingError("name a model, or the path of a config.json; --list shows the names")
        each = None if scale_bytes is None else _number(scale_bytes, "--scale-bytes", 1 << 20)
        found = _report(
            model,
            element=element(dtype, scales, each),
            ranks=_number(tensor_parallel, "--tensor-parallel", MOST_RANKS),
            lengths=sizes(tokens, "--tokens"),
            block_sizes=sizes(block_size, "--block-size"),
            memory_bytes=None if memory is None else parse_memory(memory),
        )
    except SizingError as error:
        raise _Stop(str(error)) from None
    if as_json:
        click.echo(json.dumps(found.as_data(), indent=1))
    else:
        console.print(tables.render(found))


def _report(text: str, **options: Any) -> Report:
    named = preset(text)
    if named is not None:
        return report(
            named.architecture,
            source=f"{named.repo}, config.json",
            checked=named.checked,
            unchecked=named.unchecked,
            **options,
        )
    return report(_from_file(text), **options)


def _from_file(text: str) -> Architecture:
    path = Path(text)
    try:
        found = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if found:
        return read_file(path)
    names = [*PRESETS, *(one.repo for one in PRESETS.values())]
    close = difflib.get_close_matches(text.lower(), [name.lower() for name in names], 3, 0.7)
    hint = [name for name in names if name.lower() in close]
    try_this = f"did you mean {' or '.join(hint)}?" if hint else "--list shows the names"
    raise SizingError(f"{shown(text)} is neither a model that is known nor a file: {try_this}")


def _number(text: str, option: str, most: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and 0 < int(digits) <= most):
        raise SizingError(f"{option} {shown(text)} is no whole number from 1 to {most}")
    return int(digits)
