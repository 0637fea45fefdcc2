"""`apood audit`."""

import json


def test_it_lists_foreign_texts_and_build_embeds_nothing_again(apood, model, texts, tmp_path, monkeypatch):
    train, foreign = tmp_path / "train.txt", " ".join(["word11"] * 10)
    train.write_text("\n".join([*texts["train"][:60], foreign, *texts["train"][60:]]))
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    found = json.loads(apood("audit", train, "--model", model, "--top", 3, "--json").stdout)
    assert found["inputs"] == len(texts["train"]) + 1 and len(found["lowest"]) == 3
    assert (60, foreign) in [(row["index"], row["text"]) for row in found["lowest"]]
    scores = [row["score"] for row in found["lowest"]]
    assert scores == sorted(scores)
    shown = apood("audit", train, "--model", model).stdout
    assert len([line for line in shown.splitlines() if line.strip()]) == 20 + 3 and foreign[:20] in shown

    monkeypatch.setattr("apood.pipeline.token_cache.embed_to_store", lambda *_, **__: 1 / 0)
    apood("build", train, "--model", model, "--fast", "--out", tmp_path / "detector")


def test_a_store_has_numbers_and_no_texts_without_its_channel(apood, refused, stores, model):
    shown = apood("audit", stores / "train", "--top", 2).stdout
    assert "INDEX" in shown and "SCORE" in shown
    assert "--model is for texts" in refused("audit", stores / "train", "--model", model)
    assert "name a model" in refused("audit", "train.txt")
