"""Training of BERTs on GLUE: build, distillation, the optimizer."""
