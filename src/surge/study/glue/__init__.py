"""What is said about GLUE: predictions, intervals over examples and seeds, tables."""
