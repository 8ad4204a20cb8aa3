"""A process that is killed at any call; I/O that fails, is short, is late or never comes back."""

from __future__ import annotations

import pytest

from hicache_backends.native_calls import HAVE_NATIVE
from tests.faults.rig import Faults

_native = pytest.param(
    "native", marks=pytest.mark.skipif(not HAVE_NATIVE, reason="the C extension is not built")
)
engines = pytest.mark.parametrize("engine", [_native, "posix"])


def play(faults: Faults, scenario: str, engine: str) -> list[str]:
    """The lines of a scenario that ran to its end, in a process that ended by itself."""
    module, name = scenario.split(".")
    run = faults.run(f"tests.faults.{module}", name, faults.directory, engine)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "end"
    return run.stdout.splitlines()


@engines
@pytest.mark.parametrize("scenario", ["killed.kill_each", "killed.kill_each_torn"])
def test_a_kill_at_any_call_loses_nothing_committed_and_serves_nothing_wrong(
    faults: Faults, engine: str, scenario: str
) -> None:
    lines = play(faults, scenario, engine)
    assert int(lines[-2].split()[1]) > 20, "the kills met no calls"


@engines
@pytest.mark.parametrize(
    "scenario",
    [
        "failing.read_errors",
        "failing.write_errors",
        "failing.no_space",
        "failing.no_descriptors",
        "failing.short_moves",
        "failing.odd_moves",
    ],
)
def test_a_fault_at_any_call_is_answered_truthfully_and_repaired(
    faults: Faults, engine: str, scenario: str
) -> None:
    lines = play(faults, scenario, engine)
    assert int(lines[-2].split()[1]) >= 3, "the faults met no calls"


@engines
def test_a_full_medium_refuses_puts_serves_reads_and_recovers(faults: Faults, engine: str) -> None:
    play(faults, "failing.full_medium", engine)


@engines
@pytest.mark.parametrize("scenario", ["late.stuck_read", "late.stuck_write"])
def test_a_stuck_io_holds_up_neither_other_calls_nor_close_nor_the_end_of_the_process(
    faults: Faults, engine: str, scenario: str
) -> None:
    play(faults, scenario, engine)


@engines
@pytest.mark.parametrize("scenario", ["late.late_read", "late.late_write"])
def test_a_store_goes_on_once_the_kernel_has_answered(
    faults: Faults, engine: str, scenario: str
) -> None:
    play(faults, scenario, engine)


@engines
@pytest.mark.parametrize("scenario", ["late.staged_read", "late.staged_write"])
def test_a_staged_call_returns_by_its_deadline_and_leaves_the_buffers_alone(
    faults: Faults, engine: str, scenario: str
) -> None:
    play(faults, scenario, engine)


@engines
def test_a_page_is_not_there_until_its_write_is_complete(faults: Faults, engine: str) -> None:
    play(faults, "late.paused_write", engine)


@engines
def test_a_late_disk_never_holds_the_gil(faults: Faults, engine: str) -> None:
    play(faults, "late.aligned_read", engine)


@engines
def test_no_slot_is_reused_under_a_slow_reader(faults: Faults, engine: str) -> None:
    play(faults, "late.slow_churn", engine)


@engines
def test_sixteen_processes_on_one_root_serve_only_right_pages_while_some_are_killed(
    faults: Faults, engine: str
) -> None:
    run = faults.run("tests.faults.crowd", faults.directory, engine, 3)
    assert run.returncode == 0, run.stderr
