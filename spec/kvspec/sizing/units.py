"""Numbers with units, in and out: tokens (K is 1024) and bytes (KiB is 1024, KB is 1000)."""

import re
from fractions import Fraction

from kvspec.sizing.architecture import SizingError

TOKENS = {"": 1, "K": 1 << 10, "M": 1 << 20}
BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_BYTES = {name.lower(): size for name, size in BYTES.items()}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([A-Za-z]*)")


def tokens(text: str, option: str = "--tokens") -> int:
    """A number of tokens of at least 1; `K` is 1024 and `M` 1024 times that.

    >>> tokens("8K"), tokens("1500")
    (8192, 1500)
    """
    match = _NUMBER.fullmatch(text.strip())
    unit = match and TOKENS.get(match[2].upper())
    if not match or not unit:
        raise SizingError(f"{option} {shown(text)} is no number of tokens, such as 1500, 8K or 1M")
    return _whole(Fraction(match[1]) * unit, text, option, "tokens")


def sizes(text: str, option: str) -> tuple[int, ...]:
    """The numbers of tokens in a list with commas, each once."""
    return tuple(dict.fromkeys(tokens(part, option) for part in text.split(",")))


def memory(text: str, option: str = "--memory") -> int:
    """A number of bytes of at least 1, with its unit: no unit would be a guess.

    >>> memory("24GiB"), memory("1.5 GB")
    (25769803776, 1500000000)
    """
    match = _NUMBER.fullmatch(text.strip())
    unit = match and _BYTES.get(match[2].lower())
    if not match or not unit:
        raise SizingError(
            f"{option} {shown(text)} is no size with its unit: GiB is 1024 MiB, GB is 1000 MB"
        )
    return _whole(Fraction(match[1]) * unit, text, option, "bytes")


def _whole(value: Fraction, text: str, option: str, what: str) -> int:
    if value.denominator != 1 or value < 1:
        raise SizingError(f"{option} {shown(text)} is not a whole number of {what} of at least 1")
    return int(value)


def shown(text: str) -> str:
    """The text as an error quotes it: on one line and not too long."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def binary(number: int) -> str:
    """The bytes in the largest binary unit that they fill: exact, or rounded to one decimal.

    Halves are rounded up.

    >>> binary(131_072), binary(31_104), binary((1 << 30) + 1), binary(5 << 28)
    ('128 KiB', '30.4 KiB', '1.0 GiB', '1.3 GiB')
    """
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def decimal(number: int) -> str:
    """The bytes in the largest decimal unit that they fill: exact, or rounded to one decimal.

    >>> decimal(131_072), decimal(4_063_232)
    ('131.1 KB', '4.1 MB')
    """
    return _scaled(number, 1000, ("B", "KB", "MB", "GB", "TB"))


def _scaled(number: int, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while power < len(units) - 1 and number >= base ** (power + 1):
        power += 1
    whole, rest = divmod(number, base**power)
    if not rest:
        return f"{whole:,} {units[power]}"
    whole, tenth = divmod((20 * number + base**power) // (2 * base**power), 10)
    return f"{whole:,}.{tenth} {units[power]}"


def half(twice: int) -> str:
    """Half of a whole number, exactly.

    >>> half(15), half(16)
    ('7.5', '8')
    """
    return f"{twice // 2:,}{'.5' if twice % 2 else ''}"
