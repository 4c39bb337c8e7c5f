"""Makes random generators out of a seed and a purpose, independent of the device and of what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *where: int | str) -> torch.Generator:
    """A CPU generator that is a function of `seed` and `where` (for example ``"noise", step, row``) alone."""
    words = "/".join(str(part) for part in (seed, *where))
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)
