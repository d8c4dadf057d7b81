"""What is measured while a run trains: both gradient paths, the delivered dose."""
