"""What the processes of one program count, for its last line: in memory that survives each of them.

``prefeed run`` makes a directory for the program, and names it in ``PREFEED_RUN``. Each Python process below it begins to
count in ``program``; ``shared`` is the memory, ``opens`` hears of files that are opened past the cache. The command that sums
up is ``prefeed.cli.last_line``.

Imported by every Python process of such a program: it imports next to nothing itself.
"""
