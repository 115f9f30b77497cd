"""The command line: one module per command or group of commands.

A command asks the node server for a value (``backend``), and ``render``, or the end of the command's module, turns the value into
text or JSON without knowing where it came from. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no server is running
(``status``, ``stop``, ``stats``). Other distributions bring commands by entry points; ``prefeed bench`` and ``prefeed demo`` are prefeed-bench's.

``main``             the ``prefeed`` command: start reading here
``backend``          what commands need from the rest; tests hand in a fake
``options``          options that several commands share
``url``              URLs as people type them
``render``           values to text and JSON
``text``             text that a terminal can print
``failure``          what a failed command says
``run``              ``prefeed run``
``recording``        what it prepares, so that there is a last line
``watcher``          says the last line when the program cannot
``last_line``        who says it, and what is written for machines
``program_facts``    what the program did (pure)
``server``           ``prefeed server``, ``prefeed stats``
``warm``             ``prefeed warm``, ``prefeed clear``
``session``          ``prefeed session``
``cache_admin``      MindSpore's ``cache_admin``
``doctor``           ``prefeed doctor``
``tune``             ``prefeed tune``
``pack``             ``prefeed pack``
``stage``            ``prefeed stage``, ``prefeed unstage``
``job``              ``prefeed job``
``sampleset``        ``prefeed sampleset``
``top``              ``prefeed top``, and its looks at the server
``top_view``         numbers, and one frame (pure)
``top_app``          the screen
"""
