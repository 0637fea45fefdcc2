"""How well the methods do on real text: `python -m benchmarks.quality`, results in `benchmarks/QUALITY.md`."""
