"""A stack of attention layers, run twice: over the whole sequence, and with a cache a layer.

It is as little of a transformer as shows why caching is right: a layer's keys and values are
made from what the layer below gave at the same position, which by causality no later token
changes. Both ways count their multiply-adds as they go.
"""

import numpy as np
from attrs import define, field, frozen

from kvspec.attention.causal import Array, seen
from kvspec.attention.cost import Shape, Tally
from kvspec.attention.decode import KVCache, attend


@frozen(eq=False)
class Layer:
    """The projections of one layer.

    Shapes: `w_q` is `(d_model, n_heads, d_head)`, `w_k` and `w_v` are
    `(d_model, n_kv_heads, d_head)`, `w_o` is `(n_heads, d_head, d_model)`.
    """

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array


def random_layers(shape: Shape, seed: int) -> tuple[Layer, ...]:
    """Layers of that shape, drawn from `seed`; what comes out is about as large as what went in."""
    random = np.random.default_rng(seed)

    def draw(*sizes: int, inputs: int) -> Array:
        weights: Array = random.standard_normal(sizes) / np.sqrt(inputs)
        return weights

    d, h, kv, width = shape.d_model, shape.n_heads, shape.n_kv_heads, shape.d_head
    return tuple(
        Layer(
            w_q=draw(d, h, width, inputs=d),
            w_k=draw(d, kv, width, inputs=d),
            w_v=draw(d, kv, width, inputs=d),
            w_o=draw(h, width, d, inputs=h * width),
        )
        for _ in range(shape.n_layers)
    )


def _project(x: Array, weights: Array, axes: int, tally: Tally) -> Array:
    """`x` times `weights`, summed over the last `axes` axes of `x`."""
    projected: Array = np.tensordot(x, weights, axes=axes)
    vectors = x.size // int(np.prod(weights.shape[:axes]))
    tally.projections += vectors * weights.size
    return projected


def _attend(q: Array, k: Array, v: Array, tally: Tally) -> Array:
    tally.attention += q.shape[0] * len(k) * (k.shape[-1] + v.shape[-1])
    return attend(q, k, v)


def recompute(
    layers: tuple[Layer, ...], x: Array, tally: Tally, *, window: int | None = None
) -> Array:
    """The outputs of all positions, from the inputs of all positions.

    Shapes: `x` and the result are `(tokens, d_model)`. Each layer adds its output to its input.
    """
    for layer in layers:
        q = _project(x, layer.w_q, 1, tally)
        k = _project(x, layer.w_k, 1, tally)
        v = _project(x, layer.w_v, 1, tally)
        views = [slice(s.start, s.stop) for s in (seen(i, window) for i in range(len(x)))]
        heads = np.array([_attend(q[i], k[view], v[view], tally) for i, view in enumerate(views)])
        x = x + _project(heads, layer.w_o, 2, tally)
    return x


@define
class Decoder:
    """The same layers one token at a time, with the keys and values of each layer cached."""

    layers: tuple[Layer, ...]
    window: int | None = None
    tally: Tally = field(init=False, factory=Tally)
    _caches: tuple[KVCache, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with empty caches."""
        self._caches = tuple(KVCache(self.window) for _ in self.layers)

    def step(self, x: Array) -> Array:
        """The output of the next position, from its input alone and the caches.

        Shapes: `x` and the result are `(d_model,)`.
        """
        tally = self.tally
        for layer, cache in zip(self.layers, self._caches, strict=True):
            q = _project(x, layer.w_q, 1, tally)
            k = _project(x, layer.w_k, 1, tally)
            v = _project(x, layer.w_v, 1, tally)
            cache.append(k, v)
            x = x + _project(_attend(q, *cache.rows, tally), layer.w_o, 2, tally)
        return x
