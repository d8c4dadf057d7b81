"""Studies: what is computed from models and runs to be looked at, as data, tables and figures."""
