"""The client's half: reading from the tier, asking the server on a miss, going to the origin when nobody answers.

launch.py      start the node server, once, whoever comes first
connection.py  one socket, one process, one thread at a time
node.py        what commands ask: status, statistics, warm, clear, stop
dataset.py     a dataset of the node: its manifest, its number, its order
reader.py      the hit path, and what happens off it: start reading here
direct.py      the origin, read in this process, when the cache cannot help
"""
