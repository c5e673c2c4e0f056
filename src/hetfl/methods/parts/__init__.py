"""What methods are composed of. A file here is used by some methods and defines none."""
