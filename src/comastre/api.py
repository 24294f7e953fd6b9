"""What other programs import: everything here is also in `comastre` itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from comastre.learning import learn as lessons
from comastre.learning.learned import Learned
from comastre.prediction.model import Model, load
from comastre.prediction.result import Prediction
from comastre.report.lesson_write import page_after
from comastre.segmentation import Segment, Segmentation

Given = ParamSpec("Given")


def _with_page(teach: Callable[Given, Learned]) -> Callable[Given, Learned]:
    @wraps(teach)
    def learn(*args: Given.args, **kwargs: Given.kwargs) -> Learned:
        learned = teach(*args, **kwargs)
        page_after(learned)
        return learned

    return learn


learn = _with_page(lessons.learn)

__all__ = ["Learned", "Model", "Prediction", "Segment", "Segmentation", "learn", "load"]
