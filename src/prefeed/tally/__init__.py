"""What the processes of one program count, for its last line: in memory that survives each of them.

``prefeed run`` makes a directory for the program, and names it in ``PREFEED_RUN``. Each Python process below it begins to
count. The command that sums up is ``prefeed.cli.last_line``. Every Python process of such a program imports this, so it
imports next to nothing itself.

``program``  counting in this process, in files that it maps
``opens``    files that are opened past the cache
"""
