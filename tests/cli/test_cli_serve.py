"""`apood serve` and `apood proxy` refuse what they cannot serve before they listen."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--host", "0.0.0.0"), "so access tokens are required"),
        (("--tokens", "missing.txt"), "No such file"),
        (("--model", "missing"), "missing"),
    ],
)
def test_what_cannot_be_served_is_refused(
    refused: Any, calibrated: Path, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused("serve", calibrated, *options)
    assert sentence in refused("proxy", calibrated, "--upstream", "http://127.0.0.1:1", *options)


@pytest.mark.parametrize(("command", "option"), [("serve", "--deadline"), ("proxy", "--upstream-timeout")])
def test_a_time_without_an_end_is_refused(refused: Any, calibrated: Path, command: str, option: str) -> None:
    upstream = ("--upstream", "http://127.0.0.1:1") if command == "proxy" else ()
    assert "86400" in refused(command, calibrated, *upstream, option, "inf")


def test_detectors_that_cannot_decide_are_refused(refused: Any, fitted: Path, tmp_path: Path) -> None:
    assert "has no threshold yet" in refused("serve", fitted)
    assert "nothing" in refused("serve", tmp_path / "nothing")
    assert "--upstream must be a URL" in refused("proxy", fitted, "--upstream", "nowhere")


def test_tokens_must_be_secrets(refused: Any, calibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("short\n")
    assert "at least 16" in refused("serve", calibrated, "--tokens", tmp_path / "tokens.txt")
    (tmp_path / "tokens.txt").write_text("\n")
    assert "holds no access token" in refused("serve", calibrated, "--tokens", tmp_path / "tokens.txt")


def test_a_port_that_is_taken_is_named(refused: Any, calibrated: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}: Address already in use" in refused("serve", calibrated, "--port", port)


def test_a_file_of_tokens_that_cannot_be_read_is_refused(refused: Any, calibrated: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe" in refused("serve", calibrated, "--tokens", tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "The file of access tokens" in refused("serve", calibrated, "--tokens", tmp_path / "bytes")
