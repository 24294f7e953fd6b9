"""SDR's part of the presets."""
