"""Rows of benchmarks survive the CSV file, come together from several machines, and are rendered honestly."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.encoder_share import name_added
from benchmarks.growth import BY_HEADS, BY_QUERIES, BY_TOKENS
from benchmarks.pooling import FROZEN, POOL
from benchmarks.record import Record, Row, Run, append, find_commit, merge, read
from benchmarks.render import format_row, make_section, render, select_latest
from benchmarks.targets import TARGETS, check_targets

GPU = Run("2026-11-16 10:00:00", "abc1234", "cuda", "NVIDIA H200", "torch 2.11.0, Python 3.12.3")
CPU = replace(GPU, device="cpu", machine="AMD EPYC, 2 threads")
SHAPE = "N=512 S=512 D=1024 M=256 T=4"


def pool_row(value: float = 0.84, limit: float = 0.74) -> Row:
    product = "matrix product Z Wᵀ, bfloat16"
    return Row("pool", POOL, SHAPE, "bfloat16", "ms", value, "the paper's pseudocode", 4.2, product, limit, 12.5)


def growth_rows() -> list[Row]:
    shapes = {
        BY_TOKENS: ["N=2 S=500 D=8 M=4 T=2", "N=20 S=500 D=8 M=4 T=2"],
        BY_HEADS: ["N=2 S=500 D=8 M=4 T=2", "N=2 S=500 D=8 M=8 T=2"],
        BY_QUERIES: ["N=2 S=500 D=8 M=4 T=1", "N=2 S=500 D=8 M=4 T=2"],
    }
    return [
        Row("growth", what, shape, "bfloat16", "ms", 1.0 + number, limit="product", limit_value=0.5 + number)
        for what, own in shapes.items()
        for number, shape in enumerate(own)
    ]


def test_ratio_and_fraction_follow_from_the_values():
    row = pool_row(value=0.8, limit=0.6)
    assert row.ratio == pytest.approx(0.8 / 4.2)
    assert row.fraction == pytest.approx(0.75)
    alone = Row("errors", "h", SHAPE, "float32", "error", 1e-6)
    assert alone.ratio is None and alone.fraction is None


def test_the_file_gives_back_what_was_appended(tmp_path: Path):
    file = tmp_path / "results.csv"
    assert read(file) == []
    records = [Record(GPU, pool_row()), Record(CPU, Row("errors", "h, by norms", SHAPE, "float32", "error", 1e-6))]
    append(file, records[:1])
    append(file, records[1:])
    assert read(file) == records
    assert len(file.read_text(encoding="utf-8").splitlines()) == 3, "one head, two rows"


def test_merging_twice_adds_once_and_names_the_commit(tmp_path: Path):
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    append(here, [Record(CPU, pool_row())])
    append(there, [Record(replace(GPU, commit=""), pool_row())])
    assert merge(here, [there]) == 1
    assert merge(here, [there]) == 0
    assert [record.run.machine for record in read(here)] == [CPU.machine, GPU.machine]
    assert read(here)[1].run.commit == find_commit()


def test_only_the_newest_run_of_a_group_is_shown():
    old, new = GPU, replace(GPU, date="2026-11-17 10:00:00")
    error = Row("errors", "h", SHAPE, "bfloat16", "error", 2e-3)
    records = [Record(old, pool_row(value=9.0)), Record(old, error), Record(new, pool_row(value=0.8))]
    assert select_latest(records) == [Record(old, error), Record(new, pool_row(value=0.8))], (
        "the errors were not run again"
    )


def test_a_missed_target_is_told():
    text = make_section([Record(GPU, pool_row(value=0.84))])
    assert "| forward, N=512, times the bare product | 1.4 x | 1.14 x | yes |" in text
    text = make_section([Record(GPU, pool_row(value=1.48))])
    assert "| forward, N=512, times the bare product | 1.4 x | 2 x | **no** |" in text


def test_targets_are_for_their_device_and_dtype_alone():
    assert len(check_targets([Record(GPU, pool_row())])) == 1
    assert not check_targets([Record(CPU, pool_row())]), "N=512 is for GPUs"
    assert not check_targets([Record(GPU, replace(pool_row(), dtype="float32"))])


def test_the_limit_of_a_cpu_is_the_float32_product():
    row = replace(pool_row(value=1.3, limit=1.0), shape="N=32 S=512 D=1024 M=256 T=4")
    assert not check_targets([Record(CPU, row)])
    (found,) = check_targets([Record(CPU, replace(row, limit="matrix product Z Wᵀ, float32"))])
    assert not found.met and found.target.most == 1.2


def test_the_share_of_the_encoder_is_what_a_pass_takes_longer():
    alone = Row("encoder", FROZEN, "N=32 S=512 D=1024 M=256 T=4", "bfloat16", "ms", 0.08, "encoder", 10.0)
    assert not check_targets([Record(GPU, alone)])
    (found,) = check_targets([Record(GPU, replace(alone, what=name_added(FROZEN), value=0.05))])
    assert found.met and found.measured == pytest.approx(0.5)
    (noise,) = check_targets([Record(GPU, replace(alone, what=name_added(FROZEN), value=-0.01))])
    assert noise.measured == pytest.approx(-0.1), "as measured"
    assert "| -0.01 ms | -0.001 |" in format_row(replace(alone, value=-0.01))


def test_every_target_names_a_figure_of_its_own():
    texts = [(target.text, target.device) for target in TARGETS]
    assert len(set(texts)) == len(texts)


def test_rendering_replaces_its_section_and_nothing_else(tmp_path: Path):
    file, page = tmp_path / "results.csv", tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nProse before.\n", encoding="utf-8")
    append(file, [Record(GPU, row) for row in (pool_row(), *growth_rows())])
    render(file, page)
    first = page.read_text(encoding="utf-8")
    page.write_text(first + "\nProse behind.\n", encoding="utf-8")
    render(file, page)
    assert page.read_text(encoding="utf-8") == first + "\nProse behind.\n"
    assert first.startswith("# Results\n\nProse before.\n") and format_row(pool_row()) in first
    image = tmp_path / "images" / "growth-nvidia-h200.png"
    assert f"images/{image.name}" in first and image.read_bytes().startswith(b"\x89PNG")


def test_tables_are_even():
    records = [Record(run, row) for run in (GPU, CPU) for row in (pool_row(), *growth_rows())]
    tables = [block for block in make_section(records).split("\n\n") if block.startswith("|")]
    assert len(tables) == 5, "targets of the GPU, and two groups a machine"
    for table in tables:
        assert len({line.count("|") for line in table.strip().splitlines()}) == 1


def test_a_row_shows_the_share_of_the_limit():
    assert format_row(pool_row(value=0.8, limit=0.6)).endswith("| 4.2 ms | 0.8 ms | 0.19 | 75% | 12.5 |")
    assert FROZEN in format_row(replace(pool_row(), what=FROZEN))
