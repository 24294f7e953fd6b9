"""The part of Mask2Former in the presets: sizes, points and rates."""
