"""Training on photographs: loading, a teacher, losses on features."""
