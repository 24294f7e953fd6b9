"""What other programs import: everything here is also in `comastre` itself."""

from __future__ import annotations

from comastre.learning.learn import Learned, learn
from comastre.prediction.model import Model, load
from comastre.prediction.result import Prediction
from comastre.segmentation import Segment, Segmentation

__all__ = ["Learned", "Model", "Prediction", "Segment", "Segmentation", "learn", "load"]
