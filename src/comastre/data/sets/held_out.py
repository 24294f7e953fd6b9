"""A fixed share of images for validation, where a dataset has no validation split of its own."""

from __future__ import annotations

import hashlib


def is_held_out(name: str, share: float) -> bool:
    """Whether the image is for validation: its name alone decides, so new images never move old ones."""
    number = int.from_bytes(hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:8], "big")
    return number < share * 2**64
