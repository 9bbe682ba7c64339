"""Endpoints are host:port and nothing else."""

import pytest

from paramfleet_shared.net.rpc.endpoint import (
    MalformedEndpointError,
    join_endpoint,
    split_endpoint,
)


@pytest.mark.parametrize(
    ("host", "port", "endpoint"),
    [
        ("127.0.0.1", 1, "127.0.0.1:1"),
        ("pserver-0.job", 65535, "pserver-0.job:65535"),
        ("::1", 80, "[::1]:80"),
    ],
)
def test_an_endpoint_comes_apart_as_it_was_joined(host: str, port: int, endpoint: str) -> None:
    assert join_endpoint(host, port) == endpoint
    assert split_endpoint(endpoint) == (host, port)


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "host:", ":80", "[]:80", "host:0", "host:65536", "host:x", "::1:80"],
)
def test_anything_else_is_refused(endpoint: str) -> None:
    with pytest.raises(MalformedEndpointError) as caught:
        split_endpoint(endpoint)
    assert caught.value.endpoint == endpoint
