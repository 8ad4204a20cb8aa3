"""State machines over a real server."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.kvmanager.servers import Server


def run(kind: type[RuleBasedStateMachine], server: Server, examples: int, steps: int) -> None:
    """So many runs of a machine, which finds the server as an attribute of its class."""
    run_state_machine_as_test(
        type("Machine", (kind,), {"server": server}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
