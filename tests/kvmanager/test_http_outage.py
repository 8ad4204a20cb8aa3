"""The Redis behind the service is away, slow or empty: the same tests, over HTTP."""

from __future__ import annotations

from tests.kvmanager.http_fixtures import own_cluster, server_binary
from tests.kvmanager.test_outage import (
    test_a_killed_server_that_returns_empty_is_told_everything_again,
    test_a_mutation_whose_reply_was_lost_counts_once,
    test_a_server_that_goes_on_is_used_again_over_new_connections,
    test_a_stopped_server_delays_each_call_to_its_deadline_until_the_breaker_opens,
    test_closing_is_bounded_when_the_server_is_stopped,
    test_every_call_returns_by_its_deadline_when_the_server_is_stopped,
    test_no_data_call_probes_a_registry_that_is_down,
)

__all__ = [
    "own_cluster",
    "server_binary",
    "test_a_killed_server_that_returns_empty_is_told_everything_again",
    "test_a_mutation_whose_reply_was_lost_counts_once",
    "test_a_server_that_goes_on_is_used_again_over_new_connections",
    "test_a_stopped_server_delays_each_call_to_its_deadline_until_the_breaker_opens",
    "test_closing_is_bounded_when_the_server_is_stopped",
    "test_every_call_returns_by_its_deadline_when_the_server_is_stopped",
    "test_no_data_call_probes_a_registry_that_is_down",
]
