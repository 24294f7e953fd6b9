"""One small training step that the tests of the objective share: models, a batch, and its points."""

import copy

import numpy as np
import torch

from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.methods.comastre.config import LossConfig, ModelConfig
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import auxiliary_head, build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import term_weights as term_weights
from comastre.section import merge

SIZE = 64
QUERIES = 6
TASKS = (2, 3)


def fill(module, random, scale=1.0):
    """Weights from numpy's frozen generator: no library's initialisation has a say in the golden values."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            draws = torch.from_numpy(random.standard_normal(tuple(parameter.shape))).to(parameter.dtype)
            if parameter.dim() > 1:
                parameter.copy_(draws * (2.0 / parameter[0].numel()) ** 0.5 * scale)
            else:
                parameter.copy_((1.0 if name.endswith("weight") else 0.0) + 0.1 * draws * scale)


def first_learner(dtype=torch.float64, **class_decoder):
    """A model of the first task."""
    config = ModelConfig(
        size="tiny",
        backbone={"freeze_batch_norm": "always"},
        pixel_decoder={"dim": 32, "feedforward": 32},
        mask_decoder={"num_queries": QUERIES, "layers": 2, "feedforward": 32},
        class_decoder={"feedforward": 32, **class_decoder},
    )
    model = build_segmenter(config, TASKS[:1]).to(dtype)
    fill(model, np.random.RandomState(0))
    # Objectness that spreads over queries, so that some are sure and some are not.
    with torch.no_grad():
        model.mask_decoder.objectness_head.weight.mul_(2)
    return model.train()


def grow(model):
    """(the model grown by the second task, the frozen copy that it starts from)."""
    old = copy.deepcopy(model).eval().requires_grad_(False)
    grown = copy.deepcopy(model)
    grown.add_task(TASKS[1])
    # A part of the model here, so that its weights are filled and its gradients seen with all others.
    grown.auxiliary_head = auxiliary_head(grown)
    grown.to(next(model.parameters()).dtype)
    return grown.train(), old


def later_learner(dtype=torch.float64, **class_decoder):
    """(a model some way into the second task, the old one)."""
    model, old = grow(first_learner(dtype, **class_decoder))
    random = np.random.RandomState(1)
    fill(model.class_decoder.classifiers[-1], random)
    fill(model.auxiliary_head, random)
    with torch.no_grad():
        model.class_decoder.task_queries[-1].zero_()
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.from_numpy(random.standard_normal(tuple(parameter.shape))))
    return model, old


def batch(counts=(2, 1, 0, 3), first_class=0, num_classes=2, dtype=torch.float64):
    """Noise images with bright rectangles, and their targets."""
    random = np.random.RandomState(2)
    images, masks, labels = [], [], []
    for count in counts:
        image = random.uniform(0, 0.4, (3, SIZE, SIZE))
        image_masks = np.zeros((count, SIZE, SIZE), dtype=bool)
        for mask in image_masks:
            top, left, height, width = random.randint(0, 40, 2).tolist() + random.randint(12, 24, 2).tolist()
            mask[top : top + height, left : left + width] = True
            image += mask * random.uniform(0, 0.5, (3, 1, 1))
        images.append(torch.from_numpy(image.clip(0, 1)))
        masks.append(torch.from_numpy(image_masks))
        labels.append(torch.from_numpy(random.randint(first_class, first_class + num_classes, count)).long())
    return torch.stack(images).to(dtype), Targets.stack(masks, labels, [f"image-{i}" for i in range(len(counts))])


def new_batch(counts=(2, 1, 0, 3), dtype=torch.float64):
    """A batch whose labels are of the second task."""
    return batch(counts, TASKS[0], TASKS[1], dtype)


def loss_config(**changes):
    """The paper's losses, with points for a small image and a threshold that some proposals pass."""
    small = {"matching": {"points": 128}, "masks": {"points": 64}, "distillation": {"alpha": 0.2}}
    return LossConfig.model_validate(merge(small, changes))


def terms_of(model, old, images, targets, config, rows=slice(None), padding=None, labelled_old=()):
    """The terms of the rows of a batch, with the points that the whole batch draws."""
    points = PointSource(7, 3, rows, len(images), images.device)
    chosen = Targets.stack(
        [targets.masks[i, : targets.counts[i]] for i in range(len(images))[rows]],
        [targets.labels[i, : targets.counts[i]] for i in range(len(images))[rows]],
        targets.image_ids[rows],
    )
    head = getattr(model, "auxiliary_head", None)
    return compute_terms(StepInputs(model, old, images[rows], padding, chosen, points, config, labelled_old), head)


def gradients_of(model, total):
    """Gradient of every parameter that has one."""
    model.zero_grad(set_to_none=True)
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
