"""Requests in, tokens out: admission, plans, schedule, KV blocks, sampling, text."""
