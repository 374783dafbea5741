"""One admitted request on its way: its tokens, its blocks, its slot, its text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttkern.engine.detokenizer import Decodes, Detokenizer, StopStrings
from ttkern.engine.request import FinishReason, Request
from ttkern.engine.runner_protocol import PrefillStep, Sampled, SampleSpec

if TYPE_CHECKING:
    from ttkern.engine.prefix_cache import Node
    from ttkern.engine.snapshot_store import Snapshot


class Sequence:
    """State of one request. token_ids and block_table are the only copies; they grow in place.

        token_ids    [ prompt | output          ]
        in the cache [ ............... ]          all but the newest token, once it runs
        block_table  [ b0 | b1 | .. | bn ]        blocks of block_size positions, in order
        nodes        [ n0 | n1 ]                  the first of them that the prefix cache knows

    anchors     nodes in place of which it reads its own, kept because its later ones hang below them
    words       token_ids again, as the cache looks them up
    restoring   the snapshot that its first prefill step begins from
    exact       what it computes is what a cold prefill would, bit for bit
    verified    the bytes of the snapshot it began from are known to be good; nothing is published before
    unpublished snapshots that were made before that
    looked_up   it has been admitted before, and counted
    save_at     how many ways on are known from each chunk border where a state is to be kept

    Preempted, it loses its blocks and its slot and keeps its tokens and text; prompt and output are then prefilled.
    """

    def __init__(self, request: Request, *, seed: int, token_limit: int, eos: Ids[int], tokenizer: Decodes) -> None:
        params = request.params
        self.request_id = request.request_id
        self.params = params
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0
        self.token_limit = token_limit
        self.seed = seed
        self.slot: int | None = None
        self.words = array("I", self.token_ids)
        self.block_table: list[int] = []
        self.nodes: list[Node] = []
        self.anchors: list[Node] = []
        self.publishes = False
        self.restoring: Snapshot | None = None
        self.exact = self.verified = True
        self.unpublished: list[Snapshot] = []
        self.save_at: dict[int, int] = {}
        self.looked_up = False
        self.prefill_steps: tuple[PrefillStep, ...] = ()
        self.num_steps_done = 0
        self.prompt_logprobs: list[Sampled] | None = None if params.prompt_logprobs is None else []  # until told
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_strings = StopStrings(params.stop)
        self._eos = frozenset(() if params.ignore_eos else eos)
        self._stop_tokens = frozenset(params.stop_token_ids)
        self._ends = tuple(sorted(self._eos | self._stop_tokens))

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def sample_spec(self, ahead: int = 0) -> SampleSpec:
        """How its next token is picked, or the one `ahead` tokens after it."""
        params, step = self.params, self.num_output_tokens + ahead
        forbidden = self._ends if step < params.min_tokens else ()
        return SampleSpec(params.temperature, params.top_p, params.top_k, self.seed, step, params.logprobs, forbidden)

    def append(self, token: int) -> TextPart:
        """Take the next token: what may be sent of the text now, and whether the answer ends here."""
        self.token_ids.append(token)
        self.words.append(token)
        if token in self._stop_tokens:
            return TextPart(self._rest(), "stop", token)
        if token in self._eos:
            return TextPart(self._rest(), "stop", None)
        armed = self.num_output_tokens > self.params.min_tokens
        text, stop = self._stop_strings.add(self._detokenizer.add(token), armed)
        if stop is not None:
            return TextPart(text, "stop", stop)
        if self.num_output_tokens < self.token_limit:
            return TextPart(text, None, None)
        more, stop = self._stop_strings.add(self._detokenizer.flush(), armed)
        if stop is not None:
            return TextPart(text + more, "stop", stop)
        return TextPart(text + more + self._stop_strings.flush(), "length", None)

    def _rest(self) -> str:
        text, stop = self._stop_strings.add(self._detokenizer.flush())
        return text if stop is not None else text + self._stop_strings.flush()


@dataclass(frozen=True)
class TextPart:
    """Text that one token made certain, and how the answer ends, if it does."""

    text: str
    finish_reason: FinishReason | None
    stop_reason: str | int | None
