"""One training loop for every recipe: steps, schedules, checkpoints, processes."""
