"""Adds up the cache sizes of a set's servers for its status. Pure.

As in the Paddle operator, the status has the sum of all servers. The cached size is capped at the total size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from prefeed.errors import SpecError
from prefeed.kubernetes.nodes import MOST_NODES, NODE, mode_of, runtime_name
from prefeed.kubernetes.operator.groups import MOST_SAID, Group
from prefeed.kubernetes.sizes import PATH, PORT, Report
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET
from prefeed.system.units import format_bytes

_OF_DATA: Final = ("totalSize", "totalFiles")
"""Fields that keep their values while no server runs."""

_OF_SERVERS: Final = ("cachedSize", "diskSize", "diskUsed", "diskAvail", "diskUsageRate")
_TWO_DIGITS: Final = 10


def servers_of(group: Group) -> dict[str, str]:
    """Return the URLs of a set's servers by pod. In mode node, all servers of the set are listed once one is ready.

    Pods in the network of their node are omitted, because another pod may use the port there.
    """
    document = group.document(SAMPLE_SET)
    if document is None or document["metadata"].get("deletionTimestamp"):
        return {}
    name = group.key.name
    try:
        is_on_nodes = mode_of(document) == NODE
    except SpecError:  # reported in the status of the set
        return {}
    if is_on_nodes:
        made = group.made.get(("StatefulSet", runtime_name(name)), {})
        if not (made.get("status") or {}).get("readyReplicas"):
            return {}
        of_set = f"{runtime_name(name)}.{group.key.namespace}.svc"
        wanted = min(int(document["spec"].get("partitions") or 0), MOST_NODES)
        pods = (f"{runtime_name(name)}-{index}" for index in range(wanted))
        return {pod: f"http://{pod}.{of_set}:{PORT}{PATH}" for pod in pods}
    return {
        pod["metadata"]["name"]: f"http://{_in_url(status['podIP'])}:{PORT}{PATH}"
        for pod in group.pods
        if (status := pod.get("status") or {}).get("phase") == "Running"
        and status.get("podIP")
        and status["podIP"] != status.get("hostIP")
    }


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def is_complete(reports: Sequence[Report]) -> bool:
    """Return whether the servers hold the whole set, so that their sizes rarely change."""
    totals = [each.total_size for each in reports if each.total_size is not None]
    return bool(totals) and sum(each.cached_size for each in reports) >= max(totals)


def cache_status(document: Document, reports: Mapping[str, Report], *, has_servers: bool) -> dict[str, Any]:
    """Return the sizes of a status as texts. Unknown sizes are empty.

    Args:
        document: The set.
        reports: Last reports of its servers by pod, or empty before the first poll.
        has_servers: Whether a server is ready.
    """
    before = (document.get("status") or {}).get("cacheStatus") or {}
    kept = (*_OF_DATA, *_OF_SERVERS) if has_servers else _OF_DATA
    sizes = {name: str(before.get(name) or "") if name in kept else "" for name in (*_OF_DATA, *_OF_SERVERS)}
    if not (reports and has_servers):
        return sizes
    found = list(reports.values())
    known = [each for each in found if each.total_size is not None]
    cached = sum(each.cached_size for each in found)
    if known:
        most = max(known, key=lambda each: each.total_size or 0)
        sizes |= {"totalSize": _text(most.total_size or 0), "totalFiles": str(most.total_files or 0)}
        cached = min(cached, most.total_size or 0)
    size, used = sum(each.disk_size for each in found), sum(each.disk_used for each in found)
    return sizes | {
        "cachedSize": _text(cached),
        "diskSize": _text(size),
        "diskUsed": _text(used),
        "diskAvail": _text(sum(each.disk_avail for each in found)),
        "diskUsageRate": f"{100 * used / size:.1f}%" if size else "",
    }


def with_last_error(report: Report, before: Report | None) -> Report:
    """Return a report with the previous error while the server retries, so that the status does not flicker."""
    is_trying = report.total_size is None and not report.error_message
    return replace(report, error_message=before.error_message) if is_trying and before is not None else report


def errors_of(reports: Mapping[str, Report]) -> str:
    """Return the distinct errors of a set's servers, in the order of their pods, or an empty text."""
    said = (report.error_message for _, report in sorted(reports.items()))
    return "; ".join(dict.fromkeys(filter(None, said)))[:MOST_SAID]


def _text(size_bytes: int) -> str:
    """Format a size as in the Paddle operator: ``7.3 GiB``, ``58 MiB``, ``80 B``."""
    number, unit = format_bytes(size_bytes).split()
    return f"{number} {unit}" if float(number) < _TWO_DIGITS else f"{float(number):.0f} {unit}"
