"""Which states are kept, and which makes room: bookkeeping only; the bytes lie in the runner's places.

    places   0 .. D-1 on the device | D .. D+H-1 in host memory
    a new snapshot takes a device place where there are any; what it displaces there is spilled to the host

Snapshots of one prompt lie on a path of the prefix tree, so they form a tree themselves. What one saves is the work
from its nearest kept ancestor to it; per byte, and they all have the same bytes. Eviction is GreedyDual
(Young, "On-line file caching", 1998) over that saving, as Marconi (arXiv 2411.19379) does it for hybrid models:
the least valuable goes, and its value becomes the floor that newer and newly used ones stand on, so that no old
one stays for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SUPERSEDED = 0.1  # of its saving: a deeper snapshot on the only path through it will be hit instead


@dataclass(eq=False)
class Snapshot:
    """A state after `num_tokens` tokens. exact: every step that led to it is one that a cold prefill takes.

    node      where it hangs in the prefix tree
    branches  known ways on from it: 2 for one kept because prompts fork there
    """

    num_tokens: int
    place: int
    exact: bool
    node: Any = None
    branches: int = 1
    floor: float = 0.0
    used_at: int = 0
    pins: int = 0
    parent: Snapshot | None = None
    children: list[Snapshot] = field(default_factory=list)


class SnapshotStore:
    """Places for `num_device + num_host` snapshots.

    cost    work of prefilling the first n tokens (any unit)
    move    copies a snapshot from one place to another, now
    policy  "saving", or "lru": what the saving is compared with
    """

    def __init__(
        self,
        num_device: int,
        num_host: int,
        cost: Callable[[int], float],
        move: Callable[[int, int], None],
        *,
        policy: str = "saving",
    ) -> None:
        self.num_device, self.num_places = num_device, num_device + num_host
        self._free_device = list(range(num_device - 1, -1, -1))
        self._free_host = list(range(self.num_places - 1, num_device - 1, -1))
        self._cost, self._move, self._policy = cost, move, policy
        self._kept: dict[int, Snapshot] = {}  # place -> snapshot
        self._reserved: set[int] = set()
        self._floor = 0.0
        self._clock = 0
        self.num_evicted = 0
        self.on_evict: Callable[[Snapshot], None] = lambda snapshot: None

    @property
    def num_kept(self) -> int:
        """Snapshots that can be hit."""
        return len(self._kept)

    @property
    def num_free(self) -> int:
        """Places without a snapshot."""
        return len(self._free_device) + len(self._free_host)

    def kept(self) -> list[Snapshot]:
        """All that can be hit."""
        return list(self._kept.values())

    def reserve(self, num_tokens: int, parent: Snapshot | None, *, branches: int, spare: bool) -> int | None:
        """A place for a state that is about to be made; None where nothing kept is worth less.

        spare: only if a place is free. The place is then published with `add`, or given back with `cancel`.
        """
        if not self.num_free and (spare or not self._make_room(self._worth(num_tokens, parent, branches))):
            return None
        place = self._take_place()
        if place is not None:
            self._reserved.add(place)
        return place

    def _take_place(self) -> int | None:
        """A free place, on the device first: what is worth least there is spilled to make one."""
        if self._free_device:
            return self._free_device.pop()
        host = self._free_host.pop()
        movable = [s for place, s in self._kept.items() if place < self.num_device and not s.pins]
        if not movable:
            return host
        victim = min(movable, key=self._rank)
        place = victim.place
        self._move(place, host)
        del self._kept[place]
        self._kept[host], victim.place = victim, host
        return place

    def add(self, snapshot: Snapshot, parent: Snapshot | None) -> None:
        """The state lies in its place: from now on it can be hit."""
        self._reserved.remove(snapshot.place)
        self._kept[snapshot.place] = snapshot
        self._touch(snapshot)
        snapshot.parent = parent
        if parent is not None:
            parent.children.append(snapshot)

    def adopt(self, snapshot: Snapshot, children: list[Snapshot]) -> None:
        """`children` lie below a snapshot that came later than they."""
        for child in children:
            if child.parent is not None:
                child.parent.children.remove(child)
            child.parent = snapshot
            snapshot.children.append(child)

    def cancel(self, place: int) -> None:
        """Nothing came of a reserved place."""
        self._reserved.remove(place)
        self._release(place)

    def hit(self, snapshot: Snapshot) -> None:
        """A request resumes here. Only the snapshot used is refreshed."""
        if snapshot.children:  # it did not go on to one of these
            snapshot.branches = max(snapshot.branches, len(snapshot.children) + 1)
        self._touch(snapshot)

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot: its tokens' KV is gone, or its bytes are not what they were."""
        del self._kept[snapshot.place]
        parent = snapshot.parent
        if parent is not None:
            parent.children.remove(snapshot)
        for child in snapshot.children:
            child.parent = parent
            if parent is not None:
                parent.children.append(child)
        snapshot.children.clear()
        snapshot.parent = None
        self._release(snapshot.place)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every place is exactly one of free, reserved and kept."""
        free = [*self._free_device, *self._free_host]
        places = sorted([*free, *self._reserved, *self._kept])
        if places != list(range(self.num_places)):
            raise RuntimeError(
                f"of {self.num_places} snapshot places {sorted(free)} are free, {sorted(self._reserved)} reserved and"
                f" {sorted(self._kept)} kept"
            )
        for place, snapshot in self._kept.items():
            if snapshot.place != place or (snapshot.parent and snapshot not in snapshot.parent.children):
                raise RuntimeError(f"snapshot at {snapshot.num_tokens} tokens is not where its place says")

    def _release(self, place: int) -> None:
        (self._free_device if place < self.num_device else self._free_host).append(place)

    def _make_room(self, worth: float) -> bool:
        candidates = [snapshot for snapshot in self._kept.values() if not snapshot.pins]
        if not candidates:
            return False
        victim = min(candidates, key=self._rank)
        if self._policy == "saving":
            value = self._rank(victim)[0]
            if value > self._floor + worth:
                return False
            self._floor = max(self._floor, value)
        self.num_evicted += 1
        self.on_evict(victim)
        self.drop(victim)
        return True

    def _touch(self, snapshot: Snapshot) -> None:
        self._clock += 1
        snapshot.used_at, snapshot.floor = self._clock, self._floor

    def _rank(self, snapshot: Snapshot) -> tuple[float, int]:
        if self._policy == "lru":
            return (0.0, snapshot.used_at)
        worth = self._worth(snapshot.num_tokens, snapshot.parent, snapshot.branches, len(snapshot.children))
        return (snapshot.floor + worth, snapshot.used_at)

    def _worth(self, num_tokens: int, parent: Snapshot | None, branches: int, children: int = 0) -> float:
        saving = self._cost(num_tokens) - (self._cost(parent.num_tokens) if parent else 0.0)
        ways = max(branches, children)
        if ways == 1 and children == 1:
            return SUPERSEDED * saving
        return ways * saving
