"""Where this machine is in its network."""

import socket

import pytest


def find_address() -> str:
    """An address of this machine by which one comes over the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])
