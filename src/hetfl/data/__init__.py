"""Data sets on disk, the catalogue that prepares them, and how clients share them."""
