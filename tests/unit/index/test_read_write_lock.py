import threading
import time

from condensery.index.read_write_lock import ReadWriteLock


def test_readers_share_and_a_writer_is_alone() -> None:
    lock, inside, seen = ReadWriteLock(), [0, 0], set()
    both = threading.Barrier(2, timeout=30)

    def read() -> None:
        with lock.shared():
            both.wait()  # passes only if the other reader is inside too
        for _ in range(200):
            with lock.shared():
                inside[0] += 1
                seen.add(("reader beside a writer", inside[1] > 0))
                inside[0] -= 1

    def write() -> None:
        for _ in range(200):
            with lock.exclusive():
                inside[1] += 1
                seen.add(("writer beside a writer", inside[1] > 1))
                time.sleep(0)
                inside[1] -= 1

    threads = [threading.Thread(target=job) for job in (read, read, write, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {("reader beside a writer", False), ("writer beside a writer", False)}


def test_readers_that_waited_for_a_writer_go_before_the_next() -> None:
    lock, order = ReadWriteLock(), []

    def read() -> None:
        with lock.shared():
            order.append("reader")

    readers = [threading.Thread(target=read) for _ in range(3)]
    with lock.exclusive():
        for reader in readers:
            reader.start()
        while lock._readers_waiting < 3:
            time.sleep(0.001)
    for _ in range(2):  # without a pause, in which another thread would get a turn
        with lock.exclusive():
            order.append("writer")
    for reader in readers:
        reader.join(30)
    assert order == ["reader"] * 3 + ["writer"] * 2


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock, order = ReadWriteLock(), []
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.shared():
            holding.set()
            done.wait(30)

    def write() -> None:
        with lock.exclusive():
            order.append("writer")

    def read() -> None:
        with lock.shared():
            order.append("reader")

    threads = [threading.Thread(target=job) for job in (hold, write, read)]
    threads[0].start()
    holding.wait(30)
    threads[1].start()
    while not lock._writers_waiting:
        time.sleep(0.001)
    threads[2].start()
    time.sleep(0.05)
    assert order == []
    done.set()
    for thread in threads:
        thread.join(30)
    assert order == ["writer", "reader"]
