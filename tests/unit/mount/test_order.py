"""What a process group reads next is known from what was read before, and from names; else nothing is told."""

from __future__ import annotations

import random

from prefeed.mount.order import OrderPredictor, Prediction

NUM = 2000


def told(orders: OrderPredictor, group: int, ids: list[int]) -> list[Prediction]:
    """Return all that was told while a group read these objects."""
    return [following for object_id in ids if (following := orders.record_read(group, object_id)) is not None]


def shuffled(seed: int) -> list[int]:
    ids = list(range(NUM))
    random.Random(seed).shuffle(ids)
    return ids


def order_from(order: list[int], following: Prediction) -> list[int]:
    start = order.index(following.ids[0])
    return order[start : start + len(following.ids)]


def all_ids(found: list[Prediction]) -> list[int]:
    return [object_id for following in found for object_id in following.ids]


def test_the_order_of_names_is_followed_to_its_end() -> None:
    found = told(OrderPredictor(NUM), 1, list(range(NUM)))
    assert [following.is_new for following in found] == [True] + [False] * (len(found) - 1)
    ids = all_ids(found)
    assert ids == list(range(ids[0], NUM))
    assert ids[0] <= 16
    assert all(following.position <= NUM for following in found)


def test_a_first_pass_in_random_order_tells_nothing() -> None:
    assert told(OrderPredictor(NUM), 1, shuffled(1)) == []


def test_a_second_pass_in_the_same_order_is_known_after_a_few_files() -> None:
    orders, order = OrderPredictor(NUM), shuffled(1)
    told(orders, 1, order)
    ids = all_ids(told(orders, 1, order))
    assert ids == order[order.index(ids[0]) :]
    assert order.index(ids[0]) <= 300  # files that come again soon begin no pass


def test_another_group_follows_what_one_has_read() -> None:
    orders, order = OrderPredictor(NUM), shuffled(1)
    told(orders, 1, order)
    told(orders, 1, order[:1])  # its second pass begins: the first one is an order now
    ids = all_ids(told(orders, 2, order))
    assert ids == order[order.index(ids[0]) :]
    assert order.index(ids[0]) <= 16


def test_a_new_order_in_each_pass_tells_nothing() -> None:
    orders = OrderPredictor(NUM)
    for seed in range(5):
        assert told(orders, 1, shuffled(seed)) == []


def test_workers_that_take_turns_are_followed() -> None:
    orders, order = OrderPredictor(NUM), list(range(NUM))
    mixed = [
        object_id for at in range(0, NUM, 32) for object_id in sorted(order[at : at + 32], key=lambda n: (n % 4, n))
    ]
    ids = all_ids(told(orders, 1, mixed))
    assert ids == list(range(ids[0], NUM))


def test_a_jump_begins_a_new_order_of_what_follows_it() -> None:
    orders = OrderPredictor(NUM)
    found = told(orders, 1, list(range(100)) + list(range(1500, 1600)))
    assert [following.is_new for following in found if following.is_new] == [True, True]
    assert all_ids(found)[-1] > 1600


def test_a_group_that_leaves_the_order_that_it_follows_is_found_in_another_one() -> None:
    orders, order = OrderPredictor(NUM), shuffled(1)
    told(orders, 1, order)
    told(orders, 1, order[:1])
    told(orders, 2, list(range(1000)))
    found = told(orders, 2, [object_id for object_id in order if object_id >= 1000])
    began = next(following for following in found if following.is_new and following.ids == order_from(order, following))
    assert order.index(began.ids[0]) <= 100
    assert all_ids(found)[-1] == order[-1]


def test_files_that_are_read_in_several_goes_begin_no_pass() -> None:
    orders = OrderPredictor(NUM)
    ids = all_ids(told(orders, 1, [n for at in range(NUM) for n in (at, max(0, at - 1), at)]))
    assert ids == list(range(ids[0], NUM))


def test_a_report_that_did_not_arrive_is_told_again() -> None:
    orders = OrderPredictor(NUM)
    first = told(orders, 1, list(range(20)))
    orders.forget_sent(1)
    again = orders.record_read(1, 20)
    assert again is not None
    assert again.is_new
    assert (first[0].is_new, again.ids[0]) == (True, 21)


def test_groups_that_read_no_more_are_forgotten() -> None:
    orders = OrderPredictor(NUM)
    for group in range(100):
        orders.record_read(group, 0)
    assert len(orders.groups()) == 8
    assert orders.groups()[-1] == 99
