"""Real clients on machines that only share a network, over Flower: a server, and nodes that keep data and state."""
