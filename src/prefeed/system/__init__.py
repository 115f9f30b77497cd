"""The machine: files, locks, memory, processes, time. Nothing here knows of caches.

``machine``     the identity of this node and of its processes
``memory``      free memory of the machine and its control groups
``large_pages``  large pages for files in memory
``heap``        freed memory that the C library keeps
``memory_nodes``  nodes of a machine with several sockets
``files``       atomic, durable and private files
``locks``       locks of files and directories: immediate, with a limit, in turns
``thread_lock``  a lock of threads that a forked child finds free
``time_limit``  runs code of a program for a limited time
``byte_locks``  locks on single bytes that belong to one open file
``paths``       whether one place lies in another
``trust``       the owner of a directory, checked on an open descriptor
``removing``    removes trees; follows no link and enters no mount
``clock``       time as an argument
``signals``     which signals end a process of prefeed's
``units``       sizes and times in words
"""
