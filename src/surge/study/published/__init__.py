"""What ``make tables`` writes into README and docs, from ``results/``."""
