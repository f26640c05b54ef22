"""Adapters: allocators of real engines, translated to the interface and in no other way changed.

Each module needs its engine installed and raises `ImportError` where it is not; this package
imports none of them.
"""
