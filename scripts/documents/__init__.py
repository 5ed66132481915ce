"""Write the documents that are generated from the code: ``make docs``."""
