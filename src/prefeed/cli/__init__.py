"""The command line: one module per command or group of commands.

A command asks the node server for a value (``backend``), and ``render``, or the ``..._view`` of the command, turns the value into
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
``server``           ``prefeed server``
``stats``            ``prefeed stats``
``warm``             ``prefeed warm``
``clear``            ``prefeed clear``
``session``          ``prefeed session``
``cache_admin``      MindSpore's ``cache_admin``
``cache_arguments``  its arguments
``doctor``           ``prefeed doctor``
``doctor_view``      what it prints
``tune``             ``prefeed tune``
``tune_view``        what it prints
``pack``             ``prefeed pack``
``pack_view``        what it prints
``stage``            ``prefeed stage``
``unstage``          ``prefeed unstage``
``stage_view``       of both
``job``              ``prefeed job``
``job_records``      its recorded jobs
``job_view``         what it prints
``sampleset``        ``prefeed sampleset``
``sampleset_sync``   its copying
``sampleset_view``   what it prints
``top``              ``prefeed top``
``top_source``       asks the server
``top_sets``         looks at sample sets
``top_model``        numbers (pure)
``top_view``         one frame (pure)
``top_app``          the screen
"""
