"""Two processes with half the batch each give, on average, the loss and the gradient of the whole batch."""

import torch
from torch import distributed, multiprocessing

from comastre.losses.classification import focal_loss
from comastre.losses.distillation import class_distillation, position_distillation, proposal_weights, score_distillation
from comastre.losses.masks import average_num_masks
from comastre.losses.objectness import objectness_loss

BATCH = 4


def _whole_batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, 3, 5, generator=generator, dtype=torch.float64)
    old = torch.randn(BATCH, 3, 5, generator=generator, dtype=torch.float64)
    # One valid proposal in the first half and none in the second; one image of the second half takes no part.
    valid = torch.zeros(BATCH, 3, dtype=torch.bool)
    valid[0, 1] = True
    matched = torch.rand(2, BATCH, 3, generator=generator) > 0.4
    matched[-1, 3] = True
    return logits, old, valid, matched


def _terms(rows):
    logits, old, valid, matched = _whole_batch()
    logits, old, valid, matched = logits[rows].requires_grad_(), old[rows], valid[rows], matched[:, rows]
    unmatched = ~matched[-1]
    weights = proposal_weights(old[..., 0], unmatched, 2.0)
    terms = torch.stack(
        [
            focal_loss(logits, torch.zeros_like(valid, dtype=torch.long), valid, 2.0),
            class_distillation(logits, old, valid),
            objectness_loss(logits[..., :2].permute(2, 0, 1), matched, 0.1),
            score_distillation(logits[..., 0], old[..., 0], unmatched),
            position_distillation(logits, old, weights),
        ]
    )
    terms.sum().backward()
    return terms.detach(), logits.grad


def _process(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    half = BATCH // 2
    terms, gradient = _terms(slice(rank * half, (rank + 1) * half))
    counts = torch.stack([average_num_masks(5 * rank, "cpu"), average_num_masks(rank, "cpu")])
    torch.save((terms, gradient, counts), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_the_mean_over_two_processes_is_the_loss_of_the_whole_batch(tmp_path):
    terms, gradient = _terms(slice(0, BATCH))
    multiprocessing.spawn(_process, args=(str(tmp_path),), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    torch.testing.assert_close((results[0][0] + results[1][0]) / 2, terms)
    torch.testing.assert_close(torch.cat([results[0][1], results[1][1]]) / 2, gradient)
    # (0 + 5) / 2 masks; (0 + 1) / 2 is raised to 1 only after averaging.
    assert all(result[2].tolist() == [2.5, 1.0] for result in results)
