"""The driver: the only place where an allocator is called.

Allocators under test are hostile. Whatever they raise, return, alias or never return becomes
part of an outcome, for the laws to judge; nothing of it escapes. The exception is
`KeyboardInterrupt`: a Ctrl-C must stop the suite wherever it strikes, and cannot be told from
one that an allocator raised by itself.
"""
