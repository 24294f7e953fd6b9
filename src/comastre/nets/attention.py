"""Multi-head attention and the small blocks around it, as every decoder here uses them."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention with one projection each for queries, keys, values and output."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.output_projection = nn.Linear(dim, dim)

    def split_heads(self, tokens: Tensor) -> Tensor:
        """(B, T, d) -> (B, heads, T, d / heads)."""
        batch, length, dim = tokens.shape
        return tokens.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)

    def project_memory(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory, ready to be attended to by any number of queries."""
        return self.split_heads(self.key_projection(keys)), self.split_heads(self.value_projection(values))

    def attend(self, queries: Tensor, memory: tuple[Tensor, Tensor], open_mask: Tensor | None = None) -> Tensor:
        """(B, Q, d) attending to a projected memory; `open_mask` (B, 1, Q, K) is true where a query may look."""
        attended = F.scaled_dot_product_attention(
            self.split_heads(self.query_projection(queries)), *memory, attn_mask=open_mask
        )  # (B, heads, Q, d / heads)
        return self.output_projection(attended.transpose(1, 2).flatten(2))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, open_mask: Tensor | None = None) -> Tensor:
        return self.attend(queries, self.project_memory(keys, values), open_mask)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU, residual and post-norm."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens + self.contract(F.relu(self.expand(tokens), inplace=True)))


def initialise_xavier(module: nn.Module) -> None:
    """Xavier-uniform matrices and zero attention biases, as Mask2Former's layers start."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            for projection in (part.query_projection, part.key_projection, part.value_projection):
                # There the three are rows of one (3d, d) matrix: its bound sqrt(6 / 4d) is less than that of (d, d).
                nn.init.xavier_uniform_(projection.weight, gain=math.sqrt(1 / 2))
                nn.init.zeros_(projection.bias)
            nn.init.zeros_(part.output_projection.bias)


def open_pixels(
    mask_logits: Tensor, size: tuple[int, int], padding: Tensor | None, softmax_masks: bool = False
) -> Tensor:
    """(B, 1, Q, K): pixels of a level that each query may look at, from its mask logits (B, Q, h, w).

    A query looks where its mask probability, a sigmoid or a softmax over the queries, is at least one half; a row that
    would see nothing sees every real pixel.
    """
    resized = mask_logits.detach()
    if resized.shape[-2:] != size:
        resized = F.interpolate(resized, size=size, mode="bilinear", align_corners=False)
    inside = resized.softmax(1) >= 0.5 if softmax_masks else resized >= 0  # sigmoid(x) >= 0.5 is x >= 0
    open_mask = inside.flatten(2)[:, None]  # (B, 1, Q, K)
    if padding is None:
        return open_mask | ~open_mask.any(dim=-1, keepdim=True)
    real = ~padding.flatten(1)[:, None, None]  # (B, 1, 1, K)
    open_mask = open_mask & real
    return open_mask | (real & ~open_mask.any(dim=-1, keepdim=True))
