"""A fit that is interrupted, at any moment and in any way, gives the detector of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from apood.detectors.artefact import load

PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def learnt(folder):
    return {name: value for name, value in vars(load(folder)).items() if name.endswith("_")}


def assert_same_detector(first, second):
    a, b = learnt(first), learnt(second)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        assert same, name


def test_aux_and_settings_reach_the_method(apood, stores, tmp_path):
    from apood.detectors.ap_ood import APOOD
    from apood.tokens.store import TokenStore

    out = tmp_path / "detector"
    settings = ("--set", "steps=20", "--set", "queries=1", "--set", "seed=3")
    result = apood("fit", stores / "train", "--aux", stores / "other", "--out", out, *settings)
    assert "Fitted ap-ood on 120 sequences" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector"]
    direct = APOOD(steps=20, queries=1, seed=3).fit(TokenStore(stores / "train"), TokenStore(stores / "other"))
    direct.save(tmp_path / "direct")
    assert_same_detector(out, tmp_path / "direct")
    apood("fit", stores / "train", "--out", tmp_path / "without", *settings)
    assert not torch.equal(load(tmp_path / "without").queries_, direct.queries_)


def test_a_checkpoint_of_other_settings_is_refused(refused, stores, tmp_path):
    command = ("fit", stores / "train", "--out", tmp_path / "detector", "--checkpoint-seconds", 0)
    kill_when_begun([*PROGRAM, *map(str, command), "--set", "steps=100000"], tmp_path / "detector.checkpoint")
    assert "belongs to a fit with other settings or other data" in refused(*command, "--set", "steps=30")


def kill_when_begun(command, checkpoint, how=signal.SIGKILL, later=0.0):
    """Starts a fit, ends it some time after its first (or next) checkpoint, and gives its exit code and messages."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    process = subprocess.Popen(command, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.005)
        time.sleep(later)
        process.send_signal(how)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, messages


@pytest.mark.parametrize("aux", [False, True])
def test_an_interrupted_fit_goes_on_as_if_nothing_had_happened(stores, tmp_path, aux):
    steps = 3000
    outliers = ["--aux", str(stores / "other")] if aux else []
    command = [*PROGRAM, "fit", str(stores / "train"), *outliers, "--set", f"steps={steps}"]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], env=ONE_THREAD, check=True)

    out, checkpoint = tmp_path / "cut", tmp_path / "cut.checkpoint"
    command += ["--out", str(out), "--checkpoint-seconds", "0.02"]
    moments = random.Random(aux)
    for how in (signal.SIGKILL, signal.SIGINT):
        code, messages = kill_when_begun(command, checkpoint, how, later=moments.uniform(0, 0.5))
        assert not out.exists(), "the fit was over before it could be interrupted: give it more steps"
        if how == signal.SIGINT:
            assert code == 130
            assert messages == f"Interrupted: run the same command again to go on from {checkpoint}.\n"
        else:
            assert code == -signal.SIGKILL
    subprocess.run(command, env=ONE_THREAD, check=True)
    assert_same_detector(out, tmp_path / "whole")
    assert not checkpoint.exists()
