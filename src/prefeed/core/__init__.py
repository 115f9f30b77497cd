"""Decisions: events go in, actions come out.

Nothing here touches a file, a socket, a clock, a thread or a logger (docs/adr/0002-policy.md), so every order of eviction,
every time-out and every crash is a plain unit test. The server is the only interpreter of the actions.

    plan.py         what one consumer will read, in order, and how far it has come
    consumers.py    who reads: the plans of every consumer, and how its reads went
    table.py        the state of every object of a manifest, one byte an object
    sizes.py        their sizes: as listed, as seen, or guessed from the others
    holdings.py     what the node holds and what is on its way
    residency.py    the byte budget: what is kept, what is lent, what is refused
    lookahead.py    what to fetch ahead for a plan, and where there is room for it
    schedule.py     the machine that joins these: start reading here
    checks.py       which files to ask whether they have changed, ahead of their reader
    concurrency.py  how many requests may be in flight
    retry.py        when a failed fetch is tried again
    policy.py       what the best possible policy would reach
"""
