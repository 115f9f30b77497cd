"""Decisions: events go in, actions come out.

Nothing here touches a file, a socket, a clock, a thread or a logger (docs/adr/0002-policy.md), so every order of eviction,
every time-out and every crash is a plain unit test. The server is the only interpreter of the actions.

``schedule``     the machine that joins the others: start reading here
``actions``      what it asks its interpreter to do
``plan``         what one consumer will read, in order, how far it has come, and the part that is still needed
``consumers``    the plans of every consumer, and how its reads went
``lookahead``    what to fetch ahead for a plan, where there is room for it, and which objects go for it
``inventory``    what the node holds, what is on its way, and the byte budget
``shares``       one budget divided between objects and stage caches
``table``        state and size of every object of a manifest
``checks``       which files to ask whether they have changed, ahead of their reader
``requests``     how many may be in flight, and when a failed one is tried again
``policy``       what the best possible policy would reach
"""
