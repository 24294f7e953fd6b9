"""The part of CoMFormer in the presets: sizes, points, rates and weights."""
