"""The pytest plugin: the options, and nothing else. It loads in everybody's pytest."""

import os
from typing import Any


def pytest_addoption(parser: Any) -> None:
    """Add the options of the conformance suite."""
    group = parser.getgroup("kvspec", "conformance of KV-cache block allocators")
    group.addoption(
        "--allocator",
        action="append",
        default=[],
        metavar="TARGET",
        help="module:factory, path/to/file.py:factory or a registered name (may be repeated)",
    )
    group.addoption("--contract", metavar="NAME|FILE.json|FIELD=VALUE,...", help="what it promises")
    group.addoption(
        "--kvspec-profile",
        choices=("quick", "ci", "thorough"),
        default="ci",
        help="how much the machines try (default: ci)",
    )
    group.addoption("--kvspec-seed", type=int, default=0, help="the seed of the machines")
    group.addoption(
        "--kvspec-hypothesis-backend",
        choices=("hypothesis", "crosshair"),
        default="hypothesis",
        help="what the machines draw from (default: hypothesis)",
    )
    group.addoption("--kvspec-device", metavar="cpu|cuda|...", help="sets KVSPEC_DEVICE")
    group.addoption("--call-timeout", type=float, default=None, help="seconds a call may take")
    group.addoption("--save-traces", metavar="DIR", help="where counterexamples are saved")


def pytest_configure(config: Any) -> None:
    """Stop at once, with one line, where what the options name cannot be tested."""
    if device := config.getoption("--kvspec-device"):
        os.environ["KVSPEC_DEVICE"] = device
    if config.getoption("--allocator") or config.getoption("--contract") is not None:
        from kvspec.conformance import named_targets

        named_targets(config)
