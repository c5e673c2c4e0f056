"""The federation: plan, round loop, engines, resume points and the run record."""
