"""Messages between clients and the server, and their bytes (docs/adr/0003-wire.md).

``messages``  every message, typed
``frames``    length-prefixed msgpack on a stream socket
``endpoint``  the socket's private directory, the check of the peer, and files for the server
"""
