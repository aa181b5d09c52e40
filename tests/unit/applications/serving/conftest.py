"""A server for the tests that need no other."""

import pytest


@pytest.fixture(scope="module")
def client():
    from tests.unit.applications.serving.clients import client_of

    limits = {"max_request_bytes": 20_000, "max_file_bytes": 20_000}
    with client_of(max_request_tokens=200, **limits) as client:
        yield client
