"""The kernel: facts, what happened, what is believed after it, and the judgement of it.

Read in this order: `state` (the facts), `events` (the words in which facts change),
`outcome` (what a call gave and what was looked at), `operation` (what may be called and what
the specification expects), `step` (one call, before and after), `law` (predicates over steps)
and `specification` (which puts them together). The kernel knows no capability.
"""
