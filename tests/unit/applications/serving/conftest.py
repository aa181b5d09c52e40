"""A server for the tests that need no other."""

import pytest


@pytest.fixture(scope="module")
def client():
    from tests.unit.applications.serving.clients import client_of

    with client_of(max_request_tokens=200, max_request_bytes=20_000) as client:
        yield client
