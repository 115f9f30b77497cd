"""Run summary of ``prefeed run``: counts of all processes of a program, printed when the program ends.

``counters``  counts in a mapped file, which outlives the process
``report``    sums up the counts of all processes and prints them at exit
``explain``   records which calls open files without the cache, for ``prefeed run --explain``
"""
