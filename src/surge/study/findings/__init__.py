"""The claims of the paper beside what was measured: docs/findings.md."""
