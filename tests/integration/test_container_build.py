"""The image of the Dockerfile, built and run where docker or podman works.

A machine without the public base image or the index of PyTorch names others in CONTAINER_BUILD,
such as ``--build-arg BASE=localhost/python``. CONTAINER_RUN has further flags of the run.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from tests.integration.test_serve import save
from tests.unit.applications.serving.served_models import make_translator
from tests.unit.test_container import ROOT, TEXT

IMAGE = "localhost/relu-nmt-test"
BUILD_FLAGS = shlex.split(os.environ.get("CONTAINER_BUILD", ""))
RUN_FLAGS = shlex.split(os.environ.get("CONTAINER_RUN", ""))
BASE = next(line for line in TEXT.splitlines() if line.startswith("ARG BASE=")).partition("=")[2]


def completed(*words, seconds=60):
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)


def succeeds(*words, seconds=60):
    try:
        return completed(*words, seconds=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(scope="module")
def builder():
    for name in ("docker", "podman"):
        if shutil.which(name) and succeeds(name, "info"):
            if not BUILD_FLAGS and not succeeds(name, "pull", BASE, seconds=600):
                pytest.skip(f"{name} has no image {BASE}")
            return name
    pytest.skip("neither docker nor podman works here")


@pytest.fixture
def container(builder, tmp_path):
    """Yield the name and the address of a container that serves a small model."""
    result = completed(builder, "build", "-t", IMAGE, *BUILD_FLAGS, str(ROOT), seconds=1500)
    assert result.returncode == 0, result.stderr
    save(tmp_path / "checkpoint_best.safetensors", make_translator(cross_attention="softmax"))
    tmp_path.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    name = f"relu-nmt-test-{port}"
    words = ["-d", "--name", name, "-p", f"127.0.0.1:{port}:{port}", "-v", f"{tmp_path}:/model:ro"]
    words += [*RUN_FLAGS, IMAGE, "/model/checkpoint_best.safetensors", "--port", port]
    try:
        result = completed(builder, "run", *words)
        assert result.returncode == 0, result.stderr
        yield name, f"http://localhost:{port}"
    finally:
        completed(builder, "rm", "-f", name)


def wait_until_healthy(builder, name, address):
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
                return json.load(answer)["status"]
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    return completed(builder, "logs", name).stderr


@pytest.mark.slow
def test_a_container_serves_its_model_without_rights_and_stops_at_once(builder, container):
    name, address = container
    assert wait_until_healthy(builder, name, address) == "ok"
    body = json.dumps({"q": ["a b", "c"], "source": "de", "target": "en"}).encode()
    request = urllib.request.Request(
        f"{address}/translate", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert len(json.load(answer)["translatedText"]) == 2
    assert completed(builder, "exec", name, "id", "-un").stdout.strip() == "relu-nmt"
    assert completed(builder, "exec", name, "touch", "/opt/relu-nmt/file").returncode != 0
    begun = time.monotonic()
    assert completed(builder, "stop", name).returncode == 0
    assert time.monotonic() - begun < 9  # after ten seconds it would have been killed
