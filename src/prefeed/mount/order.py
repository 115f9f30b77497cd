"""In which order the programs on a mount read its files, and what a program will read next. Pure.

A file system is told no order. But programs read as they did before, epoch after epoch and run after run, or in the order
of names. So the order of each process group is noted; while its reads follow an order that is known, the rest of that order is
what comes next.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

_AHEAD: Final = 512
_NEAR: Final = 64
"""Workers of a program take turns, so that reads come in nearly their order."""

_COMPARED_READS: Final = 16
_MIN_MATCHES: Final = 14
_MIN_PASS_OBJECTS: Final = 32
_MAX_RECORDED: Final = 4
_MAX_GROUPS: Final = 8
_REREAD_OBJECTS: Final = 256
"""A file that is read again after fewer others is read in several goes, and no new pass begins."""


class Order(Protocol):
    """Objects in an order."""

    def position_of(self, object_id: int) -> int:
        """Return where an object is in it; -1: nowhere."""
        ...

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return the next objects from there on, fewer at its end."""
        ...


class NameOrder:
    """The order of the listing."""

    def __init__(self, num_objects: int) -> None:
        """Have all objects of a manifest."""
        self._num_objects = num_objects

    def position_of(self, object_id: int) -> int:
        """Return the object's id."""
        return object_id

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return the ids that follow."""
        return list(range(place, min(place + number, self._num_objects)))


class RecordedOrder:
    """The order of a pass that a process group has made."""

    def __init__(self, ids: array[int], places: array[int]) -> None:
        """Keep the objects of a pass in their order, and where each object of the manifest is in it, or -1."""
        self._ids = ids
        self._places = places

    def position_of(self, object_id: int) -> int:
        """Return when it was read."""
        return self._places[object_id]

    def objects_from(self, place: int, number: int) -> list[int]:
        """Return what was read from then on."""
        return self._ids[place : place + number].tolist()


class Prediction(NamedTuple):
    """What a process group will probably read.

    Attributes:
        ids: Objects that follow those told before.
        is_new: They are the first ones of an order; else they extend it.
        position: How many of all that were told it has passed.
    """

    ids: list[int]
    is_new: bool
    position: int


class _OrderMatcher:
    """How well the reads of one group follow one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._next = 0
        self._begin = 0  # of what was told
        self._sent = 0
        self._hits = 0  # of the last reads, one bit each

    def record_read(self, object_id: int) -> bool:
        """Note a read; return whether the last ones were in this order."""
        place = self._order.position_of(object_id)
        is_near = place >= 0 and abs(place - self._next) <= _NEAR
        self._hits = (self._hits << 1 | is_near) & ((1 << _COMPARED_READS) - 1)
        if is_near:
            self._next = max(self._next, place + 1)
        elif place >= 0:
            self._next = self._begin = self._sent = place + 1
        return self._hits.bit_count() >= _MIN_MATCHES

    def forget_sent(self) -> None:
        """What was told has reached no server."""
        self._begin = self._sent = self._next

    def predict(self) -> Prediction | None:
        """Return what comes next and was not returned before; None while most of that is still to be read."""
        if self._sent - self._next > _AHEAD // 2:
            return None
        is_new = self._sent == self._begin or self._sent < self._next
        if is_new:
            self._begin = self._sent = self._next
        ids = self._order.objects_from(self._sent, self._next + _AHEAD - self._sent)
        self._sent += len(ids)
        return Prediction(ids, is_new, max(0, self._next - _NEAR - self._begin)) if ids else None


class _Group:
    """One process group: the pass that it makes, the orders that it may follow, and the one that it follows.

    The others are compared only while it does not follow that one.
    """

    def __init__(self, orders: list[Order], num_objects: int) -> None:
        self.following = [_OrderMatcher(order) for order in orders]
        self.followed: _OrderMatcher | None = None
        self.ids = array("q")
        self.places = array("i", [-1]) * num_objects


class OrderPredictor:
    """OrderPredictor of passes over one manifest, and who follows which: 4 bytes per object for each of at most 12.

    **Threads and processes.** One thread at a time.
    """

    def __init__(self, num_objects: int) -> None:
        """Know of the order of names, and of no other yet."""
        self._num_objects = num_objects
        self._by_name = NameOrder(num_objects)
        self._recorded: list[RecordedOrder] = []
        self._groups: OrderedDict[int, _Group] = OrderedDict()

    def record_read(self, group: int, object_id: int) -> Prediction | None:
        """Note that a process group has begun to read an object; return what it will probably read, if more of that is known now."""
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
        """What was told last of a group has reached no server: it is told again."""
        for following in self._groups[group].following:
            following.forget_sent()

    def groups(self) -> list[int]:
        """Return the process groups that are followed, the one that read last at the end."""
        return list(self._groups)

    def _new_group(self) -> _Group:
        return _Group([*reversed(self._recorded), self._by_name], self._num_objects)

    def _record_pass(self, group: _Group) -> None:
        if len(group.ids) >= _MIN_PASS_OBJECTS:
            self._recorded = [*self._recorded, RecordedOrder(group.ids, group.places)][-_MAX_RECORDED:]
