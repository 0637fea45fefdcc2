"""The figures that the paper gives, table by table (Hofmann et al., ICLR 2026): AUROC and FPR95 in percent."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from apood.evaluation.result import MEAN

__all__ = ["BEST_SCALING", "Figures", "Published", "published"]


class Figures(NamedTuple):
    """What the paper has in a cell."""

    auroc: float
    fpr95: float


@dataclass(frozen=True)
class Published:
    """One of the paper's tables.

    Attributes:
        table: its number.
        columns: the OOD sets, without their mean.
        cells: by mode, row and column; the mean is in the column `MEAN`.
    """

    table: str
    columns: tuple[str, ...]
    cells: dict[tuple[str, str, str], Figures]

    def figures(self, mode: str, row: str, column: str, compared: tuple[str, ...]) -> Figures | None:
        """What the paper has for a row and a column, if anything.

        Its mean over all sets says nothing beside one over others, so that of the sets `compared` stands for it.
        """
        if column != MEAN or set(compared) >= set(self.columns):
            return self.cells.get((mode, row, column))
        known = [self.cells[mode, row, name] for name in self.shared(compared) if (mode, row, name) in self.cells]
        return Figures(*(round(fmean(values), 2) for values in zip(*known, strict=True))) if known else None

    def shared(self, compared: tuple[str, ...]) -> list[str]:
        """The sets that are in the paper's table and among those `compared`."""
        return [name for name in self.columns if name in compared]


def published(bench: str) -> Published | None:
    """The table that an experiment repeats, if the paper has one for it."""
    if bench not in _TABLES:
        return None
    lines = iter(_TABLES[bench][1].strip().replace("/\n", "/").splitlines())
    columns = tuple(next(lines).split(" | "))
    return Published(_TABLES[bench][0], columns, dict(_cells(lines, columns)))


def _cells(lines: Iterator[str], columns: tuple[str, ...]) -> Iterator[tuple[tuple[str, str, str], Figures]]:
    mode = ""
    for line in lines:
        row, _, figures = line.partition(": ")
        if not figures:
            mode = row.rstrip(":")
            continue
        aurocs, fprs = (map(float, half.split()) for half in figures.split("/"))
        for column, auroc, fpr in zip((*columns, MEAN), aurocs, fprs, strict=True):
            yield (mode, row, column), Figures(auroc, fpr)


BEST_SCALING = 99.40
"""The mean AUROC in percent of the largest model in figure 4, M = 1024 and T = 16; the others are only drawn."""

# A line names the OOD sets; then, for each mode, a line a method: AUROC on each set and their mean / FPR95 the same.
_TABLES = {
    "summarization": ("table 1", """
CNN/DM | Newsroom | Reddit | Samsum
input:
Mahalanobis: 68.95 86.40 98.64 99.77 88.44 / 92.16 64.02 2.43 0.17 39.69
KNN: 54.32 73.83 94.53 98.84 80.38 / 99.39 88.49 51.26 3.09 60.56
Deep SVDD: 75.75 91.36 99.71 99.57 91.60 / 74.20 36.05 0.39 0.72 27.84
AP-OOD: 97.48 98.54 99.88 99.76 98.91 / 12.88 5.78 0.00 0.00 4.67
output:
Perplexity: 41.65 52.86 82.59 77.90 63.75 / 77.83 79.40 48.25 47.35 63.21
Entropy: 59.76 76.92 93.42 87.07 79.30 / 79.26 64.65 30.45 50.83 56.30
Mahalanobis: 62.67 87.38 97.13 96.99 86.04 / 89.46 49.06 12.27 15.25 41.51
KNN: 74.17 86.69 95.82 97.28 88.49 / 73.36 54.30 17.28 10.99 38.98
Deep SVDD: 66.59 93.47 97.58 95.61 88.31 / 77.67 20.67 9.31 21.66 32.33
AP-OOD: 93.53 94.41 98.72 98.89 96.39 / 29.58 28.18 3.18 4.09 16.26
"""),
    "translation": ("table 2", """
IT | Koran | Law | Medical | Subtitles | ndd2015 | ndt2015 | nt2014
input:
Mahalanobis: 93.28 74.52 60.48 78.63 87.27 62.02 62.40 49.08 70.96 /
    37.80 93.58 90.79 67.14 70.73 91.67 93.60 98.59 80.49
KNN: 94.25 71.52 54.79 77.86 87.47 63.66 65.16 53.27 71.00 /
    35.00 93.91 91.73 68.95 71.91 91.33 92.07 97.28 80.27
Deep SVDD: 92.15 72.26 63.57 78.46 85.06 59.59 60.00 46.70 69.72 /
    46.28 96.11 91.53 68.94 74.64 93.77 94.84 98.82 83.12
AP-OOD: 95.61 78.49 63.23 80.16 87.39 67.64 69.50 56.44 74.81 /
    21.85 91.07 89.19 61.55 66.35 87.85 89.07 95.10 75.25
output:
Perplexity: 91.34 71.75 45.13 73.05 91.27 72.80 73.43 59.21 72.25 /
    44.94 91.70 90.83 70.47 51.31 85.05 85.67 96.67 77.08
Entropy: 74.86 85.96 53.38 50.51 70.36 73.78 72.57 71.01 69.05 /
    68.69 55.03 93.76 90.21 75.84 76.64 77.63 85.39 77.90
Mahalanobis: 91.07 75.57 64.15 78.22 86.68 62.76 63.53 49.70 71.46 /
    54.49 93.82 92.31 73.03 74.97 92.87 93.97 98.82 84.28
KNN: 95.05 75.31 65.01 82.39 85.87 65.78 66.72 58.99 74.39 /
    31.95 95.56 91.88 65.91 79.04 92.91 93.99 97.54 81.10
Deep SVDD: 89.57 70.96 64.36 76.47 82.52 60.39 61.48 48.03 69.22 /
    57.89 93.97 91.34 72.80 82.77 94.73 93.91 98.53 85.74
AP-OOD: 94.44 81.50 57.36 78.74 91.39 75.65 75.41 64.55 77.38 /
    26.42 80.45 88.24 62.26 49.36 80.44 81.56 94.22 70.37
"""),
    "summarization-supervised": ("table 4", """
CNN/DM | Newsroom | Reddit | Samsum
input:
Binary logits: 99.49 99.47 100.00 99.98 99.74 / 1.81 2.04 0.00 0.03 0.97
Relative Mahalanobis: 81.43 91.71 99.95 99.99 93.27 / 62.60 28.41 0.01 0.01 22.75
Deep SAD: 99.34 99.44 100.00 100.00 99.70 / 1.18 1.49 0.00 0.00 0.67
AP-OOD: 99.89 99.89 100.00 99.99 99.94 / 0.05 0.39 0.00 0.00 0.11
output:
Binary logits: 98.47 99.45 99.99 99.95 99.47 / 5.77 1.87 0.00 0.04 1.92
Relative Mahalanobis: 93.42 97.38 99.82 99.52 97.54 / 25.22 8.68 0.03 0.95 8.72
Deep SAD: 97.53 99.40 99.99 99.95 99.22 / 8.22 1.90 0.01 0.08 2.55
AP-OOD: 99.46 99.73 100.00 99.99 99.80 / 1.96 0.97 0.00 0.00 0.73
"""),
    "translation-supervised": ("table 5", """
IT | Koran | Law | Medical | Subtitles | ndd2015 | ndt2015 | nt2014
input:
Binary logits: 95.42 96.41 51.23 73.81 91.56 90.59 90.50 88.39 84.74 /
    20.51 22.61 95.96 80.14 41.74 57.18 55.63 68.56 55.29
Relative Mahalanobis: 88.21 96.17 30.11 67.20 90.98 88.62 87.63 84.76 79.21 /
    29.06 22.13 96.99 79.45 26.71 67.87 67.83 82.76 59.10
Deep SAD: 97.19 96.74 52.11 80.55 93.85 91.11 90.99 88.27 86.35 /
    17.37 20.06 95.95 81.62 39.00 57.40 57.33 70.96 54.96
AP-OOD: 97.41 97.98 60.30 81.28 95.41 92.32 91.89 89.91 88.31 /
    16.89 11.63 95.91 79.79 29.25 49.03 49.53 63.15 49.40
output:
Binary logits: 94.40 96.73 54.28 72.91 92.45 89.98 89.91 87.39 84.76 /
    28.68 19.42 96.42 83.66 37.40 56.02 56.99 70.80 56.17
Relative Mahalanobis: 87.68 95.86 30.41 66.17 92.42 88.35 87.70 84.17 79.09 /
    37.33 24.31 96.72 82.28 30.83 69.29 68.53 84.15 61.68
Deep SAD: 91.49 76.54 63.38 77.14 84.72 64.46 65.57 51.65 71.87 /
    51.80 91.73 91.53 72.54 80.49 93.97 93.07 98.35 84.18
AP-OOD: 97.14 97.71 56.60 81.44 95.27 91.49 91.28 89.06 87.50 /
    19.52 13.73 97.18 80.53 30.02 51.87 50.87 66.31 51.25
"""),
    "language-model": ("table 6", """
4Chan | Reports | Covid | Clinical | Twitter
input:
Perplexity: 65.05 48.32 89.51 85.86 99.22 77.59 / 72.66 86.91 68.60 65.22 2.85 59.25
Mahalanobis: 35.27 54.72 75.50 75.67 97.86 67.81 / 92.93 87.77 98.07 90.79 10.91 76.09
KNN: 39.31 59.41 70.62 75.56 81.50 65.28 / 98.85 93.26 99.03 95.85 61.12 89.62
Deep SVDD: 55.59 64.06 72.54 73.44 81.08 69.34 / 88.15 88.94 99.52 96.35 76.72 89.93
AP-OOD: 87.97 68.09 91.79 86.44 99.08 86.67 / 88.34 91.47 40.34 57.38 1.52 55.81
"""),
    "score-ablation": ("table 7", """
CNN/DM | Newsroom | Reddit | Samsum
input:
s: 96.13 99.10 99.91 99.80 98.74 / 19.51 4.11 0.00 0.04 5.91
s_min: 96.08 97.48 99.71 97.67 97.74 / 18.78 11.16 0.01 12.04 10.50
output:
s: 93.37 92.62 98.04 98.30 95.59 / 23.12 29.91 6.34 6.83 16.55
s_min: 93.82 88.30 95.94 90.13 92.05 / 26.60 38.26 18.49 36.71 30.02
"""),
    "beta-ablation": ("table 8", """
CNN/DM | Newsroom | Reddit | Samsum
input:
β = 0: 66.83 81.42 94.81 93.38 84.11 / 97.17 76.31 41.12 19.96 58.64
β = 0.25: 97.76 98.75 99.87 99.46 98.96 / 11.07 4.75 0.00 0.02 3.96
β = 0.5: 96.13 99.10 99.91 99.80 98.74 / 19.51 4.11 0.00 0.04 5.91
β = 1: 91.36 98.77 99.75 99.83 97.43 / 38.78 4.94 0.02 0.00 10.94
β = 2: 84.29 97.58 99.52 99.76 95.28 / 63.31 9.14 0.12 0.05 18.16
β = 1/√D: 89.09 90.59 99.59 99.87 94.79 / 53.96 47.50 0.17 0.04 25.42
output:
β = 0: 77.67 85.10 84.12 91.70 84.65 / 82.07 69.32 57.30 29.37 59.52
β = 0.25: 91.37 93.66 94.79 96.56 94.10 / 43.03 34.70 38.38 18.61 33.68
β = 0.5: 93.37 92.62 98.04 98.30 95.59 / 23.12 29.91 6.34 6.83 16.55
β = 1: 93.06 91.82 97.66 97.91 95.11 / 24.04 32.04 9.29 8.82 18.55
β = 2: 93.25 91.98 97.57 97.97 95.19 / 23.69 31.23 10.06 8.37 18.34
β = 1/√D: 54.67 80.59 94.12 94.93 81.08 / 92.40 65.83 30.04 27.20 53.87
"""),
    "heads-ablation": ("table 9", """
CNN/DM | Newsroom | Reddit | Samsum
input:
T = 1: 97.16 98.25 99.82 99.32 98.64 / 14.72 7.54 0.00 0.64 5.72
T = 2: 97.98 98.83 99.87 99.60 99.07 / 9.77 4.67 0.00 0.02 3.61
T = 4: 97.76 98.75 99.87 99.46 98.96 / 11.07 4.75 0.00 0.02 3.96
T = 8: 97.53 98.49 99.83 99.14 98.75 / 12.48 5.94 0.00 0.25 4.67
T = 16: 97.10 98.14 99.84 98.81 98.47 / 14.30 7.87 0.00 0.99 5.79
T = 32: 96.84 97.78 99.83 98.56 98.25 / 14.97 10.18 0.01 2.53 6.92
T = 64: 96.23 97.35 99.73 98.12 97.86 / 16.65 12.55 0.09 5.69 8.75
T = 128: 95.56 96.47 99.67 97.44 97.29 / 18.16 16.34 0.52 11.29 11.58
T = 256: 94.58 94.75 99.27 95.24 95.96 / 20.10 21.71 2.01 24.58 17.10
T = 512: 93.17 91.87 98.43 89.87 93.34 / 22.86 27.09 4.95 39.75 23.66
T = 1024: 90.90 88.10 96.68 81.41 89.27 / 27.14 32.64 9.03 52.73 30.39
output:
T = 1: 92.47 94.17 98.36 97.77 95.69 / 39.11 34.69 3.11 12.59 22.38
T = 2: 93.79 95.85 99.02 98.96 96.90 / 32.45 20.10 0.95 2.77 14.07
T = 4: 93.35 95.48 99.19 99.05 96.77 / 33.67 21.73 0.86 2.72 14.75
T = 8: 93.24 95.27 99.21 98.99 96.68 / 32.84 23.40 0.99 3.26 15.12
T = 16: 92.95 94.92 99.11 98.89 96.47 / 34.08 25.53 1.48 4.10 16.30
T = 32: 92.54 94.11 98.67 98.63 95.99 / 37.21 29.56 4.68 6.11 19.39
T = 64: 91.26 92.62 97.99 98.58 95.11 / 41.96 35.78 8.75 6.19 23.17
T = 128: 90.94 91.99 97.10 98.28 94.58 / 41.24 36.42 13.13 7.58 24.59
T = 256: 89.62 90.35 95.91 97.73 93.40 / 47.52 41.77 18.53 10.02 29.46
T = 512: 87.82 88.06 94.00 96.91 91.70 / 52.18 50.66 28.44 13.98 36.31
T = 1024: 86.45 86.95 93.43 96.10 90.73 / 50.92 49.61 29.61 14.82 36.24
"""),
    "similarity-ablation": ("table 10", """
CNN/DM | Newsroom | Reddit | Samsum
input:
dot product: 97.76 98.75 99.87 99.46 98.96 / 11.07 4.75 0.00 0.02 3.96
Euclidean: 74.22 84.43 97.06 98.30 88.50 / 90.20 74.08 15.27 7.17 46.68
output:
dot product: 93.37 92.62 98.04 98.30 95.58 / 23.12 29.93 6.36 6.83 16.56
Euclidean: 87.67 88.17 96.50 91.28 90.90 / 65.62 66.04 22.34 53.89 51.97
"""),
    "audio": ("table 3", """
Machines
input:
Mahalanobis: 64.96 64.96 / 84.39 84.39
KNN: 81.21 81.21 / 57.11 57.11
Deep SVDD: 53.48 53.48 / 89.44 89.44
MSP: 88.05 88.05 / 36.43 36.43
Energy: 90.75 90.75 / 61.86 61.86
AP-OOD: 92.86 92.86 / 22.35 22.35
"""),
}  # fmt: skip
