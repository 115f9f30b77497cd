"""The machine below all else: files, locks, memory, processes, time. It knows nothing of caches.

``machine``     which node this is, and which of its processes
``memory``      what the machine and its control groups have left
``files``       files that are whole or absent, durable, private
``locks``       locks of files and directories: at once, with a limit, in turns
``byte_locks``  locks of single bytes that belong to one open file
``paths``       whether one place lies in another
``trust``       whose a directory is, asked of an open descriptor
``removing``    removes trees; follows no link and enters no mount
``clock``       time as an argument
``units``       sizes and times in words
"""
