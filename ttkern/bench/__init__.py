"""Microbenchmarks: variants judged, timed in interleaved pairs, compared, and recorded."""
