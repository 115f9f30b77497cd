"""Operators agree on the one that works: by fake clocks, against the API server of the tests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from prefeed.errors import ClusterError
from prefeed.kubernetes.checking import problems_of
from prefeed.kubernetes.operator.election import Election, Lease
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import now

LEASE = Lease(namespace="default")


class Candidate:
    """A candidate whose clock is the test's, with an offset of its own."""

    def __init__(self, cluster: Cluster, name: str, offset: float = 0.0) -> None:
        self.seconds = offset
        self.election = Election(cluster, LEASE, name, now=self._now, clock=lambda: self.seconds)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, tz=UTC)

    def after(self, seconds: float) -> bool:
        """Look at the lease after some seconds; return whether it leads then."""
        self.seconds += seconds
        now(self.election.try_round())
        return self.election.is_leader


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def holder(cluster: Cluster) -> str:
    return str(cluster.of("Lease")["prefeed-operator"]["spec"]["holderIdentity"])


def leads(first: Candidate, second: Candidate, seconds: float) -> tuple[bool, bool]:
    return first.after(seconds), second.after(seconds)


def test_the_first_one_leads_while_it_renews_its_lease(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    for _ in range(20):
        assert leads(first, second, 2) == (True, False)

    lease = cluster.of("Lease")["prefeed-operator"]
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("a", 0)
    assert lease["spec"]["acquireTime"] < lease["spec"]["renewTime"]
    assert problems_of(lease, "1.33") == []


@pytest.mark.parametrize("offset", [0.0, -86400.0, 86400.0])
def test_a_lease_is_taken_when_it_stays_as_it_is_by_the_clock_of_who_takes_it(cluster: Cluster, offset: float) -> None:
    """Clocks may differ by a day: no time of the lease is compared with them."""
    first, second = Candidate(cluster, "a", 100_000), Candidate(cluster, "b", 100_000 + offset)
    assert leads(first, second, 2) == (True, False)

    assert not second.after(14)
    assert second.after(1)
    assert cluster.of("Lease")["prefeed-operator"]["spec"]["leaseTransitions"] == 1
    assert not first.after(60)  # it was suspended
    assert holder(cluster) == "b"


def test_a_leader_that_cannot_renew_stops_before_its_lease_may_be_taken(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    assert leads(first, second, 2) == (True, False)

    def refuse(verb: str, plural: str) -> None:
        raise ClusterError("the server is away", status=0)

    cluster.before = refuse
    assert first.after(9)
    assert not first.after(1)
    cluster.before = lambda verb, plural: None
    assert not second.after(14.9)
    assert second.after(0.2)


def test_of_two_that_take_it_at_once_one_leads(cluster: Cluster) -> None:
    first, second, third = (Candidate(cluster, name) for name in "abc")
    assert first.after(0)
    assert not (second.after(0))
    assert not (third.after(0))

    def overtaken(verb: str, plural: str) -> None:
        if verb == "patch":
            cluster.before = lambda verb, plural: None
            assert third.after(15)

    cluster.before = overtaken  # between the look of the second one and its request
    assert not second.after(15)
    assert holder(cluster) == "c"


def test_a_lease_that_was_removed_is_made_again_by_one(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    assert leads(first, second, 2) == (True, False)
    cluster.remove("Lease", "prefeed-operator")

    assert leads(first, second, 2) == (True, False)


def test_a_lease_that_is_free_is_taken_at_once(cluster: Cluster) -> None:
    first, second = Candidate(cluster, "a"), Candidate(cluster, "b")
    assert leads(first, second, 2) == (True, False)
    cluster.change("Lease", "prefeed-operator", {"spec": {"holderIdentity": ""}})

    assert second.after(0)


def test_without_the_right_to_leases_none_leads(cluster: Cluster) -> None:
    def refuse(verb: str, plural: str) -> None:
        raise ClusterError("leases is forbidden", status=403)

    cluster.before = refuse

    assert not Candidate(cluster, "a").after(0)
    assert cluster.of("Lease") == {}
