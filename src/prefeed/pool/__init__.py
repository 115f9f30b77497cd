"""A cache that nodes share: memcached servers, and the layout of their values.

``servers``     which server has which key; the state and failures of each server
``connection``  one connection to one server
``values``      header, parts and checksums of a value (pure)
"""
