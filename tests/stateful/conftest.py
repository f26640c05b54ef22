"""The registered allocators, as the conformance suite takes them."""

from kvspec.conformance.conftest import *  # noqa: F403  # its fixtures and parametrisation
