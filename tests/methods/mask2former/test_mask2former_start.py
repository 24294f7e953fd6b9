"""Where models begin: `--init` from a Mask2Former, for CoMasTRe and for Mask2Former, and how a classifier grows."""

from typing import Any

import pytest
import torch
from torch import nn

from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.methods.build import build_method, setup_of
from comastre.stream.scenario import Task

TASK, NEXT = Task(0, (1, 2, 3), (), (4, 5), (0,)), Task(1, (4, 5), (1, 2, 3), (), (0,))


def method_of(name: str, **own: Any) -> Any:
    section = "mask2former" if name.startswith("mask2former") else name
    config = RunConfig.model_validate({"method": name, "size": "tiny", section: own})
    return build_method(name, setup_of(config))


@pytest.fixture(scope="module")
def given() -> nn.Module:
    torch.manual_seed(1)
    model: nn.Module = method_of("mask2former").build([4])
    return model


def test_comastre_takes_all_of_a_mask2former_but_its_classes(given: nn.Module) -> None:
    method = method_of("comastre")
    model = method.begin(TASK, None, given)
    ours = model.state_dict()
    taken = {name: tensor for name, tensor in given.state_dict().items() if not name.startswith("class_head.")}
    assert len(taken) > 50
    for name, tensor in taken.items():
        assert torch.equal(ours[name], tensor), name
    left = {name.split(".")[0] + "." + name.split(".")[1] for name in ours.keys() - taken.keys()}
    assert "mask_decoder.objectness_head" in left and all(
        name.startswith("class_decoder.") for name in left - {"mask_decoder.objectness_head"}
    )
    assert method.old_model is None  # its objectness is new: nothing to distil


def test_mask2former_takes_all_but_its_classes(given: nn.Module) -> None:
    model = method_of("mask2former").begin(TASK, None, given)
    assert model.tasks == (3,)
    for name, tensor in given.state_dict().items():
        if not name.startswith("class_head."):
            assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("method", "own", "sentence"),
    [
        ("comastre", {"mask_decoder": {"layers": 2}}, "mask_decoder.layers is 3 there but 2 here"),
        ("mask2former", {"mask_decoder": {"layers": 2}}, r"mask_decoder\.layers\.2\.\S+ is \S+ there but missing here"),
    ],
)
def test_what_does_not_fit_is_refused(given: nn.Module, method: str, own: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        method_of(method, **own).begin(TASK, None, given)


def test_what_is_no_such_model_is_refused() -> None:
    with pytest.raises(UserError, match="must be a model of Mask2Former's kind"):
        method_of("mask2former").begin(TASK, None, nn.Linear(1, 1))
    with pytest.raises(UserError, match="must be a model of CoMasTRe's or Mask2Former's kind"):
        method_of("comastre").begin(TASK, None, nn.Linear(1, 1))
    with pytest.raises(UserError, match="its masks share each pixel"):
        method_of("comastre").begin(TASK, None, method_of("comformer").build([1]))


def test_growth_keeps_every_old_logit_to_the_bit() -> None:
    method = method_of("mask2former")
    torch.manual_seed(0)
    model = method.begin(TASK, None)
    model.eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        before = model(images).class_logits
        after = method.begin(NEXT, model)(images).class_logits
    assert before.shape[-1] == 4 and after.shape[-1] == 6
    assert torch.equal(after[..., :3], before[..., :3]) and torch.equal(after[..., -1], before[..., -1])
