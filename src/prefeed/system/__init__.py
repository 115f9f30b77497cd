"""The machine below all else: files, locks, memory, processes, time. Knows nothing of caches.

``machine`` which node and process this is · ``memory`` what the machine and its control groups have left · ``files`` written whole and
durably, for this user alone · ``locks`` of files and directories, ``byte_locks`` of parts
of a file · ``paths`` that lie in one another · ``trust`` whose a directory is · ``removing`` directories, and nothing outside · ``clock`` time as an argument · ``units``
sizes and times in words
"""
