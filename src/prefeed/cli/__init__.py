"""The command line: one module a command or group of commands.

Data -> aggregate -> render are kept apart: a command asks the node server for a value (``backend.py``), ``render.py``
turns the value into text or JSON without knowing where it came from. Exit codes: 0 done, 1 failed, 2 wrong usage,
3 no server is running (``status``, ``stop``, ``stats``).
"""
