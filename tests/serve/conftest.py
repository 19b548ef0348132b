"""A Redis for a test."""

import pytest

from tests.serve.redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server
