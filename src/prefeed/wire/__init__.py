"""What clients and the server say to each other, and how it is put into bytes (docs/adr/0003-wire.md).

``messages``          every message, typed
``session_messages``  those about sessions and stage caches
``root``              what all messages have in common
``frames``            length-prefixed msgpack on a stream socket
``endpoint``          the private directory of the socket, and who is at the other end
``transit``           files that a client hands to its server
"""
