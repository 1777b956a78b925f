"""What happens to a request: sealed, cleared, sent, and its answer written."""
