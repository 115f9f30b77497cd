"""``python -m prefeed.server``: run the node server in the foreground."""

import sys

from prefeed.server.main import main

sys.exit(main())
