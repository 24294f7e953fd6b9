"""Two processes with half of the batch each learn what one process learns from the whole."""

import os

import pytest
import small_step as small
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from comastre.methods.comastre.config import DistillationConfig
from comastre.methods.comastre.terms import total_loss
from comastre.training.step import TrainStep, terms_of

NONE = {"distillation": DistillationConfig.none().model_dump()}
UNLABELLED = {"classification": {"unlabelled_negatives": True, "across_tasks": True}}
CASES = {
    "all distillation": ({}, (2, 1, 0, 3)),
    # The first task's query and classifier get no gradient anywhere.
    "unused heads": (NONE, (2, 1, 1, 3)),
    "a process without masks": ({}, (2, 1, 0, 0)),
    "a process with nothing to recognise": ({"distillation": {"alpha": 1.0}}, (0, 0, 1, 2)),
    "no masks at all": ({"distillation": {"alpha": 1.0}}, (0, 0, 0, 0)),
    "unlabelled negatives": (UNLABELLED, (2, 1, 0, 3)),
    "unlabelled negatives, a process without masks": (UNLABELLED, (2, 1, 0, 0)),
}


def learn(rows, changes, counts, wrap=None):
    """Terms and gradients of `rows` of the global batch."""
    model, old = small.later_learner()
    images, targets = small.new_batch(counts)
    config = small.loss_config(**changes)

    class Whole:
        """A method that has its batch already; its auxiliary head is a part of the model."""

        def training_modules(self):
            return None

        def losses(self, learner, batch, points):
            assert learner is model
            return small.terms_of(model, old, images, targets, config, rows)

    step = TrainStep(Whole(), model)
    module = step if wrap is None else wrap(step)  # which must live until the backward pass
    terms = terms_of(module, None, None)
    total_loss(terms, config.weights).backward()
    terms = {name: value.detach() for name, value in terms.items()}
    return terms, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def process(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for name, (changes, counts) in CASES.items():
        rows = slice(2 * rank, 2 * rank + 2)
        results[name] = learn(rows, changes, counts, lambda m: DistributedDataParallel(m, find_unused_parameters=True))
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.spawn(process, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_as_one(results, case):
    changes, counts = CASES[case]
    terms, gradients = learn(slice(None), changes, counts)
    halves = [result[case] for result in results]
    means = {name: (halves[0][0][name] + halves[1][0][name]) / 2 for name in terms}
    torch.testing.assert_close(means, terms, rtol=1e-4, atol=1e-7)
    for _, found in halves:
        for name, gradient in gradients.items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * scale + 1e-9, msg=name)


def test_unused_heads_stay_without_gradient(results):
    _, gradients = results[0]["unused heads"]
    assert "class_decoder.classifiers.1.weight" in gradients
    assert "class_decoder.classifiers.0.weight" not in gradients
