"""Counts of the processes of one program, in memory that survives each of them, for the last line of ``prefeed run``.

``prefeed run`` creates a directory for the program and names it in ``PREFEED_RUN``. Each Python process below it counts there, and
``prefeed.cli.last_line`` adds the counts up. Every Python process of the program imports this package, so it imports almost
nothing itself.

``program``   counts of this process, in mapped files
``opens``     files that are opened past the cache
``estimate``  the same for samples that are read in place, from a part of them
``native``    readers that open files in C++
"""
