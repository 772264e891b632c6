"""Runs the attacks of attacks/wire.py and attacks/work.py against a daemon as people run it, while newcomers
are served: during each attack a program connects, uploads, computes and attaches again. The daemon lives,
memory stays within its bound, and everything is given back (the fixture `invariants`).

The attacks that end the daemon, or need one that is started in another way, are tests of their own: COVERED.
"""

from pathlib import Path

import pytest
from attacks import wire, work
from attacks.newcomers import Newcomers
from support.daemon import resident

TESTS = Path(__file__).resolve().parents[1]
DEPLOYED = ("--restart", "60", "--drain", "60", "--snapshot-every", "1")
MEMORY = 1 << 30  # what the daemon may take beside the tensors of an attack

COVERED = {
    "index tensors that broadcast to 2^61 + 8 places": "e2e/test_bad_input.py::test_places_beyond_memory",
    "operands whose products leave memory": "fuzz/kernel_fuzz.cc::main",
    "floods of PING and other frames": "e2e/test_hostile_http2.py::test_alone",
    "Run calls of a peer that does not read": "e2e/test_hostile_http2.py::test_a_reader_that_does_not_read",
    "SIGTERM with busy lanes":
        "e2e/test_restart.py::test_sessions_at_rest_are_written_while_every_lane_is_inside_a_kernel",
    "SIGTERM with a trickling HTTP peer":
        "e2e/test_restart.py::test_an_http_peer_that_trickles_does_not_delay_the_end",
    "a drain with a greedy neighbour":
        "e2e/test_drain_order.py::test_large_sessions_do_not_use_the_time_of_a_small_one",
    "programs and errors beyond the quota":
        "e2e/test_resident_memory.py::test_sessions_beyond_their_quota_are_bounded_together",
    "tokens that expire or are revoked": "e2e/test_security.py::test_no_door_opens_when_the_last_token_goes",
    "a token file of random bytes": "e2e/test_security.py::test_a_damaged_token_file_lets_nobody_in",
    "a token file that is a link": "e2e/test_private_state.py::test_a_planted_token_file_lets_nobody_in",
    "300 users at --socket-users": "e2e/test_socket_users.py::test_more_users_than_listeners_in_turn",
    "four daemons at once on one socket": "e2e/test_daemon.py::test_daemons_that_start_at_once_on_one_socket",
    "a daemon in the working directory": "e2e/test_embedded.py::test_no_daemon_of_the_working_directory",
    "training through a relay that cuts": "chaos/test_cut_everywhere.py::test_cut_everywhere",
    "kill -9 in training": "chaos/test_crashes.py::test_the_daemon_is_killed_a_hundred_times",
    "a disk without room": "e2e/test_full_disk.py::test_a_snapshot_that_does_not_fit_leaves_the_older_one",
    "a state directory that cannot be written": "e2e/test_full_disk.py::test_a_state_directory_that_cannot_be_written",
    "64 descriptors": "e2e/test_faults.py::test_no_more_descriptors",
    "a limit of address space": "e2e/test_faults.py::test_the_system_has_no_memory",
    "calendar jumps": "e2e/test_clock.py::test_what_is_to_end_ends",
}


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("invariants")
@pytest.mark.parametrize("attack", (*wire.ATTACKS, *work.ATTACKS), ids=lambda attack: attack.__name__)
def test_newcomers_are_served(start_daemon, tt, new_token, attack):
    daemon = start_daemon(*DEPLOYED)
    with tt.connect(daemon.unix, token=new_token(daemon, "neighbour")).as_current() as neighbour:
        x = tt.arange(1000)
        neighbour.synchronize()
        with Newcomers(daemon.unix, new_token(daemon, "newcomer")) as newcomers:
            attack(daemon, newcomers.served)
            newcomers.served()
        assert daemon.alive()
        assert x.sum().item() == 499_500
        assert resident(daemon.pid) < MEMORY
        neighbour.close()


@pytest.mark.parametrize("attack", COVERED)
def test_the_others_are_tests(attack):
    path, name = COVERED[attack].split("::")
    text = (TESTS / path).read_text(encoding="utf-8")
    assert f"def {name}(" in text or f"int {name}(" in text
