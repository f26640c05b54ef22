"""The driver: the only place where an allocator is called.

Allocators under test are hostile. Whatever they raise, return, alias or never return becomes
part of an outcome, for the laws to judge; nothing of it escapes.
"""
