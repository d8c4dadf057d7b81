"""Training of detectors: build, objective, distillation, single pictures."""
