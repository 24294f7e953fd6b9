"""RCIL's part of the presets."""
