"""Predicts which files the programs on a mount will read next. Pure.

A file system does not know the reader's order. However, programs often repeat the order of an earlier epoch or run, or read by name. The order
of each process group is therefore recorded. While its reads follow a known order, the rest of that order is the prediction.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

_AHEAD: Final = 512
_NEAR: Final = 64
"""Maximum distance from the expected position, because workers of a program take turns and deviate from the order."""

_COMPARED_READS: Final = 16
_MIN_MATCHES: Final = 14
_MIN_PASS_OBJECTS: Final = 32
_MAX_RECORDED: Final = 4
_MAX_GROUPS: Final = 8
_REREAD_OBJECTS: Final = 256
"""A file that is read again after fewer other files is read in several parts, and does not start a new pass."""


class ReadOrder(Protocol):
    """A sequence of objects."""

    def position_of(self, object_id: int) -> int:
        """Return the position of an object; -1 if the sequence does not contain it."""
        ...

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return the next objects from a position on, fewer at the end."""
        ...


class NameOrder:
    """Order of the listing."""

    def __init__(self, num_objects: int) -> None:
        """Contain all objects of a manifest."""
        self._num_objects = num_objects

    def position_of(self, object_id: int) -> int:
        """Return the object's id."""
        return object_id

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return the next ids from a position on."""
        return list(range(place, min(place + number, self._num_objects)))


class RecordedOrder:
    """Order of a recorded pass of a process group."""

    def __init__(self, ids: array[int], places: array[int]) -> None:
        """Store the objects of a pass in order, and the position of each object of the manifest, or -1."""
        self._ids = ids
        self._places = places

    def position_of(self, object_id: int) -> int:
        """Return the position of an object in the pass; -1 if the pass did not read it."""
        return self._places[object_id]

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return the objects that the pass read next."""
        return self._ids[place : place + number].tolist()


class Prediction(NamedTuple):
    """Objects that a process group will probably read.

    Attributes:
        ids: Objects after those of earlier predictions.
        is_new: True if they start a new order; False if they extend the last one.
        position: Number of predicted objects that the group has passed.
    """

    ids: list[int]
    is_new: bool
    position: int


class _OrderMatcher:
    """Compares the reads of a group with one order."""

    def __init__(self, order: ReadOrder) -> None:
        self._order = order
        self._next = 0
        self._begin = 0  # position of the first predicted object
        self._sent = 0
        self._hits = 0  # matches of the last reads, one bit each

    def record_read(self, object_id: int) -> bool:
        """Record a read. Return whether the last reads followed this order."""
        place = self._order.position_of(object_id)
        is_near = place >= 0 and abs(place - self._next) <= _NEAR
        self._hits = (self._hits << 1 | is_near) & ((1 << _COMPARED_READS) - 1)
        if is_near:
            self._next = max(self._next, place + 1)
        elif place >= 0:
            self._next = self._begin = self._sent = place + 1
        return self._hits.bit_count() >= _MIN_MATCHES

    def forget_sent(self) -> None:
        """Forget the last prediction, which reached no server."""
        self._begin = self._sent = self._next

    def predict(self) -> Prediction | None:
        """Return the next objects beyond earlier predictions. None while most of those are still to be read."""
        if self._sent - self._next > _AHEAD // 2:
            return None
        is_new = self._sent == self._begin or self._sent < self._next
        if is_new:
            self._begin = self._sent = self._next
        ids = self._order.objects_from(self._sent, self._next + _AHEAD - self._sent)
        self._sent += len(ids)
        return Prediction(ids, is_new, max(0, self._next - _NEAR - self._begin)) if ids else None


class _Group:
    """State of a process group: its current pass, and the orders that it may follow.

    All orders are compared only while the group does not follow the current one.
    """

    def __init__(self, orders: list[ReadOrder], num_objects: int) -> None:
        self.following = [_OrderMatcher(order) for order in orders]
        self.followed: _OrderMatcher | None = None
        self.ids = array("q")
        self.places = array("i", [-1]) * num_objects


class OrderPredictor:
    """Recorded orders of passes over a manifest, and the process groups that follow them.

    Memory: 4 bytes per object for each of at most 12 orders.

    **Threads and processes.** One thread at a time.
    """

    def __init__(self, num_objects: int) -> None:
        """Start with the order of names only."""
        self._num_objects = num_objects
        self._by_name = NameOrder(num_objects)
        self._recorded: list[RecordedOrder] = []
        self._groups: OrderedDict[int, _Group] = OrderedDict()

    def record_read(self, group: int, object_id: int) -> Prediction | None:
        """Record that a group starts to read an object. Return a prediction if there is a new one."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._new_group()
            if len(self._groups) > _MAX_GROUPS:
                self._record_pass(self._groups.popitem(last=False)[1])
        self._groups.move_to_end(group)
        before = found.places[object_id]
        if before >= 0:
            if len(found.ids) - before <= min(_REREAD_OBJECTS, max(_MIN_PASS_OBJECTS, len(found.ids) // 2)):
                return None
            self._record_pass(found)
            found = self._groups[group] = self._new_group()
        found.places[object_id] = len(found.ids)
        found.ids.append(object_id)
        followed = found.followed
        if followed is None or not followed.record_read(object_id):
            others = [other for other in found.following if other is not followed and other.record_read(object_id)]
            if not others:
                return None
            followed = found.followed = others[0]
        return followed.predict()

    def forget_sent(self, group: int) -> None:
        """Forget the last prediction for a group, which reached no server, so that it is made again."""
        for following in self._groups[group].following:
            following.forget_sent()

    def groups(self) -> list[int]:
        """Return the known process groups, least recent reader first."""
        return list(self._groups)

    def _new_group(self) -> _Group:
        return _Group([*reversed(self._recorded), self._by_name], self._num_objects)

    def _record_pass(self, group: _Group) -> None:
        if len(group.ids) >= _MIN_PASS_OBJECTS:
            self._recorded = [*self._recorded, RecordedOrder(group.ids, group.places)][-_MAX_RECORDED:]
