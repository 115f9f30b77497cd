"""The pool tier is there when servers are named, and its client is needed only then."""

from __future__ import annotations

import sys

import pytest

from prefeed.config import Config
from prefeed.errors import ConfigError
from prefeed.server.main import open_pool

pytestmark = pytest.mark.usefixtures("sandbox")

NOBODY = "127.0.0.1:1"


def test_a_named_server_makes_a_tier_even_if_it_does_not_answer() -> None:
    tier = open_pool(Config(pool=NOBODY))
    assert tier is not None
    tier.close()
    assert tier.counts().servers == 1


def test_without_the_client_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("pymemcache.", "prefeed.pool.", "prefeed.server.pool"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymemcache", None)
    with pytest.raises(ConfigError, match=r"pip install 'prefeed\[pool\]'"):
        open_pool(Config(pool=NOBODY))
    assert open_pool(Config()) is None
