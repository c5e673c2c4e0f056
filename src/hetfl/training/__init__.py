"""What a number comes from: the round loop, client state and the engines that run clients."""
