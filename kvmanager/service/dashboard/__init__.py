"""The page at `/`: figures for operators, by files of this package alone."""
