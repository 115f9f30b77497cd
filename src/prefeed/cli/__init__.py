"""The command line: one module per command or group of commands.

A command asks the node server for a value through ``backend``. ``render``, or the end of the command's module, turns the value into
text or JSON. Exit codes: ``failure``. Other distributions add commands by entry points: ``prefeed bench`` and ``prefeed demo``
belong to prefeed-bench.

``main``           the ``prefeed`` command: start reading here
``commands``       what all commands have: examples, ``-v``, suggestions
``examples``       examples of each command
``backend``        the functions that commands call in the rest of prefeed; tests pass a fake
``options``        options that several commands share
``url``            URLs as users type them
``render``         values as text and JSON
``text``           text that a terminal can print
``failure``        the message and exit code of a failed command
``run``            ``prefeed run``
``server``         ``prefeed server``
``stats``          ``prefeed stats``
``watch``          the screen of ``prefeed stats --watch``
``warm``           ``prefeed warm``, ``prefeed clear``
``cache_admin``    MindSpore's ``cache_admin``
``doctor``         ``prefeed doctor``
``tune``           ``prefeed tune``
``mount``          ``prefeed mount``, ``prefeed umount``
``pack``           ``prefeed pack``
``stage``          ``prefeed stage``
``sync``           ``prefeed sync``
``job``            ``prefeed job``
``sampleset``      ``prefeed sampleset``
``kubernetes``     ``prefeed kubernetes``
``operator``       ``prefeed operator``
``settings``       ``prefeed config``
``logs``           ``prefeed logs``
"""
