"""The thread that registers, while the daemon holds it."""

from __future__ import annotations

import threading

from hicache_backends.deadline import Deadline
from hicache_backends.usrbio.registrar import Registrar
from tests.threefs.stand_in import ThreeFs


def test_questions_to_a_daemon_that_hangs_do_not_pile_up(fs: ThreeFs) -> None:
    registrar = Registrar(str(fs.iovs), lambda: None, Deadline.after_ms(5000))
    held, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        held.set()
        go_on.wait(10)

    registrar.submit(hang)
    assert held.wait(5)
    for _ in range(1000):
        registrar.suspect()
    assert registrar._tasks.qsize() == 1
    go_on.set()
    registrar.run(lambda: None, Deadline.after_ms(5000))
    seen = [registrar.dead]
    fs.kill()
    registrar.run(lambda: setattr(registrar, "_last_probe_s", 0.0), Deadline.after_ms(5000))
    registrar.suspect()
    registrar.run(lambda: seen.append(registrar.dead), Deadline.after_ms(5000))
    assert seen == [False, True], "it asks again once it was answered"
    registrar.close(5)
