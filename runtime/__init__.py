"""What a session is and how it is stored: synchronous, no threads, no clock, no network."""
