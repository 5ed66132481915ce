"""Readings as text for Prometheus, by the library that its makers keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kandev.metrics.catalogue import CATALOGUE, DATABASE_UP, Metric
from kandev.metrics.reading import Readings, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(readings: Readings) -> bytes:
    """Every metric of the catalogue; readings of other names are left out."""
    return _text(CATALOGUE.values(), readings)


def render_without_database() -> bytes:
    """Say that there are no numbers: any 0 but this one would pass for a count that fell."""
    return _text([DATABASE_UP], {DATABASE_UP.name: [({}, 0)]})


def _text(metrics: Iterable[Metric], readings: Readings) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read(metrics, readings))
    return generate_latest(registry)


class _Read(Collector):
    def __init__(self, metrics: Iterable[Metric], readings: Readings):
        self._metrics, self._readings = metrics, readings

    def collect(self) -> Iterator[Family]:
        return (_family(metric, self._readings) for metric in self._metrics)


def _family(metric: Metric, readings: Readings) -> Family:
    if metric.kind == "histogram":
        return _histogram(metric, readings)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in _sorted(readings.get(metric.name, ())):
        family.add_metric([labels.get(name, "") for name in metric.labels], value)
    return family


def _sorted(samples: Iterable[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: sorted(sample[0].items()))


def _histogram(metric: Metric, readings: Readings) -> Family:
    """Buckets that are counted each for itself become such as hold all below them."""
    apart: Mapping[str, float] = {labels["le"]: value for labels, value in readings.get(f"{metric.name}_bucket", ())}
    edges = [*(f"{edge:g}" for edge in metric.buckets), "+Inf"]
    below, buckets = 0.0, []
    for edge in edges:
        below += apart.get(edge, 0)
        buckets.append((edge, below))
    sums = readings.get(f"{metric.name}_sum", ())
    family = HistogramMetricFamily(metric.name, metric.help)
    family.add_metric([], buckets, sum(value for _, value in sums))
    return family
