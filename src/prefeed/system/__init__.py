"""Wraps the operating system: files, locks, memory, processes and time. Knows nothing of caches.

``machine``     identity of this node and its processes
``memory``      free memory of the machine and its control groups
``heap``        freed memory that the C library keeps
``files``       atomic, durable and private files
``locks``       locks of files and directories, with limited waits
``thread_lock``  a lock for threads that is free in a forked child
``time_limit``  runs a function for a limited time
``byte_locks``  locks of single bytes that belong to one open file
``paths``       whether one path is below another
``trust``       checks the owner of an open directory
``removing``    removes trees without following links or entering mounts
``clock``       time as an argument
``signals``     signals that end a process of prefeed
``units``       formats sizes and times
"""
