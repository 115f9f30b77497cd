"""Addresses that mean another machine to each machine, and to each container: they say nothing of what is reached by them."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True when this is who asks: an address or a name of the machine, or the container, that it is used in."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_relative(host: str) -> bool:
    """Return True when containers on one machine may reach different servers by it.

    It is a loopback address, or a name without a dot: each network of containers has names of its own, and each namespace
    of Kubernetes its services.
    """
    name = host.strip("[]").rstrip(".")
    return is_loopback(host) or not ("." in name or ":" in name)
