"""The pages. Views call services and render the results; they contain no decisions of their own."""
