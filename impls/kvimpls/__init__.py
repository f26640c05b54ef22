"""Implementations of KV-cache block allocators, each held to the specification in `kvspec`.

From kvspec they import the names of the plug-in interface and nothing else: an
implementation that shared the specification's arithmetic could not be judged by it.
"""
