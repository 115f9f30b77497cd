"""Measures whether a job waits for data, and what helps.

``doctor``         whether a loop waits for data, and for which step
``tune``           the fastest settings of a loader
``loader_clones``  loaders like the user's, and the conditions of their runs
``measurement``    the measured numbers
"""
