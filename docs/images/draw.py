"""Draws the pictures in this folder: `python docs/images/draw.py`, from the root of the repository.

`why.png` shows the toy experiment of the paper in one line; `toy-averaging.png` and `toy-attention.png` are the figures
of `apood bench toy`, made small enough to lie in a repository.
"""

import tempfile
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from apood import APOOD, Detector, Mahalanobis, TokenBatch
from apood.evaluation.metrics import auroc
from apood.experiments.toy import run_toy

HERE = Path(__file__).parent
BLUE, ORANGE = "#2a6f97", "#d1603d"
STARTS = 6


def sequences(first: tuple[float, float], count: int, generator: torch.Generator) -> TokenBatch:
    """Two tokens each, near `first` and near its opposite: the same mean whatever `first` is."""
    centres = torch.tensor([first, (-first[0], -first[1])])
    return TokenBatch.from_padded(centres + 0.1 * torch.randn(count, 2, 2, generator=generator))


def fitted(train: TokenBatch) -> APOOD:
    """The start with the lowest training loss, as in `apood bench toy`."""
    settings = {"heads": 1, "queries": 1, "beta": 12.0, "similarity": "euclidean", "recipe": "paper"}
    starts = [APOOD(**settings, seed=seed).fit(train) for seed in range(STARTS)]
    return min(starts, key=lambda detector: detector.mean_distance_ - float(detector.log_norms_.sum()))


def draw_tokens(axes: Axes, id_test: TokenBatch, ood_test: TokenBatch) -> None:
    """The first sequences of both kinds, a line between the two tokens of each."""
    for name, colour, batch in (("ID", BLUE, id_test), ("OOD", ORANGE, ood_test)):
        shown = batch.values.reshape(-1, 2, 2)[:60].numpy()
        axes.plot(*shown.transpose(2, 1, 0), color=colour, linewidth=0.6, alpha=0.3)
        axes.scatter(*shown.reshape(-1, 2).T, s=7, color=colour, label=name)
    axes.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
    axes.legend(loc="center left", frameon=False, handletextpad=0, borderaxespad=0)
    axes.set_title("Two tokens a sequence,\nmeans all near the origin", fontsize=11)


def draw_scores(axes: Axes, title: str, detector: Detector, id_test: TokenBatch, ood_test: TokenBatch) -> None:
    """Histograms of both kinds over the same bins."""
    scores = detector.score_samples(id_test), detector.score_samples(ood_test)
    ends = min(map(min, scores)), max(map(max, scores))
    for colour, of_set in zip((BLUE, ORANGE), scores, strict=True):
        axes.hist(of_set, bins=50, range=ends, color=colour, alpha=0.6)
    axes.set(yticks=[], xlabel="score (higher = more in-distribution)")
    axes.locator_params(axis="x", nbins=5)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.set_title(f"{title}\nAUROC {100 * auroc(*scores).value:.1f}%", fontsize=11)


def draw_why() -> None:
    """What averaging cannot tell apart and attention can."""
    generator = torch.Generator().manual_seed(0)
    train = sequences((1, 1), 10_000, generator)
    tests = sequences((1, 1), 1_000, generator), sequences((-1, 1), 1_000, generator)
    figure = Figure(figsize=(9, 3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    left, centre, right = figure.subplots(1, 3, width_ratios=[1, 1.15, 1.15])
    draw_tokens(left, *tests)
    draw_scores(centre, "Mahalanobis on the mean:", Mahalanobis().fit(train), *tests)
    draw_scores(right, "AP-OOD on the tokens:", fitted(train), *tests)
    figure.savefig(HERE / "why.png", dpi=150)


def draw_toy() -> None:
    """The figures of `apood bench toy` with fewer pixels and colours."""
    with tempfile.TemporaryDirectory() as folder:
        run_toy(Path(folder))
        for figure, name in (("figure1", "toy-averaging"), ("figure2", "toy-attention")):
            image = Image.open(Path(folder, f"{figure}.png")).convert("RGB")
            small = image.resize((1350, 1350 * image.height // image.width), Image.Resampling.LANCZOS)
            small.quantize(128).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    draw_why()
    draw_toy()
