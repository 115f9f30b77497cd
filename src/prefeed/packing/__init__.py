"""Many small files in few large ones, and an index that finds them again.

Start with ``driver.pack``; ``foreign.index_files`` indexes what other programs have packed. Reading a pack is no matter
of this room: to the rest of prefeed a pack is one more origin (``prefeed.sources.packed``).
"""
