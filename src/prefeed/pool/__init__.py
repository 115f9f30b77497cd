"""A cache that nodes share: memcached servers, and what prefeed keeps in them.

``servers``     which server has which key; each server, and its failures
``connection``  one connection, two commands
``values``      header, parts and sums of a value
"""
