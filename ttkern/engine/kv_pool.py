"""Who owns which KV block. A block holds the keys and values of block_size tokens in every attention layer."""

from __future__ import annotations


class KVPool:
    """Blocks 0 .. num_blocks-1, each free or owned by one sequence. Taking and giving back one block is O(1)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used next
        self._used = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int = 1) -> list[int]:
        """Take `count` blocks. Their content is whatever the last owner left."""
        if count > len(self._free):
            raise RuntimeError(f"{count} KV blocks asked for, {len(self._free)} of {self.num_blocks} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._used[block] = 1
        return taken

    def free(self, blocks: list[int]) -> None:
        """Give blocks back."""
        for block in blocks:
            if not self._used[block]:
                raise RuntimeError(f"KV block {block} is given back, but it is free")
            self._used[block] = 0
            self._free.append(block)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every block is exactly one of free and used."""
        used = sum(self._used)
        twice = len(self._free) - len(set(self._free))
        if twice or len(self._free) + used != self.num_blocks:
            raise RuntimeError(
                f"KV pool of {self.num_blocks} blocks: {len(self._free)} free ({twice} of them twice) and {used} used"
            )
