"""What clients and the server say to each other, and how it is put into bytes (docs/adr/0003-wire.md).

``messages``  every message, typed
``frames``    length-prefixed msgpack on a stream socket
``endpoint``  the private directory of the socket, who is at the other end, and files that a client hands to its server
"""
