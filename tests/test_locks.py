"""The fair lock: first come, first served."""

import copy
import pickle
import threading
import time

import pytest

from lametta._locks import FairLock


def _threads(n, work):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)  # so that they come in this order
    return threads


def test_threads_get_it_in_the_order_in_which_they_come():
    lock, served = FairLock(), []

    def work(i):
        with lock:
            served.append(i)
        with lock:  # who comes again is behind all who wait
            served.append(i + 8)

    with lock:
        threads = _threads(8, work)
    for thread in threads:
        thread.join()
    assert served[:8] == list(range(8))
    assert sorted(served) == list(range(16))


def test_one_at_a_time():
    lock, inside, most = FairLock(), [], []

    def work(_):
        for _ in range(200):
            with lock, lock:  # again, by its holder
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    for thread in _threads(4, work):
        thread.join()
    assert set(most) == {1}


def test_a_place_in_the_queue_is_kept():
    lock, served = FairLock(), []

    def work(_):
        with lock:
            served.append("other")

    with lock.queue() as turn:
        (thread,) = _threads(1, work)
        served.append("first")
        assert turn.wait()
    thread.join()
    assert served == ["first", "other"]


def test_who_gives_up_holds_nobody_up():
    lock = FairLock()
    with lock.queue() as first:
        with lock.queue() as second:
            assert not second.wait(0.01)
        third = lock.queue()
        assert first.wait()
    assert third.wait(1)
    third.leave()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:  # is free again
        pass


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_free(twin):
    lock = FairLock()
    with lock:
        other = twin(lock)
        with other.queue() as turn:
            assert turn.wait(0)
