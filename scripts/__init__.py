"""Tools for the development of Kandev; no part of the product."""
