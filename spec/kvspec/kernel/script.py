"""Scripts: operations by the names of their methods, so that rooms can tell stories together."""

from typing import Any

from attrs import field, frozen


@frozen
class Call:
    """An operation by the name of its method and the fields of its kind.

    `fault` is the number of the checkpoint at which the call is made to fail, if any.
    """

    method: str
    fields: dict[str, Any] = field(factory=dict)
    fault: int = 0


def call(method: str, **fields: Any) -> Call:
    """The operation whose method is `method`.

    >>> call("append", seq=0, num_tokens=3)
    Call(method='append', fields={'seq': 0, 'num_tokens': 3}, fault=0)
    """
    return Call(method, fields)
