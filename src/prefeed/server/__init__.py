"""The node server: one process a user a node, the only one that fetches ahead. Never on the hit path.

main.py       start-up, which is recovery; the lock; the end
loop.py       one thread: sockets, wake-ups, timers
handlers.py   messages in, messages out
dataset_opener.py   manifests on their way, listed in threads of their own
warm_ups.py   filling the tier on request
node.py       carries out what ``core`` decides: start reading here
fetchers.py   threads that read origins
datasets.py   manifests opened, and what the tier holds of them
sessions.py   stage caches: made, listed, given room, dropped; rooms.py and session_files.py: their room, their files
"""
