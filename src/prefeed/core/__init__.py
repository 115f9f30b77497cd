"""Decisions: events go in, actions come out.

Nothing here touches a file, a socket, a clock, a thread or a logger (docs/adr/0002-policy.md). So every order of eviction,
every time-out and every crash is a plain unit test. Only the server carries out the actions.

``schedule``   the state machine that joins the others: start reading here
``actions``    the actions that it returns
``plan``       the order that one consumer reads, its position, and the part that is still needed
``consumers``  the plans of all consumers, and counts of their reads
``lookahead``  which objects to fetch ahead for a plan, and which ones to free for them
``inventory``  objects on the node and on their way, and the byte budget
``shares``     one budget divided between objects and stage caches
``table``      state and size of every object of a listing
``in_place``   whether samples are read in place, and what their reads show of storage
``origins``    sums over what loaders report of how they read, by origin
``node_sums``  sums of the counts of several servers
``checks``     which files to check for changes, ahead of their reader
``requests``   how many requests may be in flight, and when a failed one is retried
"""
