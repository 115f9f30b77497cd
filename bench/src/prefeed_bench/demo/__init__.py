"""The demo: the same training twice, from slow storage, without and with prefeed.

``training`` is one of the two, in a process of its own; ``runner`` makes the data, the server and both trainings;
``report`` turns what they measured into a table and a chart.
"""
