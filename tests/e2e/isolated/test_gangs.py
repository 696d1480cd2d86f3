"""The main stories of gangs, where the scheduler asks about marked pods only: nothing is different for them."""

import pytest

from tests.e2e.promises.test_gangs import (  # noqa: F401 - collected here a second time, on another cluster
    test_a_basic_group_passes_like_plain_pods_beside_gangs,
    test_a_gang_that_fits_the_cluster_but_no_rack_waits_whole_and_says_so_per_rack,
    test_a_gang_without_quorum_waits_whole_and_says_so_and_its_last_member_starts_it_in_one_rack,
    test_a_job_deleted_while_held_leaves_no_reservation,
    test_a_leader_and_its_workers_of_another_size_share_one_rack,
    test_a_plain_indexed_job_with_a_topology_annotation_is_a_gang_in_one_rack,
    test_late_members_go_to_the_gangs_rack_and_never_elsewhere_when_it_is_full,
    test_of_two_gangs_that_need_most_of_the_cluster_one_runs_whole_and_the_other_follows_it,
    test_pods_before_their_pod_group_wait_for_it,
    test_surplus_members_bind_as_many_as_fit,
    test_two_gangs_that_arrive_at_once_never_hold_halves,
)

pytestmark = pytest.mark.e2e
