"""``python -m prefeed``: the ``prefeed`` command."""

from prefeed.cli.main import main

if __name__ == "__main__":
    main()
