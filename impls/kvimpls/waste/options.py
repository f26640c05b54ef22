"""How the options of `kvspec waste` are read, and how a mistake in them is told: in one line."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click


class Stop(click.ClickException):
    """What cannot be carried out: one line, exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print it as all commands of kvspec do."""
        click.echo(f"kvspec: {' '.join(self.message.split())}", err=True)


class OneLineCommand(click.Command):
    """A command whose mistakes of usage are one line, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise Stop(f"waste: {error.format_message()}") from None


def whole(most: int | None = None) -> Callable[..., int | None]:
    """A callback that reads a whole number above 0, and of at most `most`."""

    def read_number(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> int | None:
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
            raise click.BadParameter(f"{text!r} is no whole number above 0")
        if most is not None and int(text) > most:
            raise click.BadParameter(f"{text} is more than {most}")
        return int(text)

    return read_number


def sizes(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """A callback that reads whole numbers above 0, with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9][0-9]{0,17}", part) for part in parts):
        raise click.BadParameter(f"{text!r} is no list of whole numbers above 0, like 8,16,32")
    return tuple(int(part) for part in parts)


def seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """A callback that reads seconds as a decimal, kept as text, which is exact."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text) or not Fraction(text):
        raise click.BadParameter(f"{text!r} is no number of seconds above 0, like 0.03")
    return text
