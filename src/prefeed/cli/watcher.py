"""Run as a file, by an interpreter of its own that imports next to nothing: says the last line when the program's first process
could not. Its arguments are the directory of the program, and a descriptor that tells when that process has ended.
"""

import fcntl
import json
import os
import select
import sys


def watch(directory: str, process: int) -> None:
    """Wait for the end of the first process, and say the last line if that has not."""
    try:
        held = os.open(f"{directory}/order", os.O_RDONLY)  # locked: it is not cleared away
    except FileNotFoundError:  # the program has ended, and said it
        return
    fcntl.flock(held, fcntl.LOCK_SH)
    ended = select.poll()
    ended.register(process, select.POLLIN)
    while not ended.poll():
        pass
    if not os.path.exists(directory):
        return
    with open(held, closefd=False) as file:
        order = json.load(file)
    sys.path[:] = order["path"]
    from prefeed.cli.last_line import say

    say(directory, order)


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]))
