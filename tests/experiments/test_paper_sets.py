"""What identifies results and stores: labels, fields, the prompt, the content of files, the sampled records."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import SETTINGS, random_texts, write_lines
from tiny_audio import noise, tone
from tiny_models import WORDS

from apood.data.record import Record
from apood.experiments.paper import stores as stores_module
from apood.experiments.paper.data_sets import MANIFEST, DataSet
from apood.experiments.paper.runner import BenchOptions, PreparedExperiment, prepare
from apood.experiments.paper.stores import file_digests, read_set
from apood.support.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def manifest_of(prepared: PreparedExperiment) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((prepared.folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def test_results_with_other_labels_are_not_replaced(bags: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(bags, tmp_path / "data"))
    options = BenchOptions(data=data, seeds=1, recipe="robust", out=tmp_path / "out")
    prepared = prepare("multiple-instance", options)
    prepared.run()
    written = manifest_of(prepared)
    assert written["prompt"] is None
    assert written["sets"] == {"id": {"field": None, "labels": ["1"]}, "ood.others": {"field": None, "labels": ["0"]}}
    prepare("multiple-instance", options)

    swapped = str.maketrans("01", "10")
    (data / MANIFEST).write_text(
        (data / MANIFEST).read_text(encoding="utf-8").replace(SETTINGS, "").translate(swapped) + SETTINGS,
        encoding="utf-8",
    )
    with pytest.raises(InputError, match="multiple-instance has results of other data; choose another --out"):
        prepare("multiple-instance", options)
    older = {key: value for key, value in written.items() if key not in ("sets", "prompt")}
    (prepared.folder / "manifest.json").write_text(json.dumps(older), encoding="utf-8")
    prepare("multiple-instance", options)  # it does not say which labels
    np.savez(data / "musk.npz", **dict(np.load(data / "musk.npz"), X=np.zeros(1)))
    with pytest.raises(InputError, match="has results of other data"):
        prepare("multiple-instance", options)


@pytest.mark.parametrize(
    ("before", "after"), [("prompt = 'In short: {text}'\n", "prompt = '{text} in short'\n"), ("", "field = 'body'\n")]
)
def test_results_with_another_prompt_or_field_are_not_replaced(
    texts: Path, models: Callable[[str], Path], tmp_path: Path, before: str, after: str
) -> None:
    data = Path(shutil.copytree(texts, tmp_path / "data"))
    for number, file in enumerate(sorted(data.glob("*.jsonl"))):
        both = zip(random_texts(60, WORDS, number), random_texts(60, WORDS, number + 100), strict=True)
        write_lines(file, [{"text": text, "body": body} for text, body in both])
    rest = (data / MANIFEST).read_text(encoding="utf-8")
    options = BenchOptions(data=data, model=str(models("bert")), seeds=1, recipe="robust", out=tmp_path / "out")
    (data / MANIFEST).write_text(before + rest, encoding="utf-8")
    prepare("score-ablation", options).run()
    prepare("score-ablation", options)
    (data / MANIFEST).write_text(after + rest, encoding="utf-8")
    with pytest.raises(InputError, match="has results of other data"):
        prepare("score-ablation", options)


def test_files_of_a_pattern_are_identified_by_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(name, encoding="utf-8")
    pattern = str(tmp_path / "*.jsonl")
    before = file_digests(DataSet((pattern,)))
    assert before.keys() == {pattern} and file_digests(DataSet((pattern,))) == before
    (tmp_path / "b.jsonl").write_text("c", encoding="utf-8")
    assert file_digests(DataSet((pattern,))) != before
    assert file_digests(DataSet((str(tmp_path / "*.csv"), "xsum:train"))) == {}


def test_sounds_are_identified_by_content(sounds: tuple[Path, Path], tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    for kind, sound in (("hum", tone), ("hiss", noise)):
        (tmp_path / kind).mkdir()
        for number in range(6):
            soundfile.write(tmp_path / kind / f"{number}.wav", sound(0.7, number, 16_000), 16_000)
    (tmp_path / MANIFEST).write_text(f'id = "hum"\n[ood]\nMachines = "hiss"\n{SETTINGS}', encoding="utf-8")
    options = BenchOptions(data=tmp_path, model=str(sounds[1]), out=tmp_path / "out")

    def stores() -> list[Path]:
        return [embedding.folder for embedding in prepare("audio", options, dry_run=True).embeddings]

    first = stores()
    assert stores() == first
    place = tmp_path / "hiss" / "3.wav"
    size = place.stat().st_size
    soundfile.write(place, noise(0.7, 77, 16_000), 16_000)
    assert place.stat().st_size == size
    assert stores()[0] == first[0] and stores()[1] != first[1]


def test_unchanged_files_are_digested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        (tmp_path / f"{number}.wav").write_bytes(number.to_bytes(2, "big"))
    read = []
    whole = stores_module.sha256_of
    monkeypatch.setattr(stores_module, "sha256_of", lambda path: read.append(path) or whole(path))
    source = DataSet((str(tmp_path),))
    first = file_digests(source)
    assert file_digests(source) == first and len(read) == 300
    os.utime(tmp_path / "7.wav", ns=(0, 0))
    assert file_digests(source) == first and len(read) == 301
    (tmp_path / "7.wav").rename(tmp_path / "x.wav")
    assert file_digests(source) != first


def describe_set(prepared: PreparedExperiment, name: str) -> str:
    sets = prepared.cost.facts["embed, input"]
    assert isinstance(sets, dict)
    return str(sets[name])


def test_local_sets_of_the_paper_are_sampled_at_random(models: Callable[[str], Path], tmp_path: Path) -> None:
    hub, wanted, rows = tmp_path / "hub", 12_500, 15_000
    for path in ("EdinburghNLP/xsum/train", "EdinburghNLP/xsum/test"):
        write_lines(hub / f"{path}.jsonl", [{"document": text} for text in random_texts(20, WORDS, 0)])
    write_lines(hub / "allenai/c4/en/train.jsonl", [{"text": text} for text in random_texts(20, WORDS, 1)])
    write_lines(hub / "knkarthick/samsum/train.jsonl", [{"dialogue": f"{i}" if i else ""} for i in range(rows, -1, -1)])
    skip = ["CNN/DM", "Newsroom", "Reddit"]
    options = BenchOptions(profile="paper", data=hub, model=str(models("bert")), skip=skip, out=tmp_path / "out")
    prepared = prepare("beta-ablation", options, dry_run=True)
    assert describe_set(prepared, "Samsum").startswith(f"{wanted:,} at random from samsum:train, about")
    assert describe_set(prepared, "aux").startswith("20 from en:train, about")

    embedding = next(one for one in prepared.embeddings if one.role == "ood.Samsum")
    records = list(read_set(embedding, prepared.experiment.task))
    taken = [int(record.item) for record in records if isinstance(record, Record)]
    assert len(set(taken)) == len(taken) == wanted and len(records) == wanted + 1  # the empty one is counted as bad
    # a sixth of them are of the last sixth of the rows, and wherever in the store one looks
    for part in (taken[: wanted // 2], taken[wanted // 2 :]):
        assert np.mean([number <= rows // 6 for number in part]) == pytest.approx(1 / 6, abs=0.02)
    again = read_set(embedding, prepared.experiment.task)
    assert [int(record.item) for record in again if isinstance(record, Record)] == taken


def test_streamed_sets_are_cut_after_the_first_records(tmp_path: Path) -> None:
    prepared = prepare("beta-ablation", BenchOptions(profile="paper", skip=["Newsroom"], out=tmp_path), dry_run=True)
    assert describe_set(prepared, "Samsum").startswith("at most the first 12,500 from samsum:train, about")
