"""The papers' tables: what they print, which of our cells stand beside it, and the results of those cells."""
