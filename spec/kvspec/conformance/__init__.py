"""The conformance tests: `pytest --pyargs kvspec.conformance --allocator TARGET -k stateful`."""
