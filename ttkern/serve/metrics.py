"""What /metrics reports, under the names that vLLM's dashboards read.

Each server has its own registry, so that two can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ttkern.engine.config import EngineStats
from ttkern.engine.request import RequestOutput

FINISHED_REASONS = ("stop", "length", "abort")
_FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass
class _Times:
    last_token_at: float
    first_token_at: float


class Metrics:
    """Counts and times of one server. `observe_*` are called on the engine thread; `render` from anywhere."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self._times: dict[str, _Times] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("model_name", *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets)
            return made.labels(model_name)

        prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that produced their first output.")
        generated = counter("vllm:generation_tokens", "Generated tokens.")
        finished = counter("vllm:request_success", "Finished requests, by reason.", "finished_reason")
        self._prompt_tokens = prompt.labels(model_name)
        self._generation_tokens = generated.labels(model_name)
        self._finished = {reason: finished.labels(model_name, reason) for reason in FINISHED_REASONS}
        self._time_to_first_token = histogram(
            "vllm:time_to_first_token_seconds", "Admission to the first token.", _FIRST_TOKEN_BUCKETS_S
        )
        self._inter_token_latency = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of one request (ITL).", _TOKEN_BUCKETS_S
        )
        self._time_per_output_token = histogram(
            "vllm:time_per_output_token_seconds", "Mean per request after its first token (TPOT).", _TOKEN_BUCKETS_S
        )
        self._e2e_latency = histogram(
            "vllm:e2e_request_latency_seconds", "Admission to the last token.", _REQUEST_BUCKETS_S
        )
        self.registry.register(_EngineCollector(model_name, stats))

    def observe_output(self, output: RequestOutput, submitted_at: float, now: float) -> None:
        times = self._times.get(output.request_id)
        num_tokens = len(output.token_ids)
        if times is None:
            self._prompt_tokens.inc(output.num_prompt_tokens)
            self._times[output.request_id] = times = _Times(now, now)
            if num_tokens:
                self._time_to_first_token.observe(now - submitted_at)
        elif num_tokens:
            self._inter_token_latency.observe(now - times.last_token_at)
            times.last_token_at = now
        self._generation_tokens.inc(num_tokens)
        if output.finish_reason is not None:
            self._finished[output.finish_reason].inc()
            self._e2e_latency.observe(now - submitted_at)
            if output.num_output_tokens > 1:
                decode_s = times.last_token_at - times.first_token_at
                self._time_per_output_token.observe(decode_s / (output.num_output_tokens - 1))
            del self._times[output.request_id]

    def observe_abort(self, request_id: str) -> None:
        self._times.pop(request_id, None)
        self._finished["abort"].inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Reads the engine's state when it is asked for it."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        gauges = {
            "vllm:num_requests_running": ("Requests that prefill or decode.", stats.num_running),
            "vllm:num_requests_waiting": ("Requests that wait for a slot or for blocks.", stats.num_waiting),
            "vllm:kv_cache_usage_perc": ("Used part of the KV pool, 0 to 1.", stats.kv_cache_usage),
            "ttkern:snapshots": ("States that can be resumed from.", stats.num_snapshots),
            "ttkern:idle_blocks": ("KV blocks kept for later requests.", stats.num_idle_blocks),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge
        reuse = stats.reuse
        counters = {
            "vllm:num_preemptions": ("Requests preempted.", stats.num_preemptions),
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", reuse.queries),
            "vllm:prefix_cache_hits": ("Prompt tokens whose prefill was skipped.", reuse.hits),
            "ttkern:prefix_cache_kv_hits": ("Prompt tokens whose KV blocks were known.", reuse.kv_hits),
            "ttkern:prefix_cache_state_hits": ("Prompt tokens up to the newest state inside those.", reuse.state_hits),
            "ttkern:prefix_cache_inexact": (
                "Requests resumed from what a cold prefill makes differently.",
                reuse.inexact,
            ),
            "ttkern:snapshots_corrupt": ("Snapshots whose bytes had changed: misses.", reuse.corrupt),
            "ttkern:snapshots_evicted": ("Snapshots that made room for others.", stats.num_evicted_snapshots),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=("model_name",))
            counter.add_metric((self._model_name,), value)
            yield counter
        short = CounterMetricFamily(
            "ttkern:prefix_cache_short", "Requests by why no more was skipped.", labels=("model_name", "reason")
        )
        for reason, count in reuse.short.items():
            short.add_metric((self._model_name, reason), count)
        yield short
