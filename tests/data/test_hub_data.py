"""Data sets of the hub, read from local folders with the same layout, and from a hub that refuses."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from apood.data.hub import HubData
from apood.data.inputs import read_records
from apood.data.record import BadRecord, Pair
from apood.support.errors import InputError

ROWS = [
    {"document": f"article {i}", "summary": f"in short {i}", "translation": {"en": f"yes {i}", "fr": f"oui {i}"}}
    for i in range(5)
]


def write_parquet(rows: list[dict[str, object]], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data set with the splits train and test, in Parquet."""
    (tmp_path / "set").mkdir()
    write_parquet(ROWS, tmp_path / "set" / "train.parquet")
    write_parquet([*ROWS[:1], ROWS[1] | {"document": None}], tmp_path / "set" / "test.parquet")
    return tmp_path / "set"


def items(*inputs: str, **options: object) -> list[object]:
    return [
        record.reason if isinstance(record, BadRecord) else record.item
        for record in read_records(inputs, **options)  # type: ignore[arg-type]
    ]


def refused(source: str, **options: object) -> str:
    with pytest.raises(InputError) as error:
        items(source, **options)
    return str(error.value)


def test_a_split_that_was_read_whole_needs_no_closing_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Callable[[], None]] = []
    own = SimpleNamespace(register=left.append, unregister=left.remove)
    monkeypatch.setattr("apood.data.hub.atexit", own)
    source = f"hf:{folder}:train"
    assert len(items(source, field="document")) == len(ROWS) and not left
    records = read_records([source], field="document")
    next(records)
    (close,) = left
    close()


def test_the_splits_of_a_folder(folder: Path) -> None:
    assert items(f"hf:{folder}:train", field="document") == [row["document"] for row in ROWS]
    good, bad = items(f"hf:{folder}:test", field="document")
    assert good == "article 0"
    assert bad == f"Field 'document' in row 2 of 'hf:{folder}:test' must be a string, got null."
    places = [record.place for record in read_records([f"hf:{folder}:train"], field="document")]
    assert places[4] == f"row 5 of 'hf:{folder}:train'"


def test_pairs_and_fields_of_fields(folder: Path) -> None:
    assert items(f"hf:{folder}:train", field="document", target_field="summary")[2] == Pair("article 2", "in short 2")
    pairs = items(f"hf:{folder}:train", field="translation.en", target_field="translation.fr")
    assert pairs[0] == Pair("yes 0", "oui 0")


def test_a_folder_relative_to_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for source in ("hf:./set:train", "hf:set:train", "hf:~/set:train"):
        assert len(items(source, field="document")) == 5


def test_rows_are_streamed(tmp_path: Path) -> None:
    """The first rows are read although a later file is broken."""
    write_parquet(ROWS, tmp_path / "train-00000-of-00002.parquet")
    (tmp_path / "train-00001-of-00002.parquet").write_bytes(b"PAR1 but not really PAR1")
    records = read_records([f"hf:{tmp_path}:train"], field="document")
    assert [record.item for record in islice(records, 5)] == [row["document"] for row in ROWS]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="cannot be read"):
        next(records)


def test_the_fields_there_are(folder: Path) -> None:
    there = "there are 'document', 'summary', 'translation.en', 'translation.fr'"
    assert refused(f"hf:{folder}:train") == f"'hf:{folder}:train' has no field 'text': {there}."
    assert there in refused(f"hf:{folder}:train", field="document", target_field="title")


def test_a_split_that_is_not_there(folder: Path) -> None:
    message = refused(f"hf:{folder}:dev", field="document")
    assert "train" in message and "test" in message and "dev" in message


def test_forms() -> None:
    def parts(text: str) -> tuple[str, str | None, str, str | None]:
        found = HubData.parse(text)
        assert found.given == f"hf:{text}"
        return found.path, found.config, found.split, found.revision

    assert parts("EdinburghNLP/xsum:train") == ("EdinburghNLP/xsum", None, "train", None)
    assert parts("imdb:train") == ("imdb", None, "train", None)
    assert parts("wmt/wmt14/fr-en:test") == ("wmt/wmt14", "fr-en", "test", None)
    assert parts("a/b:train@v1.0") == ("a/b", None, "train", "v1.0")
    assert parts("a/b/c:train@refs/convert/parquet") == ("a/b", "c", "train", "refs/convert/parquet")


def test_wrong_forms(folder: Path) -> None:
    for form in ("hf:", "hf:a/b", "hf:a/b:", "hf::train", "hf:a/b:@v1", "hf:a/b:train@"):
        assert "is given as hf:OWNER/NAME:SPLIT" in refused(form)
    assert "There is no folder './nothing'" in refused("hf:./nothing:train")
    assert "local folder, which has none" in refused(f"hf:{folder}:train@main")


def test_code_is_never_run(tmp_path: Path) -> None:
    script = tmp_path / "own" / "own.py"
    script.parent.mkdir()
    script.write_text("raise SystemExit('run after all')\n")
    assert "own code, which apood never runs" in refused(f"hf:{script.parent}:train")


def test_without_datasets_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'apood[hf]'" in refused(f"hf:{folder}:train")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str], None]]:
    """Run a hub on this machine that answers every request as the test chooses."""
    constants = pytest.importorskip("huggingface_hub.constants")
    answer = {"status": 404, "code": "RepoNotFound"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(answer["status"]))
            self.send_header("X-Error-Code", str(answer["code"]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    def answers(status: int, code: str) -> None:
        answer.update(status=status, code=code)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield answers
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (404, "RepoNotFound", "no data set 'hf:owner/name:train'"),
        (404, "RevisionNotFound", "no data set 'hf:owner/name:train'"),
        (403, "GatedRepo", "accept them on the page of 'owner/name'"),
    ],
)
def test_what_the_hub_refuses(hub: Callable[[int, str], None], status: int, code: str, advice: str) -> None:
    hub(status, code)
    message = refused("hf:owner/name:train")
    assert advice in message and "`hf auth login`" in message


def test_a_process_may_end_in_the_middle_of_a_set(folder: Path) -> None:
    code = f"""
from apood.data.inputs import read_records
records = read_records(["hf:{folder}:train"], field="document")
next(records)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


LOCAL_FOLDER = "a local folder with the files of the data set, for example hf:./folder:train."


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    message = refused("xsum:train")
    assert message.startswith("The Hugging Face hub cannot be reached for 'hf:") and message.endswith(LOCAL_FOLDER)


def test_offline_mode_needs_no_network(tmp_path: Path) -> None:
    """This needs its own process, since the mode is read when the library of the hub is imported."""
    code = """
from apood.data.inputs import read_records
try:
    next(read_records(["hf:owner/name:train"]))
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("InputError The Hugging Face hub cannot be reached")
    assert done.stdout.strip().endswith(LOCAL_FOLDER)


def test_importing_the_readers_imports_no_library_for_them() -> None:
    code = "import sys, apood.data.inputs; assert not {'datasets', 'pyarrow', 'apood.data.hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_read_one_file_of_a_data_set_each(tmp_path: Path) -> None:
    from apood.data.inputs import Request
    from apood.data.parts import find_parts, read_part

    (tmp_path / "set").mkdir()
    for number in range(3):
        write_parquet(ROWS[2 * number : 2 * number + 2], tmp_path / "set" / f"train-0000{number}-of-00003.parquet")
    name = f"hf:{tmp_path / 'set'}:train"
    parts = find_parts([name], 1 << 20)
    assert [(part.start, part.stop) for part in parts] == [(0, 1), (1, 2), (2, 3)]
    records = [record for part in parts for record in read_part(part, Request(field="document"))]
    assert [record.item for record in records] == [row["document"] for row in ROWS]  # type: ignore[union-attr]
    assert records[3].place == f"row 2 of file 2 of {name!r}"
    assert len({record.place for record in records}) == 5
