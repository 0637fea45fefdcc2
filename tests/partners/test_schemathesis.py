"""Requests made from the service's own schema, valid and not: none of them is answered with 500."""

import subprocess

from environments import find_python, needs
from http_server import run_service

from apood.serving.http.served import Served

pytestmark = needs("schemathesis")

_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_no_request_from_the_schema_is_answered_with_500(served: Served) -> None:
    with run_service(served, most_bytes=100_000) as server:
        command = [
            str(find_python("schemathesis").with_name("schemathesis")),
            "run",
            f"{server.url}/openapi.json",
            f"--checks={_CHECKS}",
            "--max-examples=50",
            "--seed=1",
            "--no-color",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        metrics = server.client.get("/metrics").text
        assert "apood_errors_total 0.0" in metrics and 'status="500"' not in metrics
        assert 'route="/v1/score",status="200"' in metrics and 'route="/v1/score",status="422"' in metrics
