"""MiB's part of the presets."""
