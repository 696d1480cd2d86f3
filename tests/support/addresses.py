"""The network address of this machine."""

import socket

import pytest


def find_address() -> str:
    """Return an IP address at which this machine can be reached over the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])
