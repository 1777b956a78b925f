"""The tour that `refold demo` gives: an agent is killed inside a tool and comes back."""
