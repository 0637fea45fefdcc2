"""What Prometheus reads from the service. No label or value is made from an input."""

from typing import TYPE_CHECKING, Any

from apood.serving.http.tally import RATES, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from apood.pipeline.judging import Judgement

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 16384, 65536)


class Metrics:
    """The metrics of one service, in a registry of their own.

    Args:
        tally: the counts of decisions.
    """

    def __init__(self, tally: Tally) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._tally = tally
        self.registry = CollectorRegistry()

        def make(kind: Any, name: str, meaning: str, *labels: str, **options: Any) -> Any:
            return kind(f"apood_{name}", meaning, labels, registry=self.registry, **options)

        self._requests = make(Counter, "requests", "Requests by route and status.", "route", "status")
        self._seconds = make(Histogram, "request_seconds", "Time to the answer.", "route", buckets=_SECONDS)
        self._texts = make(Counter, "texts", "Judged texts by decision.", "decision")
        self._refused = make(
            Counter, "would_refuse", "Judged texts that would be refused, by accept rate.", "accept_rate"
        )
        self._p_values = make(
            Histogram, "p_value", "P-values of judged texts.", buckets=[step / 20 for step in range(1, 21)]
        )
        self._lengths = make(Histogram, "text_tokens", "Tokens of judged texts.", buckets=_TOKENS)
        self._unusual = make(
            Counter, "unusual_lengths", "Judged texts shorter or longer than 99% of those that set the threshold."
        )
        self._batches = make(Histogram, "batch_tokens", "Tokens per batch of the model.", buckets=_TOKENS)
        self._batch_seconds = make(Histogram, "batch_seconds", "Time per batch of the model.", buckets=_SECONDS)
        self._in_flight = make(Gauge, "tokens_in_flight", "Tokens that wait or run.")
        self._errors = make(Counter, "errors", "Requests that met an unexpected error.")
        self._unjudged = make(
            Counter, "unjudged", "Requests that passed without a decision, by --on-error accept or --shadow."
        )
        self._upstream = make(
            Counter, "upstream_failures", "Requests that the upstream server did not answer, or not to the end."
        )
        self._reloads = make(Counter, "reloads", "Detectors loaded in place of another one, by outcome.", "outcome")
        drift = {
            "inputs": "Inputs that the drift alarm has seen.",
            "log10_evidence": "Evidence of drift towards lower scores, as a power of ten.",
            "log10_evidence_of_alarm": "The evidence at which the alarm goes off.",
            "alarm": "1 after the alarm has gone off, else 0.",
        }
        self._drift = {name: make(Gauge, f"drift_{name}", meaning) for name, meaning in drift.items()}
        for decision in ("ID", "OOD"):
            self._texts.labels(decision)
        for rate in RATES:
            self._refused.labels(f"{rate:g}")

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_judgements(self, judgements: "Iterable[Judgement]", unusual: int) -> None:
        """Count decisions, and how many of them are on texts of unusual lengths, here and in the tally."""
        own = list(judgements)
        before = dict(self._tally.refused)
        self._tally.add(own, unusual)
        self._unusual.inc(unusual)
        for rate in RATES:
            self._refused.labels(f"{rate:g}").inc(self._tally.refused[rate] - before[rate])
        for judgement in own:
            self._texts.labels("ID" if judgement.accepted else "OOD").inc()
            self._p_values.observe(judgement.p_value or 0.0)
            self._lengths.observe(judgement.tokens)

    def show_drift(self, gauges: "Mapping[str, float]") -> None:
        """Show what the drift alarm says."""
        for name, value in gauges.items():
            self._drift[name].set(value)

    def count_batch(self, tokens: int, seconds: float) -> None:
        """Count a batch of the model."""
        self._batches.observe(tokens)
        self._batch_seconds.observe(seconds)

    def count_error(self) -> None:
        """Count an unexpected error."""
        self._errors.inc()

    def count_unjudged(self) -> None:
        """Count a request that passed without a decision."""
        self._unjudged.inc()

    def count_upstream_failure(self) -> None:
        """Count a request that the upstream server did not answer, or not to the end."""
        self._upstream.inc()

    def count_reload(self, outcome: str) -> None:
        """Count a detector that was loaded in place of another one, or was not."""
        self._reloads.labels(outcome).inc()

    def render(self, in_flight: int) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._in_flight.set(in_flight)
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
