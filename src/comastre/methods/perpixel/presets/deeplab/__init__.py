"""The part of fine-tuning and joint training in the presets."""
