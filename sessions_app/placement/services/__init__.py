"""What pages, API and other topics may ask of placement."""
