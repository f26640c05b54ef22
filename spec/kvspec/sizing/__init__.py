"""How many bytes a KV cache takes: exact integers, for a model, a length and an element type.

`architecture` says what each layer keeps, `element` how many bytes that takes, `measure` adds
it up; `config` reads a model's `config.json`, `presets` holds some of them as data. Nothing here
knows of allocators: the block arithmetic is that of `kvspec.geometry`.
"""

from kvspec.sizing.architecture import Architecture, Heads, Latent, Layers, SizingError, Span
from kvspec.sizing.config import read_config, read_file
from kvspec.sizing.element import Element, Scales
from kvspec.sizing.measure import Measure, Slope, Waste
from kvspec.sizing.presets import PRESETS, Preset

__all__ = [
    "PRESETS",
    "Architecture",
    "Element",
    "Heads",
    "Latent",
    "Layers",
    "Measure",
    "Preset",
    "Scales",
    "SizingError",
    "Slope",
    "Span",
    "Waste",
    "read_config",
    "read_file",
]
