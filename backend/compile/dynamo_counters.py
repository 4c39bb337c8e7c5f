"""Reads torch's running counts of cache hits, cache misses and recompile limits, for the whole process."""

from __future__ import annotations

from torch._dynamo import utils as dynamo_utils

# How torch's versions name what they count at a limit.
_LIMIT_WORDS = ("recompile_limit", "recompile limit", "cache_size_limit")


def counts() -> dict[str, int]:
    """Look-ups in the cache that hit and that missed, and limit hits.

    A graph found in AOTAutograd's cache counts once, with its backward; only where that cache does not apply are
    inductor's own look-ups (one for forward, one for backward) counted.
    """
    joint, single = dynamo_utils.counters["aot_autograd"], dynamo_utils.counters["inductor"]
    hit, miss = joint["autograd_cache_hit"], joint["autograd_cache_miss"]
    if not hit + miss:
        hit, miss = single["fxgraph_cache_hit"], single["fxgraph_cache_miss"]
    return {"hit": hit, "miss": miss, "limit": limit_hits()}


def limit_hits() -> int:
    """How often torch met a shape for which a code object may have no more graphs; it counts each code object once."""
    # A copy: another thread may be compiling, and count.
    counts = tuple(dynamo_utils.counters["unimplemented"].items())
    return sum(count for what, count in counts if any(word in what.lower() for word in _LIMIT_WORDS))
