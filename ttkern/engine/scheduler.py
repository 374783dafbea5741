"""Who runs next: first come, first served, over the KV blocks and the decode rows there are.

    waiting  --admit-->  prefilling (one)  --last step-->  running  -->  finished
       ^                     |                               |
       +------- preempt -----+-------------------------------+

Order of arrival holds throughout: running before prefilling before waiting. The victim of a preemption is always the
youngest, and goes back to the head of the queue, so that the oldest never loses anything and always gets on. One
prompt prefills at a time, so of requests that share a head the first computes it and the others find it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ttkern.engine.prefix_cache import PrefixCache
from ttkern.engine.reuse import Reuse
from ttkern.engine.runner_protocol import PrefillStep
from ttkern.engine.sequence import Sequence


class Scheduler:
    """Owns the blocks and the slots on behalf of the sequences.

    plan_steps: (prompt_tokens, resume_at) -> steps. release: told of every slot that a sequence gives up.
    """

    def __init__(
        self,
        cache: PrefixCache,
        reuse: Reuse,
        max_num_seqs: int,
        plan_steps: Callable[[int, int], tuple[PrefillStep, ...]],
        release: Callable[[int], None],
    ) -> None:
        self.cache, self.reuse = cache, reuse
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._max_num_seqs = max_num_seqs
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._plan_steps = plan_steps
        self._release = release

    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.prefilling)

    def add(self, sequence: Sequence) -> None:
        """Queue it. The caller has checked that it can run to its end with the pool to itself."""
        self.waiting.append(sequence)
        if self.prefilling is not None:
            self.reuse.expect(self.prefilling, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out, wherever it is; its blocks and its slot are free on return."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        elif sequence is self.prefilling:
            self.prefilling = None
            self._give_back(sequence)
        else:
            self.running.remove(sequence)
            self._give_back(sequence)

    def schedule_decode(self) -> list[Sequence]:
        """All running sequences, each with a block for its newest token; the youngest make room where there is none."""
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if len(sequence.token_ids) > len(sequence.block_table) * self.cache.block_size:
                if not self.cache.num_available:
                    self._preempt(self.prefilling or self.running[-1])
                    continue
                sequence.block_table += self.cache.allocate(1)
            index += 1
        return self.running

    def reserve_next_blocks(self) -> bool:
        """Blocks for one token more of all running sequences than they have, without taking any from anybody."""
        size = self.cache.block_size
        short = [s for s in self.running if len(s.token_ids) + 1 > len(s.block_table) * size]
        if len(short) > self.cache.num_available:
            return False
        for sequence in short:
            sequence.block_table += self.cache.allocate(1)
        return True

    def schedule_prefill(self) -> Sequence | None:
        """The sequence whose next prefill step is due; admits the head of the queue if none is under way."""
        if self.prefilling is None and self.waiting and self._free_slots:
            sequence = self.waiting[0]
            match = self.reuse.match(sequence)
            blocks = self.cache.blocks_to_allocate(match, len(sequence.token_ids))
            # What runs grows by at least a block each; without that reserve a newcomer would be preempted at once.
            reserve = len(self.running) + 1 if self.running else 0
            if blocks + reserve <= self.cache.num_available:
                self.waiting.popleft()
                sequence.slot = self._free_slots.pop()
                self.reuse.begin(sequence, match, self.waiting)
                missing = self.cache.pool.blocks_for(len(sequence.token_ids)) - len(match.path)
                sequence.block_table += self.cache.allocate(missing)
                sequence.prefill_steps = self._plan_steps(len(sequence.token_ids), match.resume_at)
                sequence.num_steps_done = 0
                if sequence.prompt_logprobs:
                    sequence.prompt_logprobs.clear()  # of a prefill that was cut short
                self.prefilling = sequence
        return self.prefilling

    def start_running(self, sequence: Sequence) -> None:
        """Its prefill is complete."""
        self.prefilling = None
        self.running.append(sequence)

    def begin_again(self, sequence: Sequence) -> None:
        """Back to the head of the queue, without its blocks and its slot."""
        self.remove(sequence)
        self.waiting.appendleft(sequence)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every block and slot has exactly one owner or is free."""
        owners = [*self.running, *([self.prefilling] if self.prefilling else [])]
        self.cache.check_integrity(owners)
        slots = [sequence.slot for sequence in owners]
        own = [block for sequence in owners for block in sequence.block_table[len(sequence.nodes) :]]
        if len(set(own)) != len(own):
            raise RuntimeError(f"KV blocks {sorted(own)}: one belongs to two sequences")
        if sorted([*slots, *self._free_slots], key=str) != sorted(range(self._max_num_seqs), key=str):
            raise RuntimeError(f"slots {slots} are used and {self._free_slots} free, of {self._max_num_seqs}")
        if any(sequence.block_table or sequence.slot is not None for sequence in self.waiting):
            raise RuntimeError("a waiting sequence holds a slot or KV blocks")

    def _preempt(self, sequence: Sequence) -> None:
        self.begin_again(sequence)
        self.num_preemptions += 1

    def _give_back(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        self.reuse.end(sequence)
        sequence.slot = None
        self._free_slots.append(slot)
        self._release(slot)
