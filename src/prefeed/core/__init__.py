"""Decisions: events go in, actions come out.

Nothing here touches a file, a socket, a clock, a thread or a logger (docs/adr/0002-policy.md), so every order of eviction,
every time-out and every crash is a plain unit test. The server is the only interpreter of the actions.

``schedule``     the machine that joins the others: start reading here
``actions``      what it asks its interpreter to do
``plan``         what one consumer will read, in order, and how far it has come
``window``       the part of an order that is needed at the moment
``consumers``    the plans of every consumer, and how its reads went
``lookahead``    what to fetch ahead for a plan, and where there is room for it
``next_use``     who goes for whom, when the next use of each object is known
``inventory``    what the node holds, and what is on its way
``residency``    the byte budget: what is kept, lent, refused
``shares``       one budget divided between objects and stage caches
``table``        the state of every object of a manifest, one byte each
``sizes``        sizes of objects: as listed, as seen, or guessed
``checks``       which files to ask whether they have changed, ahead of their reader
``concurrency``  how many requests may be in flight
``retry``        when a failed fetch is tried again
``again``        when a failed connection is tried again
``policy``       what the best possible policy would reach
"""
