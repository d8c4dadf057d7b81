"""The paper's toy problem and its theorem."""
