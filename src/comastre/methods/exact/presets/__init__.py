"""What the exact method lays over CoMasTRe's part of the presets."""
