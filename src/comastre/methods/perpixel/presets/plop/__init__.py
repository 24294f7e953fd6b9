"""PLOP's part of the presets."""
