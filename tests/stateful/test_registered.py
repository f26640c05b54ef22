"""The machines for every registered allocator: the tests that anyone runs on theirs."""

from kvspec.conformance.test_stateful import test_stateful

__all__ = ["test_stateful"]
