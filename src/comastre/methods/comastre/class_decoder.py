"""Stage 2: the class decoder g with its task queries and task classifiers (Algorithm A1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comastre.methods.comastre.config import ClassDecoderConfig
from comastre.nets.attention import FeedForward, MultiHeadAttention, initialise_xavier, open_pixels
from comastre.nets.outputs import PixelEmbeddings
from comastre.nets.positions import sine_positions

_LEVEL_OF_STRIDE = {32: 0, 16: 1, 8: 2}


@dataclass(frozen=True)
class Recognition:
    """What stage 2 says of M proposals per image."""

    class_logits: Tensor
    """z: (B, M, C), classes of the tasks asked for, in learning order."""
    newest_embeddings: Tensor
    """k of the newest task: (B, M, d), which the auxiliary head reads."""


class ClassDecoderBlock(nn.Module):
    """One Transformer decoder block on pairs (e_i, theta_j): self-attention, cross-attention, feed-forward; post-norm.

    A pair's self-attention sees only its own two tokens, and only theta_j's output is kept. So keys and values of all
    e_i are projected once, the two-key softmax is written out, and e_i's own output is never computed.
    """

    def __init__(self, dim: int, config: ClassDecoderConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(dim, config.heads)
        self.self_norm = nn.LayerNorm(dim)
        self.cross_attention = MultiHeadAttention(dim, config.heads)
        self.cross_norm = nn.LayerNorm(dim)
        self.feedforward = FeedForward(dim, config.feedforward)

    def pair_attention(self, task_query: Tensor, proposals: tuple[Tensor, Tensor]) -> Tensor:
        """Self-attention output at theta_j's place for every pair with proposals' (key, value) (B, heads, M, d/h)."""
        attention = self.self_attention
        token = task_query[None, None]  # (1, 1, d)
        query = attention.split_heads(attention.query_projection(token))  # (1, heads, 1, d/h)
        own_key, own_value = attention.project_memory(token, token)
        keys, values = proposals
        scale = query.shape[-1] ** -0.5
        to_proposal = (query * keys).sum(-1, keepdim=True)  # (B, heads, M, 1)
        to_itself = (query * own_key).sum(-1, keepdim=True)
        share = torch.sigmoid((to_proposal - to_itself) * scale)  # the softmax over two keys
        mixed = own_value + share * (values - own_value)  # (B, heads, M, d/h)
        return attention.output_projection(mixed.transpose(1, 2).flatten(2))  # (B, M, d)

    def forward(
        self,
        task_query: Tensor,
        proposals: tuple[Tensor, Tensor],
        memory: tuple[Tensor, Tensor],
        open_mask: Tensor | None,
    ) -> Tensor:
        """Task embeddings k_.j (B, M, d) of one task query theta_j (d,)."""
        tokens = self.self_norm(task_query + self.pair_attention(task_query, proposals))
        tokens = self.cross_norm(tokens + self.cross_attention.attend(tokens, memory, open_mask))
        return self.feedforward(tokens)


class ClassDecoder(nn.Module):
    """Task queries theta_1..theta_t, the shared block g, and classifiers phi_1..phi_t."""

    def __init__(self, dim: int, config: ClassDecoderConfig, tasks: Sequence[int]) -> None:
        super().__init__()
        self.config = config
        self.dim = dim
        self.level = _LEVEL_OF_STRIDE[config.level]
        self.block = ClassDecoderBlock(dim, config)
        self.task_queries = nn.ParameterList()
        self.classifiers = nn.ModuleList()
        initialise_xavier(self.block)
        for num_classes in tasks:
            self.add_task(num_classes)

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task."""
        return tuple(classifier.out_features for classifier in self.classifiers)  # type: ignore[misc]

    @property
    def num_classes(self) -> int:
        return sum(self.tasks)

    def add_task(self, num_classes: int) -> None:
        """A fresh query (one for all tasks where task queries are off) and a fresh classifier."""
        device = self.block.self_norm.weight.device
        if self.config.task_queries or not self.task_queries:
            query = torch.empty(self.dim, device=device)
            self.task_queries.append(nn.Parameter(nn.init.trunc_normal_(query, std=0.02)))
        self.classifiers.append(nn.Linear(self.dim, num_classes, device=device))

    def forward(
        self,
        pixels: PixelEmbeddings,
        embeddings: Tensor,
        mask_logits: Tensor | None = None,
        first_task: int = 0,
    ) -> Recognition:
        """Recognise proposals e (B, M, d); `mask_logits` (B, M, h, w) are read with masked attention only.

        Tasks before `first_task` are left out.
        """
        classifiers = list(self.classifiers)[first_task:]
        queries = list(self.task_queries)[first_task:] if self.config.task_queries else list(self.task_queries)
        return self.decode(pixels, embeddings, mask_logits, queries, classifiers)

    def decode(
        self,
        pixels: PixelEmbeddings,
        embeddings: Tensor,
        mask_logits: Tensor | None,
        queries: Sequence[Tensor],
        classifiers: Sequence[nn.Module],
    ) -> Recognition:
        """What task queries, each with its classifier (or one for all of them), say of proposals.

        One pass per task, all proposals of all images at once: the shapes of a task's pass do not depend on how many
        tasks there are, so growth cannot change an earlier logit by rounding.
        """
        level, padding = pixels.levels[self.level], pixels.padding[self.level]
        size = (level.shape[-2], level.shape[-1])
        open_mask = None
        if self.config.masked_attention:
            if mask_logits is None:
                raise ValueError("class_decoder.masked_attention needs the proposals' mask logits")
            open_mask = open_pixels(mask_logits, size, padding)  # (B, 1, M, K)
        elif padding is not None:
            open_mask = ~padding.flatten(1)[:, None, None]  # (B, 1, 1, K)

        values = level.flatten(2).transpose(1, 2)  # (B, K, d)
        keys = values + sine_positions(size, self.dim, values.device, padding).to(values.dtype)
        memory = self.block.cross_attention.project_memory(keys, values)
        proposals = self.block.self_attention.project_memory(embeddings, embeddings)

        task_embeddings = [self.block(query, proposals, memory, open_mask) for query in queries]
        if not self.config.task_queries:
            task_embeddings = task_embeddings * len(classifiers)
        logits = [classify(k) for classify, k in zip(classifiers, task_embeddings, strict=True)]
        return Recognition(torch.cat(logits, dim=-1), task_embeddings[-1])
