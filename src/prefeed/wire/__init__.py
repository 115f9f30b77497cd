"""What clients and the server say to each other, and how it is put into bytes (docs/adr/0003-wire.md).

messages.py   every message, typed
frames.py     length-prefixed msgpack on a stream socket
endpoint.py   the private directory of the socket, and whose process is at the other end
"""
