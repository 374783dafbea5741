"""What has been computed before and can be used again: a tree over full KV blocks, with snapshots at chunk borders.

    root --block--> node --block--> node --block--> node ...        one node per block of tokens, content exact
                                     |                              (a node is found by its parent and its tokens)
                                  snapshot                          the GDN states after all tokens up to here

A hit resumes at min(KV hit, newest snapshot inside it, n - 1), on the chunk grid: no state, no hit. Chunks are whole
blocks, so a block is shared whole or not at all.

exact: computed by full chunks from the grid, as a cold prefill does. What decode or a tail left there may differ in
the last bits; it is matched too, and gives way to exact blocks when these come.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Literal

from ttkern.engine.kv_pool import KVPool
from ttkern.engine.sequence import Sequence
from ttkern.engine.snapshot_store import Snapshot, SnapshotStore

Short = Literal["none", "no_prefix", "no_state", "state_behind"]


@dataclass(eq=False)
class Node:
    """A KV block that holds the keys and values of `key`'s tokens after all of its ancestors'.

    refs      sequences that read it; a node without any can be evicted once it has no children
    attached  False for one that only its reader knows, because another one is in its place
    """

    uid: int
    parent_uid: int
    key: bytes
    depth: int
    block: int
    exact: bool
    refs: int = 0
    children: int = 0
    attached: bool = True
    used_at: int = 0
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Match:
    """What a prompt finds.

    kv_hit     tokens whose KV blocks are here; state_hit: of the newest state inside that; resume_at: both, and one
               token at least left to compute
    short      why resume_at is less than could be hoped for: "no_prefix" (no block of it is known), "no_state" (blocks
               but no state among them), "state_behind" (the newest state lies a chunk or more before the blocks' end)
    """

    path: tuple[Node, ...]
    kv_hit: int
    state_hit: int
    resume_at: int
    snapshot: Snapshot | None
    short: Short

    @property
    def exact(self) -> bool:
        """Whether all that is resumed is what a cold prefill would have computed, bit for bit."""
        return self.snapshot is None or (self.snapshot.exact and all(node.exact for node in self.path))


NOTHING = Match((), 0, 0, 0, None, "no_prefix")


class PrefixCache:
    """The tree, over a pool whose blocks are free, owned by one sequence, or held here."""

    def __init__(self, pool: KVPool, chunk_tokens: int, store: SnapshotStore) -> None:
        self.pool, self.store = pool, store
        self.block_size, self.chunk_tokens = pool.block_size, chunk_tokens
        self._nodes: dict[int, Node] = {}
        self._children: dict[tuple[int, bytes], Node] = {}
        self._heap: list[tuple[bool, int, int]] = []  # (holds a snapshot, used_at, uid) of leaves that may go
        self._next_uid = 1
        self._clock = 0
        self._num_idle = 0  # attached nodes without a reader
        store.on_evict = self._forget_snapshot

    @property
    def num_available(self) -> int:
        """Blocks that are free or can be."""
        return self.pool.num_free + self._num_idle

    @property
    def num_idle(self) -> int:
        """Blocks kept for later, read by nobody now."""
        return self._num_idle

    # finding

    def match(self, words: array[int]) -> Match:
        """The longest known prefix of a prompt. Cost grows with the prompt, not with the cache."""
        size, path, uid = self.block_size, [], 0
        for start in range(0, len(words) // size * size, size):
            node = self._children.get((uid, words[start : start + size].tobytes()))
            if node is None:
                break
            path.append(node)
            uid = node.uid
        kv_hit = len(path) * size
        top = min(kv_hit, len(words) - 1) // self.chunk_tokens * self.chunk_tokens
        for tokens in range(top, 0, -self.chunk_tokens):
            snapshot = path[tokens // size - 1].snapshot
            if snapshot is not None:
                short: Short = "none" if tokens == top else "state_behind"
                return Match(tuple(path[: tokens // size]), kv_hit, tokens, tokens, snapshot, short)
        return Match((), kv_hit, 0, 0, None, "no_state" if kv_hit >= self.chunk_tokens else "no_prefix")

    def blocks_to_allocate(self, match: Match, num_tokens: int) -> int:
        """What is taken from `num_available` to run a sequence of so many tokens."""
        return self.pool.blocks_for(num_tokens) - sum(node.refs > 0 for node in match.path)

    def acquire(self, sequence: Sequence, match: Match) -> None:
        """The sequence reads the blocks up to where it resumes, and its state must stay until it is restored."""
        for node in match.path:
            self._read(node)
        sequence.nodes = list(match.path)
        sequence.block_table += [node.block for node in match.path]
        sequence.restoring = match.snapshot
        if match.snapshot is not None:
            match.snapshot.pins += 1
            self.store.hit(match.snapshot)

    def restored(self, sequence: Sequence) -> None:
        """Its state is where it works, or is not needed any more."""
        if sequence.restoring is not None:
            sequence.restoring.pins -= 1
            sequence.restoring = None

    # growing

    def publish(self, sequence: Sequence, num_tokens: int, *, exact: bool, may_swap: bool) -> None:
        """The first `num_tokens` tokens' KV is in the sequence's blocks: full ones can be found from now on.

        may_swap: a block that is known already takes the place of the sequence's own; not once decode has its table.
        """
        size = self.block_size
        while sequence.publishes and (len(sequence.nodes) + 1) * size <= num_tokens:
            index = len(sequence.nodes)
            parent = sequence.nodes[-1].uid if index else 0
            key = sequence.words[index * size : (index + 1) * size].tobytes()
            known, own = self._children.get((parent, key)), sequence.block_table[index]
            if known is None:
                node = Node(self._next_uid, parent, key, index + 1, own, exact, refs=1)
                self._next_uid += 1
                if index:
                    self._nodes[parent].children += 1
            elif exact and not known.exact and not known.refs:
                node = self._replace(known, own)
            elif exact and not known.exact:
                # Somebody reads it: ours stays our own, and what we compute next hangs below the other one.
                self._read(known)
                sequence.anchors.append(known)
                sequence.nodes.append(Node(known.uid, parent, key, known.depth, own, True, refs=1, attached=False))
                continue
            elif may_swap:
                self._read(known)
                self.pool.free([own])
                sequence.block_table[index] = known.block
                sequence.nodes.append(known)
                continue
            else:
                sequence.publishes = False
                return
            self._nodes[node.uid] = self._children[parent, key] = node
            sequence.nodes.append(node)

    def _replace(self, old: Node, block: int) -> Node:
        """An exact node for one that is not, and that nobody reads."""
        new = Node(old.uid, old.parent_uid, old.key, old.depth, block, True, 1, old.children, snapshot=old.snapshot)
        if new.snapshot is not None:
            new.snapshot.node = new
        self._num_idle -= 1
        self.pool.free([old.block])
        return new

    def add_snapshot(self, sequence: Sequence, snapshot: Snapshot) -> None:
        """Hang a state that has been made at the end of the sequence's newest full block."""
        index = snapshot.num_tokens // self.block_size - 1
        node = self._nodes.get(sequence.nodes[index].uid) if index < len(sequence.nodes) else None
        if node is None:
            self.store.cancel(snapshot.place)
            return
        if node.snapshot is not None:
            if node.snapshot.pins or node.snapshot.exact or not snapshot.exact:
                self.store.cancel(snapshot.place)
                return
            self.store.drop(node.snapshot)
        snapshot.node, node.snapshot = node, snapshot
        parent = self._above(sequence, snapshot.num_tokens)
        self.store.add(snapshot, parent)
        below = parent.children if parent is not None else self._roots()
        self.store.adopt(snapshot, [s for s in below if s is not snapshot and self._lies_below(s, node)])

    def snapshot_above(self, sequence: Sequence, num_tokens: int) -> Snapshot | None:
        """The newest state on the sequence's path before `num_tokens`."""
        return self._above(sequence, num_tokens)

    def _above(self, sequence: Sequence, num_tokens: int) -> Snapshot | None:
        for tokens in range(num_tokens - self.chunk_tokens, 0, -self.chunk_tokens):
            index = tokens // self.block_size - 1
            if index < len(sequence.nodes) and sequence.nodes[index].snapshot is not None:
                return sequence.nodes[index].snapshot
        return None

    def _roots(self) -> list[Snapshot]:
        return [s for s in self.store.kept() if s.parent is None]

    def _lies_below(self, snapshot: Snapshot, node: Node) -> bool:
        at = snapshot.node
        while at.depth > node.depth:
            at = self._nodes[at.parent_uid]
        return at.uid == node.uid

    # giving back

    def release(self, sequence: Sequence) -> None:
        """The sequence reads nothing any more; blocks that only it knows are free."""
        self.restored(sequence)
        self.pool.free(sequence.block_table[len(sequence.nodes) :])
        for node in (*reversed(sequence.nodes), *reversed(sequence.anchors)):  # leaves first
            node.refs -= 1
            if node.refs:
                continue
            if not node.attached:
                self.pool.free([node.block])
                continue
            self._num_idle += 1
            self._clock += 1
            node.used_at = self._clock
            self._offer(node)
        sequence.nodes, sequence.anchors = [], []
        sequence.block_table.clear()

    def allocate(self, count: int) -> list[int]:
        """Take blocks, evicting what nobody reads and what was used longest ago."""
        while self.pool.num_free < count and self._evict():
            pass
        return self.pool.allocate(count)

    def _evict(self) -> bool:
        while self._heap:
            holds, used_at, uid = heapq.heappop(self._heap)
            node = self._nodes.get(uid)
            if node is None or node.refs or node.children or node.used_at != used_at:
                continue
            if holds is not (node.snapshot is not None):
                self._offer(node)
                continue
            self._remove(node)
            return True
        return False

    def _remove(self, node: Node) -> None:
        if node.snapshot is not None:
            self.store.drop(node.snapshot)
        del self._nodes[node.uid], self._children[node.parent_uid, node.key]
        self._num_idle -= 1
        self.pool.free([node.block])
        parent = self._nodes.get(node.parent_uid)
        if parent is not None:
            parent.children -= 1
            self._offer(parent)

    def drop_corrupt(self, snapshot: Snapshot) -> None:
        """The bytes of a snapshot are not those that were written."""
        self._forget_snapshot(snapshot)
        self.store.drop(snapshot)

    def _forget_snapshot(self, snapshot: Snapshot) -> None:
        snapshot.node.snapshot = None
        self._offer(snapshot.node)

    def _read(self, node: Node) -> None:
        if not node.refs:
            self._num_idle -= 1
        node.refs += 1

    def _offer(self, node: Node) -> None:
        if not node.refs and not node.children and node.attached:
            heapq.heappush(self._heap, (node.snapshot is not None, node.used_at, node.uid))

    def check_integrity(self, sequences: Ids[Sequence]) -> None:
        """Raises RuntimeError unless blocks, readers and snapshots add up."""
        self.pool.check_integrity()
        self.store.check_integrity()
        readers: dict[int, int] = {}
        detached: dict[int, Node] = {}
        owned = 0
        for sequence in sequences:
            owned += len(sequence.block_table) - len(sequence.nodes)
            for node, block in zip(sequence.nodes, sequence.block_table, strict=False):
                if node.block != block:
                    raise RuntimeError(f"{sequence.request_id} reads block {block} where the cache has {node.block}")
                readers[id(node)] = readers.get(id(node), 0) + 1
                if not node.attached:
                    detached[id(node)] = node
            for node in sequence.anchors:
                readers[id(node)] = readers.get(id(node), 0) + 1
        held = owned + len(detached) + len(self._nodes)
        if held != self.pool.num_used:
            raise RuntimeError(f"sequences and cache hold {held} KV blocks, the pool counts {self.pool.num_used}")
        for node in [*self._nodes.values(), *detached.values()]:
            if node.refs != readers.get(id(node), 0):
                raise RuntimeError(f"node {node.uid} counts {node.refs} readers and has {readers.get(id(node), 0)}")
        idle = sum(not node.refs for node in self._nodes.values())
        held_up = [
            n.uid for n in self._nodes.values() if n.refs and n.parent_uid and not self._nodes[n.parent_uid].refs
        ]
        if held_up:
            raise RuntimeError(f"nodes {held_up} are read, and what they hang from is not")
        children: dict[int, int] = {}
        for node in self._nodes.values():
            children[node.parent_uid] = children.get(node.parent_uid, 0) + 1
        wrong = [node.uid for node in self._nodes.values() if node.children != children.get(node.uid, 0)]
        if idle != self._num_idle or wrong:
            raise RuntimeError(f"{self._num_idle} idle nodes are counted and {idle} there are; children of {wrong}")
        hung = sum(node.snapshot is not None for node in self._nodes.values())
        if hung != self.store.num_kept:
            raise RuntimeError(f"{hung} snapshots hang in the tree and {self.store.num_kept} are kept")
