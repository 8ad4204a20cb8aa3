"""Who is there, since when, and what the registry orders: the same tests, over HTTP."""

from __future__ import annotations

from tests.kvmanager.http_fixtures import cluster, server_binary, service
from tests.kvmanager.test_membership import (
    test_a_call_of_an_older_epoch_fails_once_and_then_goes_on,
    test_a_process_that_vanishes_is_gone_after_its_time_to_live,
    test_a_store_that_is_opened_again_is_announced,
    test_a_store_that_missed_a_clear_is_told_when_it_returns,
    test_a_store_that_the_registry_has_forgotten_keeps_its_pages,
    test_an_idle_member_stays_registered,
    test_an_owner_that_fails_at_its_orders_keeps_its_heartbeat,
    test_clearing_a_namespace_voids_what_was_there_and_its_owners_obey,
    test_neighbouring_schemas_work_together_and_others_are_refused,
    test_orders_of_the_namespace_reach_every_member,
)

__all__ = [
    "cluster",
    "server_binary",
    "service",
    "test_a_call_of_an_older_epoch_fails_once_and_then_goes_on",
    "test_a_process_that_vanishes_is_gone_after_its_time_to_live",
    "test_a_store_that_is_opened_again_is_announced",
    "test_a_store_that_missed_a_clear_is_told_when_it_returns",
    "test_a_store_that_the_registry_has_forgotten_keeps_its_pages",
    "test_an_idle_member_stays_registered",
    "test_an_owner_that_fails_at_its_orders_keeps_its_heartbeat",
    "test_clearing_a_namespace_voids_what_was_there_and_its_owners_obey",
    "test_neighbouring_schemas_work_together_and_others_are_refused",
    "test_orders_of_the_namespace_reach_every_member",
]
