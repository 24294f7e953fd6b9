"""The assembled segmenter: every named size, any image size, padding that nobody sees, growth."""

import copy

import pytest
import torch
from torch import Tensor

from comastre.methods.comastre.class_decoder import Recognition
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter, auxiliary_head, build_segmenter
from comastre.nets.outputs import StageOne
from comastre.nets.pixel_decoder import _normalise


def make(tasks: tuple[int, ...] = (3,), size: str = "tiny", **fields: object) -> Segmenter:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"size": size, "backbone": {"weights": "none"}, **fields})
    return build_segmenter(config, tasks).eval()


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def run(model: Segmenter, images: Tensor, padding: Tensor | None = None) -> tuple[StageOne, Recognition]:
    stage_one = model.propose(images, padding)
    final = stage_one.final
    return stage_one, model.recognise(stage_one.pixels, final.embeddings, final.mask_logits)


def padding_of(sizes: list[tuple[int, int]], padded: tuple[int, int]) -> Tensor:
    padding = torch.ones(len(sizes), *padded, dtype=torch.bool)
    for image, (height, width) in enumerate(sizes):
        padding[image, :height, :width] = False
    return padding


@pytest.mark.parametrize(
    ("size", "dim", "queries", "layers"),
    [("tiny", 64, 16, 3), ("small", 128, 20, 6), ("r50", 256, 20, 9)],
)
def test_named_sizes_run(size: str, dim: int, queries: int, layers: int) -> None:
    stage_one, recognition = run(make((3, 2), size), pictures(1, 3, 64, 96))
    assert len(stage_one.layers) == layers + 1
    for proposals in stage_one.layers:
        assert proposals.embeddings.shape == (1, queries, dim)
        assert proposals.mask_logits.shape == (1, queries, 16, 24)
        assert proposals.objectness_logits.shape == (1, queries)
    assert recognition.class_logits.shape == (1, queries, 5)
    assert recognition.newest_embeddings.shape == (1, queries, dim)


def test_the_papers_model_has_a_resnet_101() -> None:
    with torch.device("meta"):  # shapes only: its weights would fill a quarter of a gigabyte
        model = build_segmenter(ModelConfig.model_validate({"size": "r101", "backbone": {"weights": "none"}}), [15])
    assert [len(model.backbone.network[f"layer{stage}"]) for stage in (1, 2, 3, 4)] == [3, 4, 23, 3]
    assert model.backbone.channels == (256, 512, 1024, 2048)
    assert len(model.pixel_decoder.layers) == 6 and len(model.mask_decoder.layers) == 9
    assert model.mask_decoder.query_features.weight.shape == (20, 256)
    assert model.class_decoder.classifiers[0].weight.shape == (15, 256)


@pytest.mark.parametrize("size", [(64, 64), (97, 131), (32, 300), (300, 32), (16, 16), (8, 8), (1, 1), (1, 70)])
@pytest.mark.parametrize("batch", [1, 2])
def test_any_image_size(size: tuple[int, int], batch: int) -> None:
    stage_one, recognition = run(make(), pictures(batch, 3, *size))
    height, width = (-(-side // 4) for side in size)
    assert stage_one.final.mask_logits.shape == (batch, 16, height, width)
    for level, stride in zip(stage_one.pixels.levels, (32, 16, 8), strict=True):
        assert level.shape == (batch, 64, -(-size[0] // stride), -(-size[1] // stride))
    assert stage_one.final.mask_logits.isfinite().all()
    assert recognition.class_logits.isfinite().all()


# --- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[(64, 96), (32, 64)], [(97, 131), (50, 131), (1, 1)]])
def test_what_padding_holds_changes_nothing(sizes: list[tuple[int, int]]) -> None:
    model = make()
    padded = (max(height for height, _ in sizes), max(width for _, width in sizes))
    padding = padding_of(sizes, padded)
    images = pictures(len(sizes), 3, *padded)
    stage_one, recognition = run(model, images, padding)
    changed, other_recognition = run(model, images.masked_fill(padding[:, None], 7.0), padding)
    for one, other in zip(stage_one.layers, changed.layers, strict=True):
        assert torch.equal(one.mask_logits, other.mask_logits)
        assert torch.equal(one.objectness_logits, other.objectness_logits)
    assert torch.equal(recognition.class_logits, other_recognition.class_logits)
    unmasked, _ = run(model, images.masked_fill(padding[:, None], 7.0))
    assert not torch.equal(unmasked.final.mask_logits, stage_one.final.mask_logits)  # the mask is what protects


@pytest.mark.parametrize("masked", [False, True])
def test_no_decoder_attends_to_padding(masked: bool) -> None:
    model = make(class_decoder={"masked_attention": masked})
    sizes = [(64, 96), (32, 64)]
    stage_one, recognition = run(model, pictures(2, 3, 64, 96), padding_of(sizes, (64, 96)))
    pixels = stage_one.pixels
    levels = []
    for level, padding in zip(pixels.levels, pixels.padding, strict=True):
        assert padding is not None and padding[1].any() and not padding[0].any()
        levels.append(torch.where(padding[:, None], 100.0, level))
    poisoned = copy.copy(pixels)
    object.__setattr__(poisoned, "levels", tuple(levels))
    with torch.no_grad():
        proposals = model.mask_decoder(poisoned)[-1]
        logits = model.recognise(poisoned, proposals.embeddings, proposals.mask_logits).class_logits
    assert torch.equal(proposals.embeddings, stage_one.final.embeddings)
    assert torch.equal(logits, recognition.class_logits)


def test_deformable_attention_reads_padding_as_zero() -> None:
    attention = make().pixel_decoder.layers[0].attention
    shapes = [(2, 3), (4, 6), (8, 12)]
    total = sum(height * width for height, width in shapes)
    padding = torch.cat(
        [padding_of([(height // 2, width // 3)], (height, width)).flatten(1) for height, width in shapes], 1
    )
    queries, source = pictures(1, total, 64, seed=1), pictures(1, total, 64, seed=2)
    origins = attention.origins(pictures(total, 2, seed=3), shapes)
    with torch.no_grad():
        expected = attention(queries, source, origins, shapes, padding)
        poisoned = torch.where(padding[..., None], 1e3, source)
        assert torch.equal(attention(queries, poisoned, origins, shapes, padding), expected)
        nothing = attention(queries, source, origins, shapes, torch.ones_like(padding))
        assert torch.equal(nothing, attention.output_projection.bias.expand_as(nothing))


def test_padding_does_not_move_group_norm() -> None:
    norm = torch.nn.GroupNorm(4, 8)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    maps = pictures(2, 8, 6, 10) * 3
    mask = padding_of([(6, 10), (5, 4)], (6, 10))
    with torch.no_grad():
        normalised = _normalise(norm, maps, mask)
        torch.testing.assert_close(normalised[:1], norm(maps[:1]))
        torch.testing.assert_close(normalised[1:, :, :5, :4], norm(maps[1:, :, :5, :4]))


@pytest.mark.parametrize("backbone", ["test_resnet", "test_convnext"])
def test_a_padded_image_is_close_to_the_image_alone(backbone: str) -> None:
    # Not equal: the backbone's convolutions see the padding's border.
    model = make(backbone={"name": backbone, "weights": "none"})
    image = pictures(1, 3, 64, 64)
    alone, _ = run(model, image)
    padded, _ = run(model, torch.nn.functional.pad(image, (0, 32)), padding_of([(64, 64)], (64, 96)))
    assert (padded.final.objectness_logits - alone.final.objectness_logits).abs().max() < 0.1
    difference = padded.final.mask_logits[..., :16] - alone.final.mask_logits
    assert difference.abs().mean() < 0.2 * alone.final.mask_logits.std()


# --- growth ----------------------------------------------------------------------------------------------------------


def test_growth_changes_nothing_that_was_there() -> None:
    model = make((3,))
    images = pictures(2, 3, 64, 64)
    stage_one, recognition = run(model, images)
    for task in range(2, 51):
        model.add_task(1 + task % 3)
        if task in (2, 3, 10, 50):
            grown, grown_recognition = run(model, images)
            for one, other in zip(stage_one.layers, grown.layers, strict=True):
                assert torch.equal(one.embeddings, other.embeddings)
                assert torch.equal(one.mask_logits, other.mask_logits)
                assert torch.equal(one.objectness_logits, other.objectness_logits)
            earlier = recognition.class_logits
            assert torch.equal(grown_recognition.class_logits[..., : earlier.shape[-1]], earlier)
            assert grown_recognition.class_logits.shape[-1] == model.num_classes
            recognition = grown_recognition
    assert len(model.tasks) == 50
    assert model.tasks[:4] == (3, 3, 1, 2)
    assert model.num_classes == sum(model.tasks)


def test_an_auxiliary_head_is_for_the_newest_task_and_no_part_of_the_model() -> None:
    model = make((3,))
    before = list(model.state_dict())
    model.add_task(2)
    assert auxiliary_head(model)(torch.zeros(1, 64)).shape == (1, 3)
    model.add_task(5)
    assert auxiliary_head(model)(torch.zeros(1, 64)).shape == (1, 6)
    assert auxiliary_head(model.to(torch.device("meta")))[0].weight.is_meta  # where the model is
    added = set(model.state_dict()) - set(before)
    assert added and all(name.startswith("class_decoder.") for name in added)


def test_forward_is_both_stages_on_every_proposal() -> None:
    model = make((3, 2))
    sizes = [(64, 96), (32, 64)]
    images, padding = pictures(2, 3, 64, 96), padding_of(sizes, (64, 96))
    stage_one, recognition = run(model, images, padding)
    with torch.no_grad():
        output = model(images, padding)
    assert torch.equal(output.stage_one.final.mask_logits, stage_one.final.mask_logits)
    assert torch.equal(output.stage_one.final.objectness_logits, stage_one.final.objectness_logits)
    assert torch.equal(output.recognition.class_logits, recognition.class_logits)
    with torch.no_grad():
        assert not torch.equal(model(images).recognition.class_logits, recognition.class_logits)


def test_a_task_without_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        make().add_task(0)


def test_a_grown_model_trains() -> None:
    model = make((3,)).train()
    model.add_task(2)
    head = auxiliary_head(model)
    query, classifier = model.class_decoder.task_queries[1], model.class_decoder.classifiers[1]
    images = pictures(2, 3, 64, 64)
    optimiser = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    both = torch.nn.ModuleDict({"model": model, "head": head})
    before = {name: value.clone() for name, value in both.named_parameters()}

    final = (stage_one := model.propose(images)).final
    recognised = model.recognise(stage_one.pixels, final.embeddings, final.mask_logits, first_task=1)
    assert recognised.class_logits.shape == (2, 16, 2)
    loss = recognised.class_logits.square().mean() + head(recognised.newest_embeddings).square().mean()
    (loss + final.mask_logits.square().mean() + final.objectness_logits.square().mean()).backward()
    for parameter in (query, *classifier.parameters(), *head.parameters(), *model.class_decoder.block.parameters()):
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    assert query.grad is not None and query.grad.abs().max() > 0
    assert next(model.backbone.parameters()).grad is not None
    assert model.class_decoder.task_queries[0].grad is None  # earlier tasks were not asked
    optimiser.step()
    changed = {name for name, value in both.named_parameters() if not torch.equal(value, before[name])}
    learned = {"model.class_decoder.task_queries.1", "model.class_decoder.classifiers.1.weight", "head.1.weight"}
    assert learned <= changed
    assert "model.class_decoder.classifiers.0.weight" not in changed


def norm_of(model: Segmenter) -> torch.nn.BatchNorm2d:
    return next(module for module in model.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d))


def test_batch_norm_stands_still_in_later_steps() -> None:
    model = make(backbone={"weights": "none", "freeze_batch_norm": "later"}).train()
    norm = norm_of(model)
    assert norm.training
    model.backbone.enter_step(1)
    assert not norm.training and model.backbone.training
    model.train()
    assert not norm.training
    model.backbone.enter_step(0)
    assert norm.training


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(("when", "moves"), [("none", "yyy"), ("later", "ynn"), ("always", "nnn")])
def test_batch_norm_follows_the_configuration_in_every_step(when: str, moves: str, weights: bool) -> None:
    """`moves` says it of three steps; weights and biases stand still with the statistics only where that is asked."""
    fields = {"weights": "none", "freeze_batch_norm": when, "freeze_batch_norm_weights": weights}
    model = make(backbone=fields).train()
    norm = norm_of(model)
    assert norm.training == (moves[0] == "y")  # before any step, too
    for step, answer in enumerate(moves):
        model.backbone.enter_step(step)
        assert norm.training == (answer == "y")
        assert norm.weight.requires_grad == norm.bias.requires_grad == (answer == "y" or not weights)
        others = [p for name, p in model.backbone.named_parameters() if p.dim() > 1]
        assert others and all(parameter.requires_grad for parameter in others)


def test_layers_that_never_learn_do_not_begin_to_with_batch_norm() -> None:
    fields = {"weights": "none", "frozen_stride": 8, "freeze_batch_norm": "later", "freeze_batch_norm_weights": True}
    model = make(backbone=fields)
    frozen = {name for name, parameter in model.backbone.named_parameters() if not parameter.requires_grad}
    model.backbone.enter_step(1)
    model.backbone.enter_step(0)
    assert frozen == {name for name, parameter in model.backbone.named_parameters() if not parameter.requires_grad}


def test_bfloat16_autocast_is_finite_and_close() -> None:
    model = make((3, 2))
    images = pictures(1, 3, 64, 64)
    exact, _ = run(model, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough, recognition = run(model, images)
    assert recognition.class_logits.dtype == torch.bfloat16
    assert recognition.class_logits.isfinite().all()
    for other in rough.layers:
        assert other.mask_logits.isfinite().all() and other.objectness_logits.isfinite().all()
    first, rough_first = exact.layers[0].mask_logits, rough.layers[0].mask_logits.float()
    assert (first - rough_first).abs().mean() < 0.05 * first.std()
