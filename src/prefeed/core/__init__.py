"""Decisions: events go in, actions come out.

Nothing here touches a file, a socket, a clock, a thread or a logger (docs/adr/0002-policy.md), so every order of eviction,
every time-out and every crash is a plain unit test. The server is the only interpreter of the actions.

    plan.py         what one consumer will read, in order, and how far it has come
    table.py        the state of every object of a manifest, one byte an object
    residency.py    the byte budget: what is kept, what is lent, what is refused
    schedule.py     the machine that joins the three: start reading here
    concurrency.py  how many requests may be in flight
    retry.py        when a failed fetch is tried again
    policy.py       what the best possible policy would reach
"""
