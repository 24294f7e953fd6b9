"""CoMasTRe: teach a segmentation model new classes without the old images and without forgetting the old ones."""

__version__ = "0.1.0"
