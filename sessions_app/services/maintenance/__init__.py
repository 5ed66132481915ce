"""What is thrown away, and how it is proven that nobody needs it: chore by chore, each of which may die anywhere."""
