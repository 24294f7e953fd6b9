"""What other programs import: everything here is also in `comastre` itself."""

from __future__ import annotations

from comastre.learning.learn import Learned, learn
from comastre.prediction.model import Model, load
from comastre.prediction.result import PredictedSegment, Prediction

__all__ = ["Learned", "Model", "PredictedSegment", "Prediction", "learn", "load"]
