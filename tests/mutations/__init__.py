"""A fixed list of faults in the code that decides what is lost, repeated or reported, and the tests that find each."""
