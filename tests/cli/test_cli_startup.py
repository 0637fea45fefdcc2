"""The program as a process: what it imports, and how it ends."""

import signal
import subprocess
import sys
import time

from processes import PROGRAM, Program

from apood.support.errors import FitWarning, InputError

HEAVY = ("torch", "numpy", "sklearn", "transformers", "safetensors", "pyarrow", "matplotlib")


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from apood.cli.app import app
for arguments in (["--help"], ["fit", "--help"], ["--version"]):
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code
assert not (found := [name for name in {HEAVY} if name in sys.modules]), found
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version(apood):
    from apood import __version__

    assert apood("--version").stdout == f"apood {__version__}\n"


def test_debug_mode_raises_the_error():
    from typer.testing import CliRunner

    from apood.cli.app import app

    result = CliRunner().invoke(app, ["inspect", "no"], env={"APOOD_DEBUG": "1"})
    assert isinstance(result.exception, InputError)


def test_warnings_of_a_fit_are_one_plain_line(apood, stores, tmp_path, monkeypatch):
    """Use a method that always warns, because no small fit is sure to warn."""
    import warnings

    from apood.detectors.length import Length

    fit = Length._fit

    def fit_with_a_warning(self, *arguments):
        warnings.warn("the fit did not converge.", FitWarning, stacklevel=1)
        fit(self, *arguments)

    monkeypatch.setattr(Length, "_fit", fit_with_a_warning)
    result = apood("fit", stores / "train", "--method", "length", "--out", tmp_path / "length")
    assert result.stderr == "Warning: the fit did not converge.\n"


def test_a_bad_command_line_is_one_line_of_a_real_process(tmp_path):
    done = subprocess.run([*PROGRAM, "inspect", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


def test_a_closed_pipe_gives_no_traceback():
    done = subprocess.run(
        f'"{sys.executable}" -c "from apood.cli import main; main()" methods --json | true',
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stderr == ""


def test_an_embed_that_a_scheduler_ends_says_how_to_continue(apood, model, texts, tmp_path):
    out = tmp_path / "store"
    command = ["embed", "-", "--model", model, "--out", out]
    with Program(*command, OMP_NUM_THREADS="1") as program:
        program.stdin.write(f"{texts['test'][0]}\n")
        program.stdin.flush()
        while not (out / "index.json").exists():
            assert program.is_running(), program.stderr.read()
            time.sleep(0.02)
        program.signal(signal.SIGTERM)  # while it waits for more texts
        ending = program.end()
    assert (ending.code, ending.stderr) == (
        130,
        f"Interrupted: 0 texts are in {out}; add --resume to the same command to continue.\n",
    )
    result = apood(*command, "--resume", input="\n".join(texts["test"]))
    assert "Embedded 40 texts" in result.stdout
