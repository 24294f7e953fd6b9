"""CoMasTRe: teach a segmentation model new classes without the old images and without forgetting the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comastre.api import Learned, Model, Prediction, learn, load

__version__ = "0.1.0"
__all__ = ["Learned", "Model", "Prediction", "__version__", "learn", "load"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import comastre` and the command line's help do not wait for torch.
    if name in __all__:
        from comastre import api

        return getattr(api, name)
    raise AttributeError(f"module 'comastre' has no attribute {name!r}")
