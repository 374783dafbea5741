"""What a person reads when the server is ready."""

from __future__ import annotations

import json
import shlex


def greeting(host: str, port: int, model_name: str) -> str:
    """The address, and a first chat request to paste into a shell or into Python."""
    # A wildcard address is where the server listens, not where a client connects.
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{reached}]' if ':' in reached else reached}:{port}/v1"
    body = json.dumps({"model": model_name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    return f"""\
ready: {model_name} on {url}

  curl {url}/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}

  from openai import OpenAI
  client = OpenAI(base_url={url!r}, api_key="none")
  answer = client.chat.completions.create(
      model={model_name!r}, messages=[{{"role": "user", "content": "Hello"}}], max_tokens=32)
  print(answer.choices[0].message.content)
"""
