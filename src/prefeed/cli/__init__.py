"""The command line: one module per command or group of commands.

A command requests a value from the node server through ``backend``. ``render``, or the end of the command's module, formats the
value as text or JSON. ``failure`` has the exit codes. Other distributions add commands with entry points: prefeed-bench adds
``prefeed bench`` and ``prefeed demo``.

``main``           the ``prefeed`` command: start reading here
``commands``       options and help that all commands share: examples, ``-v``, suggestions
``examples``       examples of each command
``backend``        node servers as the commands use them; tests pass a fake
``options``        options that several commands share
``url``            resolves URLs and paths that users type
``render``         formats values as text and JSON
``text``           escapes and masks text for terminals
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
