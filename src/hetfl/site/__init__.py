"""The report: a small site of linked pages that works from a folder, without a server or a network."""
