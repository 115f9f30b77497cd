"""Run summary of ``prefeed run``: counts of all processes of a program, printed when the program ends.

``counters``  counters of this process, in a mapped file that outlives it
``report``    sums them up and prints them at exit
``explain``   records which calls open files without the cache, for ``prefeed run --explain``
"""
