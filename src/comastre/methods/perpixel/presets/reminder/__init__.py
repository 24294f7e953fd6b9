"""REMINDER's part of the presets."""
