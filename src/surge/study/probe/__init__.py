"""What recorded runs saw, as rows and figures."""
