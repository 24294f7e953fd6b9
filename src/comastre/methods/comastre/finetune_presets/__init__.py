"""CoMasTRe's part of the presets: its sizes, switches, weights and rates."""
