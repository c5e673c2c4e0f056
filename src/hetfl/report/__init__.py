"""Tables, figures and the static site, made from run records and evaluations."""
