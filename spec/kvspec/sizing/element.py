"""How many bytes a stored vector takes: its elements, packed, and their scales.

Each vector (one head's key of one token, one token's latent) is packed on its own, so bits are
rounded up to whole bytes a vector. Where the scales of a quantised cache live differs between
engines, and decides how many bytes they take:

- one a layer, calibrated beforehand and kept beside the pool: nothing a token (vLLM's `fp8`);
- one a vector, so one a token and head for keys and one for values (vLLM's
  `int8_per_token_head`: a float32; an asymmetric scheme such as LMDeploy's needs a zero point,
  too: with two float16 it has 4 bytes as well);
- one a group of elements of a vector (llama.cpp's `q8_0`: 32 elements, a float16).
"""

from typing import Literal

from attrs import frozen

from kvspec.geometry import blocks_for
from kvspec.sizing.architecture import SizingError

BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "int8": 8, "int4": 4}
"""Bits an element, by the name of its type."""

QUANTISED = ("fp8", "int8", "int4")

SCALE_BYTES = 4
"""The default size of a scale: a float32, or a float16 with a float16 zero point."""


@frozen
class Scales:
    """Where a quantised cache keeps its scales, and how many bytes each takes.

    `per` is `layer` (outside the pool), `head` (one a stored vector) or `group` (one for every
    `group` elements of a vector, the last group being shorter where they do not divide it).
    """

    per: Literal["layer", "head", "group"]
    bytes_each: int = SCALE_BYTES
    group: int | None = None

    def of_vector(self, dim: int) -> int:
        """The bytes of the scales that are stored with a vector of `dim` elements.

        >>> Scales("group", 2, group=32).of_vector(128), Scales("layer").of_vector(128)
        (8, 0)
        """
        if self.per == "layer":
            return 0
        return self.bytes_each * (1 if self.group is None else blocks_for(dim, self.group))

    def __str__(self) -> str:
        if self.per == "layer":
            return "one scale a layer, outside the pool"
        each = f"one scale of {self.bytes_each} bytes"
        return f"{each} a vector" if self.group is None else f"{each} for {self.group} elements"


@frozen
class Element:
    """The type of the stored elements, and the scales that go with it."""

    dtype: str = "bf16"
    scales: Scales | None = None

    @property
    def bits(self) -> int:
        """Bits an element."""
        return BITS[self.dtype]

    def vector_bytes(self, dim: int) -> int:
        """The bytes of one stored vector of `dim` elements, its scales included.

        >>> Element("bf16").vector_bytes(128), Element("int4").vector_bytes(5)
        (256, 3)
        >>> Element("int8", Scales("group", 2, group=32)).vector_bytes(32)
        34
        """
        packed = blocks_for(dim * self.bits, 8)
        return packed + (0 if self.scales is None else self.scales.of_vector(dim))


BF16 = Element()


def element(dtype: str, scales: str | None = None, scale_bytes: int | None = None) -> Element:
    """The element that the command line's words name; `SizingError` says which word is wrong.

    Without `scales`, fp8 has one scale a layer, int8 and int4 one a token and head.

    >>> element("int4").scales
    Scales(per='head', bytes_each=4, group=None)
    >>> element("int4", "group:32", 2).scales
    Scales(per='group', bytes_each=2, group=32)
    """
    if dtype not in BITS:
        raise SizingError(f"--dtype {dtype!r} is none of {', '.join(BITS)}")
    if dtype not in QUANTISED:
        if scales is not None or scale_bytes is not None:
            raise SizingError(f"{dtype} has no scales: they belong to {', '.join(QUANTISED)}")
        return Element(dtype)
    words = scales or ("layer" if dtype == "fp8" else "head")
    per, colon, size = words.partition(":")
    if per in ("layer", "head") and not colon:
        if per == "layer" and scale_bytes is not None:
            raise SizingError("--scale-bytes counts nothing with one scale a layer")
        return Element(dtype, Scales(per, scale_bytes or SCALE_BYTES))  # type: ignore[arg-type]  # one of the words that were just asked for
    if per == "group" and size.isascii() and size.isdigit() and 0 < int(size) <= 1 << 20:
        return Element(dtype, Scales("group", scale_bytes or SCALE_BYTES, int(size)))
    raise SizingError(f"--scales {words!r} is none of layer, head, group:N with N of at least 1")
