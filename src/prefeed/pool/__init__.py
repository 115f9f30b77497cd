"""A cache that nodes share: memcached servers, and what prefeed keeps in them."""
