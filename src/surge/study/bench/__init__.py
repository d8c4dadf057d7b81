"""Times and memory of training steps and of packed networks, measured and shown."""
