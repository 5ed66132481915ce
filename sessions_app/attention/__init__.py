"""What needs a person is shown until it is settled, and no longer."""
