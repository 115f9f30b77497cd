"""How each client reaches its origins: what it sees of file systems, and who speaks to its stores."""

from __future__ import annotations

from dataclasses import dataclass

from prefeed.errors import ServerError
from prefeed.server.loop import Connection
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.views import View, Views
from prefeed.system.machine import network_namespace
from prefeed.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the client that asks reaches its origins.

    Attributes:
        view: What it sees of file systems; None: what this server sees.
        access: How it reaches the object store; None: as the home's own file says.
        shares_network: Addresses of the machine itself, and short names, mean to it what they mean to this server.
    """

    view: View | None = None
    access: StoreAccess | None = None
    shares_network: bool = True


def reach_of(connection: Connection, request: m.OpenDataset | m.RenewAccess | m.Warm) -> Reach:
    """Return how the client that asks reaches its origins."""
    told = request.options
    access = None if told is None else StoreAccess(options=told, proxies=request.proxies)
    return Reach(view=connection.view, access=access, shares_network=connection.shares_network)


def see_as(connection: Connection, hello: m.Hello, views: Views) -> None:
    """Whatever this client opens is read as it sees it.

    Raises:
        ServerError: It cannot be; the message says why, and what to change.
    """
    connection.shares_network = hello.network == network_namespace()
    root, connection.root = connection.root, None
    if root is None:
        raise ServerError("the client showed no root directory: the server cannot tell whether it sees the same files")
    try:
        connection.view = views.attach(root, hello.devices)
    except OSError as err:
        raise ServerError(
            "the node server runs in another mount namespace (another container), and cannot read files as this one sees "
            f"them: {err.strerror}; set another PREFEED_HOME here"
        ) from err
